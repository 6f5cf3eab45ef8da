//! What clients get from sluice itself: bodies with variables, pages in place of an application's errors, answers to
//! scripts of other sites.

use serde_json::{Value, json};

use crate::support::{Message, Origin, Proxy, Setup, Wire};

fn get(proxy: &Proxy, target: &str, fields: &str) -> Message {
    proxy.ask(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"))
}

#[test]
fn a_body_takes_values_from_the_request_as_values() {
    let setup = Setup::to(&[]).without("clusters").with(
        "routes",
        json!([
            {"path": "/html", "respond":
             {"template": "<p>{header:x-name} {{x}}</p>", "content_type": "text/html; charset=utf-8"}},
            {"path": "/json", "respond":
             {"template": "{{\"name\": \"{header:x-name}\", \"ip\": \"{client_ip}\"}}", "content_type": "application/json"}},
            {"path": "/port", "respond": {"template": "{client_port}"}},
            {"path": "/fixed", "respond": {"body": "{client_ip}"}},
            {"name": "user", "path_regex": "^/users/(?P<id>[^/]+)/(.*)$",
             "redirect": {"location": "https://{host}/u/{group:id}/{group:2}{query}"},
             "response_headers": {"set": {"X-Id": "{group:1}"}}},
            {"name": "all", "path_regex": "^/go/(.*)$", "redirect": {"location": "/{group:1}"}},
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    let name = "X-Name: <b>\"a\\b\r\n";
    assert_eq!(get(&proxy, "/html", name).text(), "<p>&lt;b&gt;&#34;a\\b {x}</p>");
    let answer: Value = serde_json::from_str(get(&proxy, "/json", name).text()).unwrap();
    assert_eq!(answer, json!({"name": "<b>\"a\\b", "ip": "127.0.0.1"}));
    let mut wire = proxy.connect();
    let port = wire.ask("GET /port HTTP/1.1\r\nHost: a\r\n\r\n").text().to_owned();
    assert!(port.parse::<u16>().is_ok_and(|port| port > 0), "{port}");
    assert_eq!(wire.ask("GET /port HTTP/1.1\r\nHost: a\r\n\r\n").text(), port);
    assert_eq!(get(&proxy, "/fixed", "").text(), "{client_ip}");
    let answer = get(&proxy, "/users/a%20b/x/y?z=1", "");
    assert_eq!(answer.get("location"), Some("https://a.test/u/a%20b/x/y?z=1"));
    assert_eq!(answer.get("x-id"), Some("a b"));
    for (target, location) in [
        ("/go/x", "/x"),
        ("/go//evil.test", "/evil.test"),
        ("/go/%2fevil.test", "/evil.test"),
        ("/go/%5cevil.test", "/%5Cevil.test"),
        ("/go/%0d%0aX-A:%20b", "/%0D%0AX-A:%20b"),
        ("/go/?a=b", "/"),
    ] {
        let answer = get(&proxy, target, "");
        assert_eq!(
            (answer.status(), answer.get("location"), answer.get("x-a")),
            (302, Some(location), None),
            "{target}"
        );
    }
}

#[test]
fn the_port_of_a_client_is_the_one_that_a_proxy_protocol_names() {
    let setup = Setup::to(&[])
        .without("clusters")
        .with("trusted_proxies", json!(["127.0.0.1"]))
        .with("routes", json!([{"respond": {"template": "{client_ip}:{client_port}"}}]));
    let listeners = json!([
        {"name": "main", "address": "127.0.0.1:0", "proxy_protocol": "any"}, {"name": "plain", "address": "127.0.0.1:0"},
    ]);
    let Some(proxy) = setup.with("listeners", listeners).start() else { return };
    let mut wire = Wire::connect(proxy.address_of("main"));
    wire.send("PROXY TCP4 192.0.2.7 127.0.0.1 4660 80\r\n");
    assert_eq!(wire.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "192.0.2.7:4660");
    let mut wire = Wire::connect(proxy.address_of("plain"));
    let forwarded = "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.8\r\n\r\n";
    assert_eq!(wire.ask(forwarded).text(), "192.0.2.8:");
}

#[test]
fn the_log_has_fields_with_variables_and_the_user() {
    let origin = Origin::saying("hello");
    let setup = Setup::to_origin(&origin);
    let users = setup.file("users", "ann:$2y$04$b98P4d49Kb8Twxx4H/x0cOJJ58hM9QOnqQUA/EuHIOp2EJ2vWiKFK\n");
    let log = setup.folder.join("access.log");
    let variables = json!({"tenant": "t:{header:X-Tenant}", "by": "{route}"});
    let setup = setup
        .with("access_log", json!({"output": log, "variables": variables}))
        .with("routes", json!([{"name": "app", "cluster": "default", "path_prefix": "/app", "auth": {"basic": {"file": users}}}]));
    let Some(proxy) = setup.start() else { return };
    let fields = format!("X-Tenant: a\"b{}\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n", "x".repeat(3000));
    assert_eq!(get(&proxy, "/app", &fields).status(), 200);
    let record = proxy.record("/app");
    assert_eq!((&record["by"], &record["user"]), (&json!("app"), &json!("ann")));
    let tenant = record["tenant"].as_str().unwrap();
    assert!(tenant.starts_with("t:a\"bxxx") && tenant.len() == 1024, "{}", tenant.len());
    assert_eq!(get(&proxy, "/none", "").status(), 404);
    let record = proxy.record("/none");
    assert_eq!((&record["by"], &record["tenant"], &record["user"]), (&json!(""), &json!("t:"), &Value::Null));
}

/// An application that has an error of each kind.
fn failing() -> Origin {
    Origin::answering(|request| match request.target() {
        "/ok" => b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(),
        "/404" => b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\nX-App: 1\r\n\r\napp".to_vec(),
        "/401" => {
            b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\n\
                    ETag: \"x\"\r\nContent-Length: 3\r\n\r\napp"
                .to_vec()
        }
        "/503" => {
            b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 30\r\nTransfer-Encoding: chunked\r\n\r\n"
                .to_vec()
        }
        _ => b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 1000000\r\n\r\n".to_vec(),
    })
}

#[test]
fn pages_replace_the_errors_of_an_application_by_host() {
    let origin = failing();
    let setup = Setup::to_origin(&origin);
    let page = |name: &str| setup.file(name, name);
    let (all, own, lost, json) = (page("all.html"), page("own.html"), page("lost.txt"), page("own.json"));
    let setup = setup
        .with("error_pages", json!({"503": all, "500": all, "401": all}))
        .with("error_pages_for", json!(["500-599", 401]))
        .with(
            "routes",
            json!([
                {"name": "a", "hosts": ["a.test"], "cluster": "default",
                 "response_headers": {"set": {"X-Route": "a"}}},
                {"name": "b", "hosts": ["b.test"], "cluster": "default", "error_pages_for": [404, 503],
                 "error_pages": {"503": own, "404": lost, "401": json}},
                {"name": "c", "hosts": ["c.test"], "cluster": "default", "error_pages_for": []},
            ]),
        );
    let Some(proxy) = setup.start() else { return };
    let mut wires = ["a.test", "b.test", "c.test"].map(|host| (host, proxy.connect()));
    let mut ask = |host: &str, method: &str, target: &str| {
        let wire = &mut wires.iter_mut().find(|(name, _)| *name == host).unwrap().1;
        let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        if method == "HEAD" {
            wire.send(request);
            return wire.head();
        }
        wire.ask(request)
    };
    for (host, target, status, body, content_type) in [
        ("a.test", "/ok", 200, "ok", None),
        ("a.test", "/404", 404, "app", None),
        ("a.test", "/503", 503, "all.html", Some("text/html; charset=utf-8")),
        ("a.test", "/500", 500, "all.html", Some("text/html; charset=utf-8")),
        ("a.test", "/ok", 200, "ok", None),
        ("b.test", "/404", 404, "lost.txt", Some("text/plain; charset=utf-8")),
        ("b.test", "/503", 503, "own.html", Some("text/html; charset=utf-8")),
        ("b.test", "/401", 401, "app", None),
        ("c.test", "/404", 404, "app", None),
        ("c.test", "/401", 401, "app", None),
    ] {
        let answer = ask(host, "GET", target);
        let got = (answer.status(), answer.text(), answer.get("content-type"));
        assert_eq!(got, (status, body, content_type), "{host} {target}");
        assert_eq!(answer.get("x-sluice-reason"), None, "it is the application's error");
    }
    let answer = ask("a.test", "GET", "/401");
    assert_eq!(
        (answer.text(), answer.get("www-authenticate"), answer.get("etag")),
        ("all.html", Some("Basic"), None)
    );
    assert_eq!((answer.all("set-cookie"), answer.get("x-route")), (vec!["a=b", "c=d"], Some("a")));
    assert_eq!(ask("a.test", "GET", "/503").get("retry-after"), Some("30"));
    let head = ask("a.test", "HEAD", "/500");
    assert_eq!((head.status(), head.get("content-length")), (500, Some("8")));
    assert_eq!(ask("a.test", "GET", "/ok").text(), "ok", "no body was sent");
    let record = proxy.record("/404");
    assert_eq!((&record["status"], &record["reason"]), (&json!(404), &Value::Null));
    let post = "POST /500 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nbody";
    assert_eq!(proxy.ask(post).text(), "all.html");
}

#[test]
fn scripts_of_other_sites_are_answered_by_the_policy_of_the_route() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\n\
          Vary: Accept\r\nContent-Length: 2\r\n\r\nok"
            .to_vec()
    });
    let setup = Setup::to_origin(&origin);
    let users = setup.file("users", "ann:$2y$04$b98P4d49Kb8Twxx4H/x0cOJJ58hM9QOnqQUA/EuHIOp2EJ2vWiKFK\n");
    let cors = json!({
        "origins": ["https://app.example", "https://*.shop.example"], "methods": ["GET", "PUT"],
        "headers": ["Content-Type"], "expose": ["X-Total"], "credentials": true, "max_age": "2m",
    });
    let setup = setup.with(
        "routes",
        json!([
            {"name": "api", "path_prefix": "/api", "methods": ["GET", "PUT"], "cluster": "default", "cors": cors,
             "auth": {"basic": {"file": users}}},
            {"name": "said", "path": "/said", "respond": {"body": "said"}, "cors": {"origins": ["*"]}},
            {"name": "rest", "cluster": "default"},
        ]),
    );
    let Some(proxy) = setup.start() else { return };
    let options = |target: &str, fields: &str| {
        proxy.ask(format!("OPTIONS {target} HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"))
    };
    let asking = "Origin: https://app.example\r\nAccess-Control-Request-Method: PUT\r\n\
                  Access-Control-Request-Headers: content-type\r\n";
    let preflight = options("/api/x", asking);
    let values = |answer: &Message| {
        ["origin", "credentials", "methods", "headers"]
            .map(|name| answer.all(&format!("access-control-allow-{name}")).join("|"))
    };
    assert_eq!((preflight.status(), preflight.get("access-control-max-age")), (204, Some("120")));
    assert_eq!(values(&preflight), ["https://app.example", "true", "GET, PUT", "Content-Type"]);
    assert_eq!(
        preflight.all("vary"),
        ["Origin, Access-Control-Request-Method, Access-Control-Request-Headers"]
    );
    let stranger = options("/api/x", &asking.replace("app.example", "evil.example"));
    assert_eq!((stranger.status(), values(&stranger)), (204, ["", "", "", ""].map(str::to_owned)));
    assert_eq!(origin.requests().len(), 0, "nobody asked the application");
    // Not a preflight: as before, the next route.
    assert_eq!(options("/api/x", "").status(), 200);
    assert_eq!(options("/other", asking).status(), 200);
    // The application's own fields are replaced, and a refusal can be read as well.
    let password = "Authorization: Basic YW5uOnNlY3JldA==\r\n";
    for (fields, status, allowed, credentials) in [
        (format!("Origin: https://a.shop.example\r\n{password}"), 200, "https://a.shop.example", "true"),
        (format!("Origin: https://evil.example\r\n{password}"), 200, "", ""),
        (password.to_owned(), 200, "", ""),
        ("Origin: https://app.example\r\n".to_owned(), 401, "https://app.example", "true"),
        ("Origin: https://evil.example\r\n".to_owned(), 401, "", ""),
    ] {
        let answer = get(&proxy, "/api/x", &fields);
        assert_eq!(answer.status(), status, "{fields}");
        assert_eq!(values(&answer)[..2], [allowed, credentials], "{fields}");
        assert!(answer.all("vary").contains(&"Origin"), "{fields}");
        assert_eq!(answer.get("access-control-expose-headers").is_some(), !allowed.is_empty(), "{fields}");
    }
    let said = get(&proxy, "/said", "Origin: https://any.example\r\n");
    assert_eq!((said.text(), values(&said)[0].as_str(), said.get("vary")), ("said", "*", None));
    let other = get(&proxy, "/other", "");
    assert_eq!(values(&other)[..2], ["*", "true"], "a route without a policy changes nothing");
}

#[test]
fn replaced_errors_keep_their_connection() {
    let origin = failing();
    let setup = Setup::to_origin(&origin);
    let page = setup.file("page.html", "page");
    let setup = setup
        .with("error_pages", json!({"404": page, "500": page}))
        .with("routes", json!([{"cluster": "default", "error_pages_for": ["400-599"]}]));
    let Some(proxy) = setup.start() else { return };
    let mut wire = proxy.connect();
    for _ in 0..50 {
        assert_eq!(wire.ask("GET /404 HTTP/1.1\r\nHost: a\r\n\r\n").text(), "page");
    }
    assert_eq!(origin.connections(), 1);
    // One whose body is too long to be read is closed.
    assert_eq!(wire.ask("GET /500 HTTP/1.1\r\nHost: a\r\n\r\n").text(), "page");
    assert_eq!(wire.ask("GET /404 HTTP/1.1\r\nHost: a\r\n\r\n").text(), "page");
    assert_eq!(origin.connections(), 2);
}

#[test]
fn a_connection_with_an_unread_body_is_not_used_again() {
    // It answers before it has read the body that it did not ask for.
    let origin = Origin::playing(|mut peer| {
        let mut wire = peer.next().map(|_| peer.into_wire()).unwrap();
        wire.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 3\r\n\r\napp");
        let (rest, _) = wire.rest();
        assert!(!rest.windows(8).any(|bytes| bytes == b"GET /two"), "the body is not the next request");
    });
    let setup = Setup::to_origin(&origin);
    let page = setup.file("page.html", "page");
    let setup = setup
        .with("error_pages", json!({"401": page}))
        .with("routes", json!([{"cluster": "default", "error_pages_for": [401]}]));
    let Some(proxy) = setup.start() else { return };
    let body = "GET /in HTTP/1.1\r\nHost: a\r\n\r\n";
    let request = format!(
        "POST /one HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    assert_eq!(proxy.ask(request).text(), "page");
    assert_eq!(proxy.ask("GET /two HTTP/1.1\r\nHost: a\r\n\r\n").text(), "page");
    assert_eq!(origin.connections(), 2);
}

#[test]
fn fields_of_several_origins_are_not_lost() {
    let origin = failing();
    let setup = Setup::to(&["127.0.0.1:9"]);
    let page = setup.file("page.html", "page");
    let headers = json!({
        "add": {"Vary": "Accept", "Set-Cookie": "r=1"},
        "set": {"Content-Encoding": "gzip", "CDN-Cache-Control": "public", "Content-Security-Policy": "x"},
    });
    let cors = json!({"origins": ["https://a.example"]});
    let setup = setup
        .with("error_pages", json!({"401": page}))
        .with("clusters.app", json!({"endpoints": [origin.endpoint]}))
        .with(
            "routes",
            json!([
                {"path": "/said", "respond": {"body": "said"}, "response_headers": headers, "cors": cors},
                {"path": "/401", "cluster": "app", "error_pages_for": [401], "response_headers": headers, "cors": cors},
                {"path": "/down", "cluster": "default", "response_headers": headers, "cors": cors},
            ]),
        );
    let Some(proxy) = setup.start() else { return };
    for (target, cookies) in
        [("/said", vec!["r=1"]), ("/401", vec!["a=b", "c=d", "r=1"]), ("/down", vec!["r=1"])]
    {
        let answer = get(&proxy, target, "Origin: https://a.example\r\n");
        let mut vary = answer.all("vary");
        vary.sort_unstable();
        assert_eq!(vary, ["Accept", "Origin"], "{target}");
        assert_eq!(answer.all("access-control-allow-origin"), ["https://a.example"], "{target}");
        assert_eq!(answer.all("set-cookie"), cookies, "{target}");
        assert_eq!(answer.all("content-security-policy"), ["x"], "{target}");
        if target != "/said" {
            assert_eq!(
                (answer.get("content-encoding"), answer.get("cdn-cache-control")),
                (None, None),
                "{target}"
            );
        }
    }
}
