//! What is forwarded of a head in either direction, and what is added (RFC 9110 sections 7.6 and 7.2).

use serde_json::json;

use crate::support::{Dead, Origin, Setup, Wire, ok};

#[test]
fn a_request_reaches_the_origin_with_its_fields_in_order() {
    let origin = Origin::saying("hello");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let answer = proxy.ask(
        "GET /path?q=1&r=%20 HTTP/1.1\r\nHost: a.test:81\r\nX-One: 1\r\naccept: */*\r\nX-One:  2 \r\n\
         Cookie: k=v\r\nAuthorization: Basic eA==\r\nX-Empty:\r\n\r\n",
    );
    assert_eq!((answer.line.as_str(), answer.text()), ("HTTP/1.1 200 OK", "hello"));
    let request = origin.last();
    assert_eq!(request.line, "GET /path?q=1&r=%20 HTTP/1.1");
    let sent: Vec<_> = request.fields.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    assert_eq!(
        sent[..7],
        [
            "Host: a.test:81",
            "X-One: 1",
            "accept: */*",
            "X-One: 2",
            "Cookie: k=v",
            "Authorization: Basic eA==",
            "X-Empty: ",
        ]
    );
    assert_eq!(request.get("content-length"), None);
    assert_eq!(request.get("transfer-encoding"), None);
}

#[test]
fn a_response_reaches_the_client_with_its_fields_in_order() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 299 Fine by me\r\nSet-Cookie: a=1\r\nserver: o\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\
          Content-Type: text/x\r\n\r\nhi"
            .to_vec()
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let answer = proxy.get("/");
    assert_eq!(answer.line, "HTTP/1.1 299 Fine by me");
    assert_eq!(answer.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!((answer.get("server"), answer.get("content-type")), (Some("o"), Some("text/x")));
    assert_eq!((answer.get("content-length"), answer.text()), (Some("2"), "hi"));
    assert_eq!((answer.get("connection"), answer.get("via")), (None, None));
}

#[test]
fn hop_by_hop_request_fields_are_removed() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    proxy.ask(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\n\
         Proxy-Connection: close\r\nProxy-Authorization: Basic eA==\r\nTE: trailers\r\nUpgrade: h2c\r\n\
         HTTP2-Settings: AAM\r\nProxy: http://evil.test\r\nTrailer: x\r\nX-Yours: 2\r\n\r\n",
    );
    let request = origin.last();
    for gone in [
        "connection",
        "x-mine",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "upgrade",
        "http2-settings",
        "proxy",
        "trailer",
    ] {
        assert_eq!(request.get(gone), None, "{gone}");
    }
    assert_eq!(request.get("x-yours"), Some("2"));
}

#[test]
fn hop_by_hop_response_fields_are_removed() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nConnection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\n\
          Proxy-Authenticate: Basic\r\nTrailer: x\r\nContent-Length: 0\r\nX-Yours: 2\r\n\r\n"
            .to_vec()
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let answer = proxy.get("/");
    for gone in ["connection", "x-mine", "keep-alive", "upgrade", "proxy-authenticate", "trailer"] {
        assert_eq!(answer.get(gone), None, "{gone}");
    }
    assert_eq!(answer.get("x-yours"), Some("2"));
}

#[test]
fn connection_cannot_nominate_framing_and_routing_fields() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    proxy.ask(
        "POST / HTTP/1.1\r\nHost: a.test\r\nConnection: host, content-length, x-forwarded-for, x-forwarded-host\r\n\
         Content-Length: 2\r\n\r\nhi",
    );
    let request = origin.last();
    assert_eq!((request.get("host"), request.get("content-length")), (Some("a.test"), Some("2")));
    assert_eq!(request.get("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!((request.get("x-forwarded-host"), request.text()), (Some("a.test"), "hi"));
}

#[test]
fn forwarded_fields_describe_the_client() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    proxy.ask(
        "GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\n\
         X-Forwarded-Host: evil.test\r\nForwarded: for=6.6.6.6\r\nX-Request-Start: t=1.000\r\n\
         X_Forwarded_For: 6.6.6.6\r\n\r\n",
    );
    let request = origin.last();
    assert_eq!(
        request.get("x-forwarded-for"),
        Some("127.0.0.1"),
        "the field of an untrusted client is replaced"
    );
    assert_eq!(request.get("x-forwarded-proto"), Some("http"));
    assert_eq!(request.get("x-forwarded-host"), Some("a.test"));
    assert_eq!((request.get("forwarded"), request.get("x_forwarded_for")), (None, None));
    let start = request.get("x-request-start").unwrap();
    let (seconds, millis) = start.strip_prefix("t=").unwrap().split_once('.').unwrap();
    assert!(seconds.parse::<u64>().unwrap() > 1_700_000_000 && millis.len() == 3, "{start}");
}

#[test]
fn forwarded_fields_of_a_trusted_proxy_are_kept_and_extended() {
    let origin = Origin::saying("");
    let setup = Setup::to_origin(&origin).with("trusted_proxies", json!(["127.0.0.0/8"]));
    let Some(proxy) = setup.start() else { return };
    proxy.ask(
        "GET /t HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-For: 198.51.100.1\r\n\
         X-Forwarded-Proto: https\r\nX-Forwarded-Host: public.test\r\nX-Request-Start: t=1.000\r\n\r\n",
    );
    let request = origin.last();
    assert_eq!(request.get("x-forwarded-for"), Some("6.6.6.6, 198.51.100.1, 127.0.0.1"));
    assert_eq!(request.get("x-forwarded-proto"), Some("https"));
    assert_eq!(request.get("x-forwarded-host"), Some("public.test"));
    assert_eq!(request.get("x-request-start"), Some("t=1.000"));
    assert_eq!(proxy.record("/t")["client"], "198.51.100.1", "the last address that is not a proxy");
}

#[test]
fn a_request_id_is_kept_or_created_and_logged() {
    let origin = Origin::saying("");
    let stranger = Setup::to_origin(&origin);
    let Some(proxy) = stranger.start() else { return };
    proxy.ask("GET /strange HTTP/1.1\r\nHost: a\r\nX-Request-Id: it_is.mine-1\r\n\r\n");
    assert_ne!(origin.last().get("x-request-id"), Some("it_is.mine-1"), "any client could claim this");
    let origin = Origin::saying("");
    let trusting = Setup::to_origin(&origin).with("trusted_proxies", json!(["127.0.0.1"]));
    let Some(proxy) = trusting.start() else { return };
    let mut client = proxy.connect();
    client.ask("GET /kept HTTP/1.1\r\nHost: a\r\nX-Request-Id: it_is.mine-1\r\n\r\n");
    client.ask("GET /none HTTP/1.1\r\nHost: a\r\n\r\n");
    client.ask("GET /odd HTTP/1.1\r\nHost: a\r\nX-Request-Id: a b\"c\r\n\r\n");
    client.ask("GET /two HTTP/1.1\r\nHost: a\r\nX-Request-Id: a\r\nX-Request-Id: b\r\n\r\n");
    let requests = origin.requests();
    assert_eq!(requests[0].get("x-request-id"), Some("it_is.mine-1"));
    for request in &requests {
        let id = request.get("x-request-id").unwrap();
        assert_eq!(proxy.record(request.target())["request_id"], id);
        let made = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert_eq!(made, request.target() != "/kept", "{id}");
    }
}

#[test]
fn host_comes_from_the_route_the_target_or_the_client() {
    let origin = Origin::saying("");
    let routes = json!([
        {"path_prefix": "/rewritten", "cluster": "default", "host_rewrite": "inner.test"},
        {"cluster": "default"},
    ]);
    let Some(proxy) = Setup::to_origin(&origin).with("routes", routes).start() else { return };
    let cases = [
        ("GET /rewritten HTTP/1.1\r\nHost: a.test", "inner.test", "a.test"),
        ("GET / HTTP/1.1\r\nHost: [::1]:8080", "[::1]:8080", "[::1]:8080"),
        ("GET http://b.test/x HTTP/1.1\r\nHost: b.test", "b.test", "b.test"),
        ("GET http://b.test HTTP/1.0", "b.test", "b.test"),
    ];
    for (head, host, forwarded) in cases {
        proxy.ask(format!("{head}\r\n\r\n"));
        let request = origin.last();
        assert_eq!(
            (request.get("host"), request.get("x-forwarded-host")),
            (Some(host), Some(forwarded)),
            "{head}"
        );
    }
    proxy.ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!(origin.last().get("host"), Some(proxy.address().to_string().as_str()), "HTTP/1.0 without one");
}

#[test]
fn absolute_and_asterisk_forms_are_rewritten_for_origins() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let cases = [
        ("GET http://a.test/x?y HTTP/1.1", "GET /x?y HTTP/1.1"),
        ("GET http://a.test HTTP/1.1", "GET / HTTP/1.1"),
        ("GET http://a.test?y HTTP/1.1", "GET /?y HTTP/1.1"),
        ("OPTIONS http://a.test HTTP/1.1", "OPTIONS * HTTP/1.1"),
        ("OPTIONS * HTTP/1.1", "OPTIONS * HTTP/1.1"),
        ("BREW //x/../y HTTP/1.0", "BREW //x/../y HTTP/1.1"),
    ];
    for (line, expected) in cases {
        proxy.ask(format!("{line}\r\nHost: a.test\r\n\r\n"));
        assert_eq!(origin.last().line, expected, "{line}");
    }
}

#[test]
fn via_is_added_in_both_directions_if_enabled() {
    let origin =
        Origin::answering(|_| b"HTTP/1.0 200 OK\r\nVia: 1.1 cache\r\nContent-Length: 0\r\n\r\n".to_vec());
    let Some(proxy) = Setup::to_origin(&origin).with("via", true).start() else { return };
    let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a\r\nVia: 1.1 other\r\n\r\n");
    assert_eq!(origin.last().all("via"), ["1.1 other", "1.1 sluice"]);
    assert_eq!(answer.all("via"), ["1.1 cache", "1.0 sluice"]);
}

#[test]
fn strip_prefix_removes_the_prefix() {
    let origin = Origin::saying("");
    let routes = json!([{"path_prefix": "/app", "cluster": "default", "strip_prefix": true}]);
    let Some(proxy) = Setup::to_origin(&origin).with("routes", routes).start() else { return };
    for (target, expected) in [("/app/x?y=1", "/x?y=1"), ("/app", "/"), ("/app?y", "/?y"), ("/app/", "/")] {
        proxy.get(target);
        assert_eq!(origin.last().target(), expected, "{target}");
    }
    assert_eq!(proxy.get("/apple").status(), 404, "prefixes end at segment boundaries");
}

#[test]
fn a_route_edits_both_heads() {
    let origin = Origin::answering(|_| {
        b"HTTP/1.1 200 OK\r\nServer: secret\r\nX-Frame: a\r\nContent-Length: 0\r\n\r\n".to_vec()
    });
    let edits = json!({
        "request_headers": {"remove": ["x-debug"], "set": {"X-Env": "production"}, "add": {"X-Hop": "edge"}},
        "response_headers": {"remove": ["server"], "set": {"X-Frame": "DENY"}, "add": {"X-Out": "1"}},
        "cluster": "default",
    });
    let Some(proxy) = Setup::to_origin(&origin).with("routes", json!([edits])).start() else { return };
    let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a\r\nX-Debug: 1\r\nX-Env: test\r\nX-Hop: client\r\n\r\n");
    let request = origin.last();
    assert_eq!((request.get("x-debug"), request.get("x-env")), (None, Some("production")));
    assert_eq!(request.all("x-hop"), ["client", "edge"]);
    assert_eq!(
        (answer.get("server"), answer.get("x-frame"), answer.get("x-out")),
        (None, Some("DENY"), Some("1"))
    );
}

#[test]
fn endpoint_header_names_the_endpoint() {
    let origin = Origin::saying("");
    let setup = Setup::to_origin(&origin).with("clusters.default.endpoint_header", "X-Endpoint");
    let Some(proxy) = setup.start() else { return };
    assert_eq!(proxy.get("/").get("x-endpoint"), Some(origin.endpoint.as_str()));
}

#[test]
fn routes_match_host_path_method_and_field() {
    let origins = ["exact", "wildcard", "posting", "beta", "rest"].map(Origin::saying);
    let cluster = |origin: &Origin| json!({"endpoints": [origin.endpoint]});
    let [exact, wildcard, posting, beta, rest] = &origins;
    let setup = Setup::to_origin(rest)
        .with("clusters.exact", cluster(exact))
        .with("clusters.wildcard", cluster(wildcard))
        .with("clusters.posting", cluster(posting))
        .with("clusters.beta", cluster(beta))
        .with("routes", json!([
            {"cluster": "default"},
            {"hosts": ["*.a.test"], "cluster": "wildcard"},
            {"hosts": ["x.a.test"], "cluster": "exact"},
            {"path_prefix": "/p", "methods": ["POST"], "cluster": "posting"},
            {"path_prefix": "/p", "headers": [{"name": "x-beta", "value": "yes"}], "cluster": "beta"},
            {"path_prefix": "/old", "redirect": {"status": 308, "location": "https://{host}{path}{query}"}},
            {"path_prefix": "/fixed", "respond": {"status": 418, "body": "teapot", "content_type": "text/t"}},
        ]));
    let Some(proxy) = setup.start() else { return };
    let cases = [
        ("GET / HTTP/1.1\r\nHost: x.a.test:99", "exact"),
        ("GET / HTTP/1.1\r\nHost: Y.A.TEST", "wildcard"),
        ("GET / HTTP/1.1\r\nHost: a.test", "rest"),
        ("POST /p/1 HTTP/1.1\r\nHost: b", "posting"),
        ("GET /p HTTP/1.1\r\nHost: b\r\nX-Beta: yes", "beta"),
        ("GET /p HTTP/1.1\r\nHost: b\r\nX-Beta: no", "rest"),
        ("GET /fixed HTTP/1.1\r\nHost: b", "teapot"),
    ];
    for (head, expected) in cases {
        assert_eq!(proxy.ask(format!("{head}\r\n\r\n")).text(), expected, "{head}");
    }
    let moved = proxy.ask("GET /old/x?y=1 HTTP/1.1\r\nHost: b.test:8080\r\n\r\n");
    assert_eq!((moved.status(), moved.get("location")), (308, Some("https://b.test/old/x?y=1")));
}

#[test]
fn http_1_0_clients_are_served() {
    let origin = Origin::answering(|_| ok("hi"));
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    let kept = client.ask("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!((kept.text(), kept.get("connection")), ("hi", Some("keep-alive")));
    let last = client.ask("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
    assert_eq!((last.text(), last.get("connection")), ("hi", Some("close")));
    client.expect_end();
    assert!(origin.last().line.ends_with(" HTTP/1.1"), "sluice uses its own version");
}

#[test]
fn a_route_applies_to_the_listeners_it_names() {
    let origin = Origin::saying("inner");
    let listeners = json!([
        {"name": "main", "address": "127.0.0.1:0"},
        {"name": "private", "address": "127.0.0.1:0"},
    ]);
    let routes = json!([{"listeners": ["private"], "hosts": ["inner.test"], "cluster": "default"}]);
    let setup = Setup::to_origin(&origin).with("listeners", listeners).with("routes", routes);
    let Some(proxy) = setup.start() else { return };
    let ask = |listener: &str| {
        Wire::connect(proxy.address_of(listener)).ask("GET / HTTP/1.1\r\nHost: inner.test\r\n\r\n").status()
    };
    assert_eq!((ask("main"), ask("private")), (404, 200));
}

#[test]
fn a_failure_names_its_endpoint_and_its_request() {
    let dead = Dead::new();
    let Some(proxy) = Setup::to(&[&dead.endpoint()]).start() else { return };
    let answer = proxy.get("/dead");
    let record = proxy.record("/dead");
    assert_eq!(answer.status(), 502);
    assert_eq!(record["endpoint"], dead.endpoint());
    assert_eq!(answer.get("x-request-id"), record["request_id"].as_str());
}

#[test]
fn a_refused_head_has_no_body() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
    let (answer, _) = client.rest();
    assert!(
        answer.starts_with(b"HTTP/1.1 400 ") && answer.ends_with(b"\r\n\r\n"),
        "{}",
        answer.escape_ascii()
    );
}

#[test]
fn every_response_names_its_request() {
    let origin = Origin::answering(|request| match request.target() {
        "/own" => b"HTTP/1.1 200 OK\r\nX-Request-Id: own\r\nContent-Length: 2\r\n\r\nhi".to_vec(),
        _ => ok("hi"),
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut wire = proxy.connect();
    for target in ["/one", "/two", "/three"] {
        let answer = wire.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let id = proxy.record(target)["request_id"].as_str().unwrap().to_owned();
        assert_eq!(answer.all("x-request-id"), [id.as_str()]);
        assert_eq!(origin.last().get("x-request-id"), Some(id.as_str()));
    }
    // The application's own passes.
    assert_eq!(proxy.get("/own").all("x-request-id"), ["own"]);
    let Some(proxy) = Setup::to_origin(&origin).with("response_request_id", false).start() else { return };
    assert_eq!(proxy.get("/one").all("x-request-id"), [""; 0]);
    assert_eq!(proxy.get("/own").all("x-request-id"), ["own"]);
}
