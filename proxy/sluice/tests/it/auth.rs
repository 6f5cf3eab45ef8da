//! Who may use a route: passwords, and servers that decide.

use data_encoding::BASE64;
use serde_json::json;

use super::support::{Message, Origin, Proxy, Setup, ok, poll};

/// By `htpasswd -nbB -C 4 ann secret`, and for bob by argon2.
const USERS: &str = "# of the test\nann:$2y$04$b98P4d49Kb8Twxx4H/x0cOJJ58hM9QOnqQUA/EuHIOp2EJ2vWiKFK\n\
    bob:$argon2id$v=19$m=64,t=1,p=1$c29tZXNhbHQ$qASOLaGX+P0epRpm1t9sb89XH6vB26z1m7LoiG0+sDM\n";

fn basic(name: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", BASE64.encode(format!("{name}:{password}").as_bytes()))
}

fn get(proxy: &Proxy, target: &str, fields: &str) -> Message {
    proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"))
}

#[test]
fn a_name_and_a_password_are_needed() {
    let origin = Origin::saying("hello");
    let mut setup = Setup::to_origin(&origin);
    let file = setup.file("users", USERS);
    setup = setup.with(
        "routes",
        json!([
            {"name": "open", "path": "/up", "cluster": "default"},
            {"name": "rest", "cluster": "default", "auth": {"basic": {"file": file, "realm": "Staff"}},
             "request_headers": {"set": {"X-User": "{auth_user}"}}},
            {"name": "said", "path": "/said", "respond": {"body": "said"}, "auth": {"basic": {"file": file}}},
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    assert_eq!(get(&proxy, "/up", "").status(), 200);
    let refused = get(&proxy, "/", "X-User: forged\r\n");
    assert_eq!(refused.status(), 401);
    assert_eq!(refused.get("www-authenticate"), Some("Basic realm=\"Staff\", charset=\"UTF-8\""));
    assert_eq!(refused.get("x-sluice-reason"), Some("unauthorized"));
    let before = origin.requests().len();
    let both = basic("ann", "secret") + &basic("eve", "x");
    for wrong in [
        basic("ann", "geheim"),
        basic("ann", ""),
        basic("ANN", "secret"),
        basic("eve", "secret"),
        basic("", ""),
        both,
        "Authorization: Basic\r\n".to_owned(),
        "Authorization: Bearer YW5uOnNlY3JldA==\r\n".to_owned(),
        "Proxy-Authorization: Basic YW5uOnNlY3JldA==\r\n".to_owned(),
    ] {
        assert_eq!(get(&proxy, "/", &wrong).status(), 401, "{wrong}");
        assert_eq!(get(&proxy, "/said", &wrong).status(), 401, "{wrong}");
    }
    assert_eq!(origin.requests().len(), before, "nothing passes without a password");
    for (name, password) in [("ann", "secret"), ("bob", "geheim"), ("ann", "secret")] {
        let answer = get(&proxy, "/", &(basic(name, password) + "X-User: forged\r\nX_User: forged\r\n"));
        assert_eq!(answer.status(), 200);
        let request = origin.last();
        assert_eq!((request.all("x-user"), request.get("x_user")), (vec![name], None));
    }
    assert_eq!(get(&proxy, "/said", &basic("bob", "geheim")).text(), "said");
    // A body of a refused request is read, and the connection stays.
    let mut wire = proxy.connect();
    for password in ["no", "secret"] {
        let request =
            format!("POST / HTTP/1.1\r\nHost: a\r\n{}Content-Length: 2\r\n\r\nhi", basic("ann", password));
        assert_eq!(wire.ask(request).status(), if password == "no" { 401 } else { 200 });
    }
}

#[test]
fn a_reload_reads_the_users_again_and_refuses_a_broken_file() {
    let origin = Origin::saying("hello");
    let mut setup = Setup::to_origin(&origin);
    let file = setup.file("users", USERS);
    setup = setup.with("routes", json!([{"cluster": "default", "auth": {"basic": {"file": file}}}]));
    let Some(proxy) = setup.start() else { return };
    assert_eq!(get(&proxy, "/", &basic("ann", "secret")).status(), 200);
    std::fs::write(&file, "ann:plain\n").unwrap();
    let (code, said) = proxy.reload(&proxy.config);
    assert!(
        code != Some(0) && said.contains("routes[0].auth.basic.file") && said.contains("line 1"),
        "{said}"
    );
    assert!(!said.contains("plain"), "{said}");
    assert_eq!(get(&proxy, "/", &basic("ann", "secret")).status(), 200);
    std::fs::write(&file, USERS.lines().last().unwrap()).unwrap();
    assert_eq!(proxy.reload(&proxy.config).0, Some(0));
    assert_eq!(get(&proxy, "/", &basic("ann", "secret")).status(), 401, "although it was right a moment ago");
    assert_eq!(get(&proxy, "/", &basic("bob", "geheim")).status(), 200);
}

#[test]
fn an_unusable_file_is_a_reason_not_to_start() {
    let setup = Setup::to(&["127.0.0.1:9"]);
    let file = setup.file("users", "ann:$apr1$x$y\n");
    let setup = setup.with("routes", json!([{"cluster": "default", "auth": {"basic": {"file": file}}}]));
    let (code, said) = setup.fails();
    assert!(code == Some(1) && said.contains("line 1: the password is not hashed with bcrypt"), "{said}");
}

/// A proxy whose only route asks this authority.
fn asking(origin: &Origin, authority: &str, more: serde_json::Value) -> Option<Proxy> {
    let mut forward =
        json!({"url": format!("http://{authority}/verify?a=b"), "copy": ["Remote-User", "X-Groups"]});
    forward.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Setup::to_origin(origin)
        .with("routes", json!([{"cluster": "default", "auth": {"forward": forward}}]))
        .start()
}

#[test]
fn an_authority_decides_and_says_who_it_is() {
    let origin = Origin::saying("hello");
    let authority = Origin::answering(|question| {
        match question.get("cookie") {
        Some("sid=ann") => {
            b"HTTP/1.1 202 Accepted\r\nRemote-User: ann\r\nX-Other: x\r\nContent-Length: 0\r\n\r\n".to_vec()
        }
        Some("sid=nobody") => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        Some("sid=double") => {
            b"HTTP/1.1 200 OK\r\nRemote-User: a\r\nRemote-User: b\r\nContent-Length: 0\r\n\r\n".to_vec()
        }
        _ => b"HTTP/1.1 302 Found\r\nLocation: https://login.test/\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\n\
               X-Request-Id: theirs\r\nConnection: X-Hop\r\nX-Hop: 1\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nlogin"
            .to_vec(),
    }
    });
    let Some(proxy) = asking(&origin, &authority.endpoint, json!({})) else { return };
    let refused =
        get(&proxy, "/a?c=d", "X-Forwarded-Uri: /open\r\nX-Forwarded-User: root\r\nIf-None-Match: x\r\n");
    assert_eq!((refused.status(), refused.text()), (302, "login"));
    assert_eq!(refused.get("location"), Some("https://login.test/"));
    assert_eq!(
        (refused.all("set-cookie"), refused.all("x-request-id")),
        (vec!["a=b", "c=d"], vec!["theirs"])
    );
    assert_eq!((refused.get("x-hop"), refused.get("content-type")), (None, Some("text/html")));
    assert_eq!(proxy.outcome("/a?c=d"), (302, "auth_refused".to_owned()));
    assert_eq!(origin.requests().len(), 0);
    let question = authority.last();
    assert_eq!(question.line, "GET /verify?a=b HTTP/1.1");
    for (name, wanted) in [
        ("host", Some(authority.endpoint.as_str())),
        ("x-forwarded-method", Some("GET")),
        ("x-forwarded-proto", Some("http")),
        ("x-forwarded-host", Some("a.test")),
        ("x-forwarded-uri", Some("/a?c=d")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-user", None),
        ("if-none-match", None),
    ] {
        assert_eq!(question.get(name), wanted, "{name}");
        assert!(question.all(name).len() < 2, "{name}");
    }
    let forged = "Remote-User: root\r\nREMOTE_USER: root\r\nX-Groups: wheel\r\n";
    let post =
        format!("POST / HTTP/1.1\r\nHost: a\r\nCookie: sid=ann\r\n{forged}Content-Length: 4\r\n\r\nbody");
    assert_eq!(proxy.ask(post).status(), 200);
    assert_eq!(
        (authority.last().get("content-length"), authority.last().get("x-forwarded-method")),
        (None, Some("POST"))
    );
    let request = origin.last();
    assert_eq!((request.all("remote-user"), request.text()), (vec!["ann"], "body"));
    assert_eq!(
        (request.get("remote_user"), request.get("x-groups"), request.get("x-other")),
        (None, None, None)
    );
    assert_eq!(get(&proxy, "/", &format!("Cookie: sid=nobody\r\n{forged}")).status(), 200);
    assert_eq!((origin.last().get("remote-user"), origin.last().get("remote_user")), (None, None));
    assert_eq!(get(&proxy, "/", "Cookie: sid=double\r\n").status(), 502);
    let mut wire = proxy.connect();
    wire.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(wire.head().status(), 302);
    assert_eq!(
        wire.ask("GET / HTTP/1.1\r\nHost: a\r\nCookie: sid=ann\r\n\r\n").text(),
        "hello",
        "no body was sent"
    );
}

#[test]
fn a_renewed_cookie_of_the_authority_reaches_the_client() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nSet-Cookie: app=1\r\nX-Session: app\r\nContent-Length: 2\r\n\r\nhi".to_vec()
    });
    let authority = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nSet-Cookie: sid=1\r\nSet-Cookie: sid.sig=2\r\nX-Other: x\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let more = json!({"copy_to_client": ["Set-Cookie", "X-Absent"]});
    let Some(proxy) = asking(&origin, &authority.endpoint, more) else { return };
    let answer = get(&proxy, "/", "");
    assert_eq!(answer.all("set-cookie"), ["app=1", "sid=1", "sid.sig=2"]);
    assert_eq!((answer.all("x-session"), answer.get("x-other"), answer.text()), (vec!["app"], None, "hi"));
}

#[test]
fn nobody_passes_without_an_answer() {
    let origin = Origin::saying("hello");
    // Accepts, and never answers.
    let silent = Origin::playing(|mut peer| while peer.next().is_some() {});
    let Some(proxy) = asking(&origin, &silent.endpoint, json!({"timeout": "50ms"})) else { return };
    assert_eq!(get(&proxy, "/slow", "").status(), 504);
    assert_eq!(proxy.outcome("/slow"), (504, "auth_timeout".to_owned()));

    let closing = Origin::playing(drop);
    let Some(proxy) = asking(&origin, &closing.endpoint, json!({})) else { return };
    assert_eq!(get(&proxy, "/dead", "").status(), 502);
    assert_eq!(proxy.outcome("/dead"), (502, "auth_failed".to_owned()));

    let long = Origin::answering(|_| ok(&"x".repeat(2000)).into_iter().collect());
    let Some(proxy) = asking(&origin, &long.endpoint, json!({"body_max": "1k"})) else { return };
    assert_eq!(get(&proxy, "/", "").status(), 200, "the body of a yes does not matter");
    let long = Origin::answering(|_| {
        format!("HTTP/1.1 401 Unauthorized\r\nContent-Length: 2000\r\n\r\n{}", "x".repeat(2000)).into_bytes()
    });
    let Some(proxy) = asking(&origin, &long.endpoint, json!({"body_max": "1k"})) else { return };
    assert_eq!(get(&proxy, "/", "").status(), 502);
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn the_number_of_waiting_requests_is_limited_and_a_client_may_leave() {
    let origin = Origin::saying("hello");
    let silent = Origin::playing(|mut peer| while peer.next().is_some() {});
    let Some(proxy) = asking(&origin, &silent.endpoint, json!({"timeout": "60s", "waiting_max": 1})) else {
        return;
    };
    let mut wire = proxy.connect();
    wire.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("a question", || (!silent.requests().is_empty()).then_some(()));
    assert_eq!(get(&proxy, "/second", "").status(), 503);
    assert_eq!(proxy.outcome("/second"), (503, "auth_busy".to_owned()));
    wire.reset();
    assert_eq!(proxy.outcome("/first"), (499, "client_gone".to_owned()));
    let mut wire = proxy.connect();
    wire.send("GET /third HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("another question", || (silent.requests().len() > 1).then_some(()));
}

#[test]
fn a_refused_client_that_is_slow_keeps_nobody_from_asking() {
    let origin = Origin::saying("hello");
    let refusing =
        Origin::answering(|_| b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno".to_vec());
    let Some(proxy) = asking(&origin, &refusing.endpoint, json!({"waiting_max": 1})) else { return };
    // Its body never comes, so the exchange is not over yet.
    let mut slow = proxy.connect();
    slow.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n");
    assert_eq!(slow.head().status(), 401);
    for _ in 0..3 {
        assert_eq!(get(&proxy, "/", "").status(), 401);
    }
}

#[test]
fn no_route_lets_a_client_say_who_it_is() {
    let origin = Origin::saying("hello");
    let authority = Origin::answering(|_| ok("").into_iter().collect());
    let setup = Setup::to_origin(&origin);
    let file = setup.file("users", USERS);
    let url = format!("http://{}/", authority.endpoint);
    let setup = setup.with("trusted_proxies", json!(["127.0.0.1"])).with(
        "routes",
        json!([
            {"path": "/up", "cluster": "default"},
            {"path": "/job", "cluster": "default", "request_headers": {"set": {"X-User": "cron"}}},
            {"path": "/asked", "cluster": "default", "auth": {"forward": {"url": url, "copy": ["Remote-User"]}}},
            {"cluster": "default", "auth": {"basic": {"file": file}},
             "request_headers": {"add": {"X-User": "{auth_user}"}}},
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    let forged = "X-User: root\r\nx_user: root\r\nRemote-User: root\r\nREMOTE_USER: root\r\n\
                  X-Original-URL: /public\r\nX-Original-Method: HEAD\r\nX-Forwarded-Uri: /public\r\n\
                  X-Forwarded-User: root\r\n";
    let seen = |target: &str, fields: &str| {
        assert_eq!(get(&proxy, target, &format!("{fields}{forged}")).status(), 200, "{target}");
        let request = origin.last();
        let both = ["x-user", "remote-user"].map(|name| request.all(name).join(","));
        assert_eq!((request.get("x_user"), request.get("remote_user")), (None, None), "{target}");
        both
    };
    assert_eq!(seen("/up", ""), ["", ""]);
    assert_eq!(seen("/job", ""), ["cron", ""]);
    assert_eq!(seen("/", &basic("ann", "secret")), ["ann", ""]);
    assert_eq!(seen("/asked", ""), ["", ""]);
    // Nor does it say so to the one who decides, also behind a trusted proxy, which may have passed it on.
    let question = authority.last();
    for name in ["remote-user", "remote_user", "x-original-url", "x-original-method", "x-forwarded-user"] {
        assert_eq!(question.get(name), None, "{name}");
    }
    assert_eq!(question.all("x-forwarded-uri"), ["/asked"]);
}

#[test]
fn an_interim_status_is_no_refusal() {
    let origin = Origin::saying("hello");
    let switching = Origin::answering(|_| {
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n".to_vec()
    });
    let Some(proxy) = asking(&origin, &switching.endpoint, json!({})) else { return };
    assert_eq!(get(&proxy, "/", "").status(), 502);
}
