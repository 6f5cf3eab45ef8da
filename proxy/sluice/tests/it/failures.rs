//! Failures on either side: the status, the connection, and the reason in the access log.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::json;

use crate::support::{Dead, Origin, Setup, ok, pattern, poll};

fn outcome(status: u64, reason: &str) -> (u64, String) {
    (status, reason.to_owned())
}

#[test]
fn a_refusing_endpoint_is_skipped() {
    let (dead, origin) = (Dead::new(), Origin::saying("alive"));
    let setup =
        Setup::to(&[&dead.endpoint(), &origin.endpoint]).with("clusters.default.balance", "round_robin");
    let Some(proxy) = setup.start() else { return };
    for _ in 0..4 {
        assert_eq!(proxy.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").text(), "alive");
    }
    assert!(proxy.endpoint(&dead.endpoint())["failures"].as_u64().unwrap() > 0);
}

#[test]
fn if_all_endpoints_refuse_the_response_is_502() {
    let dead = [Dead::new(), Dead::new()];
    let Some(proxy) = Setup::to(&[&dead[0].endpoint(), &dead[1].endpoint(), "unix:/nowhere/at/all"]).start()
    else {
        return;
    };
    let mut client = proxy.connect();
    for target in ["/1", "/2"] {
        let answer = client.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((answer.status(), answer.get("x-sluice-reason")), (502, Some("connect_refused")));
        assert_eq!((answer.get("connection"), answer.get("cache-control")), (None, Some("no-store")));
        assert_eq!(proxy.outcome(target), outcome(502, "connect_refused"));
    }
}

/// An address that does not accept connections: its backlog is full, so the kernel ignores further ones.
fn full_listener() -> (SocketAddr, (TcpListener, Vec<TcpStream>)) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    socket2::SockRef::from(&listener).listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let patience = Duration::from_millis(300);
    let waiting: Vec<TcpStream> =
        std::iter::from_fn(|| TcpStream::connect_timeout(&address, patience).ok()).take(100).collect();
    assert!(waiting.len() < 100, "the queue never filled");
    (address, (listener, waiting))
}

#[test]
fn a_client_that_leaves_while_connecting_ends_the_exchange() {
    let (address, _held) = full_listener();
    let setup = Setup::to(&[&address.to_string()]).with("clusters.default.connect_timeout_ms", 60_000);
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    client.send("GET /gone HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("the request", || (proxy.endpoint(&address.to_string())["in_flight"] == 1).then_some(()));
    client.reset();
    assert_eq!(proxy.outcome("/gone"), outcome(499, "client_gone"));
    assert_eq!(proxy.endpoint(&address.to_string())["in_flight"], 0);
}

#[test]
fn an_endpoint_that_does_not_accept_is_a_504() {
    let (address, _held) = full_listener();
    let setup = Setup::to(&[&address.to_string()]).with("clusters.default.connect_timeout_ms", 50);
    let Some(proxy) = setup.start() else { return };
    assert_eq!(proxy.get("/").status(), 504);
    assert_eq!(proxy.outcome("/"), outcome(504, "connect_timeout"));
}

#[test]
fn an_origin_that_does_not_respond_is_a_504() {
    let origin = Origin::playing(|mut peer| {
        peer.next();
        peer.expect_end();
    });
    let setup = Setup::to_origin(&origin)
        .with("clusters.default.response_timeout_ms", 60_000)
        .with("routes", json!([{"path_prefix": "/", "cluster": "default", "response_timeout_ms": 50}]));
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    for target in ["/1", "/2"] {
        let answer = client.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!((answer.status(), answer.get("connection")), (504, None), "the client's connection stays");
        assert_eq!(proxy.outcome(target), outcome(504, "response_timeout"));
    }
    // A connection with an outstanding response is not reused.
    poll("a connection for each", || (origin.connections() == 2).then_some(()));
}

#[test]
fn a_head_that_trickles_in_is_a_408() {
    let origin = Origin::saying("");
    let setup = Setup::to_origin(&origin).with("limits.header_timeout_ms", 50);
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    let answer = client.ask("GET / HTTP/1.1\r\nHos");
    assert_eq!((answer.status(), answer.get("connection")), (408, Some("close")));
    client.expect_end();
    assert_eq!(proxy.outcome(""), outcome(408, "header_timeout"));
    assert_eq!(origin.connections(), 0);
}

#[test]
fn a_body_that_stalls_is_a_408() {
    let origin = Origin::playing(|mut peer| {
        peer.try_head().unwrap();
        peer.rest();
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.body_idle_timeout_ms", 50);
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    let answer = client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nhalf");
    assert_eq!((answer.status(), answer.get("connection")), (408, Some("close")));
    client.expect_end();
    assert_eq!(proxy.outcome("/"), outcome(408, "body_timeout"));
}

#[test]
fn a_client_that_ends_within_its_body_gets_400() {
    let origin = Origin::playing(|mut peer| {
        peer.try_head().unwrap();
        peer.rest();
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\n\r\nhalf");
    client.finish();
    assert_eq!(client.response().status(), 400);
    client.expect_end();
    assert_eq!(proxy.outcome("/"), outcome(400, "body_incomplete"));
}

#[test]
fn a_truncated_response_is_visibly_cut() {
    let origin = Origin::playing(|mut peer| {
        peer.next();
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.head().get("content-length"), Some("8"));
    assert_eq!(client.rest().0, b"half");
    assert_eq!(proxy.outcome("/"), outcome(200, "response_truncated"));
}

#[test]
fn a_stalled_response_is_cut() {
    let origin = Origin::playing(|mut peer| {
        peer.next();
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
        peer.expect_end();
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.body_idle_timeout_ms", 50);
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    assert_eq!(client.rest().0, b"4\r\nhalf\r\n");
    assert_eq!(proxy.outcome("/"), outcome(200, "response_stalled"));
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let origin = Origin::answering(|_| {
        let body = pattern(32 << 20);
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes(), body].concat()
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.body_idle_timeout_ms", 1000);
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(proxy.outcome("/"), outcome(499, "client_stalled"));
    drop(client);
}

#[test]
fn a_disconnected_client_ends_the_upstream_exchange() {
    let (seen, ends) = mpsc::channel();
    let origin = Origin::playing(move |mut peer| {
        let target = peer.next().unwrap().target().to_owned();
        if target == "/answering" {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        }
        peer.expect_end();
        seen.send(target).unwrap();
    });
    let setup = Setup::to_origin(&origin).with("limits.half_close_timeout_ms", 50);
    let Some(proxy) = setup.start() else { return };
    for (target, reset) in [("/waiting", true), ("/answering", true), ("/closed", false)] {
        let mut client = proxy.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
        match target {
            "/answering" => assert!(client.head().status() == 200 && client.take(4) == b"half"),
            _ => poll("the request", || origin.requests().iter().any(|r| r.target() == target).then_some(())),
        }
        match reset {
            true => client.reset(),
            false => drop(client),
        }
        assert_eq!(ends.recv_timeout(Duration::from_secs(20)).unwrap(), target);
        assert_eq!(proxy.outcome(target), outcome(499, "client_gone"), "{target}");
    }
    let label = proxy.endpoint(&origin.endpoint);
    assert_eq!((&label["in_flight"], &label["failures"]), (&0.into(), &0.into()), "the origin is not blamed");
}

#[test]
fn an_endpoint_that_keeps_failing_is_ejected() {
    let (dead, origin) = (Dead::new(), Origin::saying("alive"));
    let setup = Setup::to(&[&dead.endpoint(), &origin.endpoint])
        .with("clusters.default.balance", "round_robin")
        .with("clusters.default.ejection", json!({"consecutive_failures": 2, "time_ms": 600_000}));
    let Some(proxy) = setup.start() else { return };
    for _ in 0..10 {
        assert_eq!(proxy.get("/").text(), "alive");
    }
    let shown = proxy.endpoint(&dead.endpoint());
    assert_eq!((&shown["health"], &shown["failures"]), (&"ejected".into(), &2.into()));
    assert_eq!(proxy.endpoint(&origin.endpoint)["health"], "healthy");
}

#[test]
fn without_a_healthy_endpoint_fail_open_decides() {
    for (fail_open, status, reason) in [(false, 503, "no_endpoint"), (true, 502, "connect_refused")] {
        let dead = Dead::new();
        let setup = Setup::to(&[&dead.endpoint()])
            .with("clusters.default.fail_open", fail_open)
            .with("clusters.default.ejection", json!({"consecutive_failures": 1, "time_ms": 600_000}));
        let Some(proxy) = setup.start() else { return };
        assert_eq!(proxy.get("/first").status(), 502);
        let answer = proxy.get("/second");
        assert_eq!((answer.status(), answer.get("x-sluice-reason")), (status, Some(reason)));
        assert_eq!(answer.get("retry-after").is_some(), status == 503);
        assert_eq!(proxy.outcome("/second"), outcome(status.into(), reason));
    }
}

#[test]
fn our_own_responses_use_the_preferred_type() {
    let dead = Dead::new();
    let Some(proxy) = Setup::to(&[&dead.endpoint()]).start() else { return };
    let cases = [
        ("", "text/plain; charset=utf-8", "502 Bad Gateway connect_refused\n"),
        ("*/*", "text/plain; charset=utf-8", "502 Bad Gateway connect_refused\n"),
        ("text/html,application/xhtml+xml;q=0.9", "text/html; charset=utf-8", "<!doctype html>"),
        ("application/json", "application/json", "{\"status\":502,"),
        ("image/png, application/json;q=0.1", "application/json", "{\"status\":502,"),
    ];
    for (accept, kind, start) in cases {
        let answer = proxy.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\n\r\n"));
        assert_eq!(answer.get("content-type"), Some(kind), "{accept}");
        assert!(answer.text().starts_with(start), "{accept}: {}", answer.text());
    }
    let mut client = proxy.connect();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.head().get("content-length").is_some_and(|length| length != "0"));
    assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 502, "no body came in between");
}

#[test]
fn error_pages_replace_our_own_bodies() {
    let origin = Origin::answering(|_| b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nits".to_vec());
    let setup = Setup::to_origin(&origin);
    let html = setup.file("missing.html", "<p>ours");
    let setup = setup
        .with("error_pages", json!({"404": html}))
        .with("routes", json!([{"path_prefix": "/app", "cluster": "default"}]));
    let Some(proxy) = setup.start() else { return };
    let answer = proxy.ask("GET / HTTP/1.1\r\nHost: a\r\nAccept: application/json\r\n\r\n");
    assert_eq!((answer.status(), answer.text()), (404, "<p>ours"));
    assert_eq!(answer.get("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(proxy.get("/app").text(), "its", "responses of an origin are not replaced");
}

#[test]
fn a_check_may_ask_for_a_connection_or_for_a_text() {
    let body = Arc::new(Mutex::new("starting"));
    let said = Arc::clone(&body);
    let origin = Origin::answering(move |_| {
        let body = *said.lock().unwrap();
        // In pieces that divide the text.
        let (first, rest) = body.split_at(3);
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{first}\r\n{:x}\r\n{rest}\r\n0\r\n\r\n",
            rest.len()
        )
        .into_bytes()
    });
    let dead = Dead::new();
    let once = json!({"interval": "10ms", "unhealthy_after": 1, "healthy_after": 1});
    let with = |more: serde_json::Value| {
        let mut check = once.clone();
        check.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        check
    };
    let setup = Setup::to(&[&origin.endpoint, &dead.endpoint()])
        .with("clusters.default.health_check", with(json!({"protocol": "tcp"})));
    let Some(proxy) = setup.start() else { return };
    let health = |endpoint: &str| proxy.endpoint(endpoint)["health"].clone();
    poll("the check of a connection", || (health(&dead.endpoint()) == "unhealthy").then_some(()));
    assert_eq!(health(&origin.endpoint), "healthy");
    let mut config = proxy.config.clone();
    config["clusters"]["default"]["health_check"] = with(json!({"expected_body": "ready"}));
    assert_eq!(proxy.reload(&config).0, Some(0));
    poll("the check of the text", || (health(&origin.endpoint) == "unhealthy").then_some(()));
    *body.lock().unwrap() = "is ready now";
    poll("the text", || (health(&origin.endpoint) == "healthy").then_some(()));
}

#[test]
fn health_checks_remove_and_restore_an_endpoint() {
    let (report, state) = mpsc::channel::<u16>();
    let state = std::sync::Mutex::new((200, state));
    let checked = Origin::answering(move |request| {
        let mut state = state.lock().unwrap();
        state.0 = state.1.try_iter().last().unwrap_or(state.0);
        match request.target() {
            "/up" => format!("HTTP/1.1 {} X\r\nContent-Length: 0\r\n\r\n", state.0).into_bytes(),
            _ => ok("checked"),
        }
    });
    let other = Origin::answering(|request| if request.target() == "/up" { ok("") } else { ok("other") });
    let check = json!({"path": "/up", "host": "health.test", "interval_ms": 250, "timeout_ms": 250,
        "healthy_after": 2, "unhealthy_after": 2});
    let setup = Setup::to(&[&checked.endpoint, &other.endpoint])
        .with("clusters.default.balance", "round_robin")
        .with("clusters.default.health_check", check);
    let Some(proxy) = setup.start() else { return };
    let wait_for = |health: &str| {
        poll(health, || (proxy.endpoint(&checked.endpoint)["health"] == health).then_some(()));
    };
    let answers = || (0..6).filter(|_| proxy.get("/").text() == "checked").count();
    wait_for("healthy");
    report.send(503).unwrap();
    wait_for("unhealthy");
    assert_eq!(answers(), 0);
    let shown = proxy.endpoint(&checked.endpoint);
    assert_eq!(
        (&shown["last_check"]["outcome"], &shown["last_check"]["success"]),
        (&"status 503".into(), &false.into())
    );
    report.send(204).unwrap();
    wait_for("healthy");
    assert!(answers() > 0, "it gets requests again");
    let asked = checked.requests().into_iter().find(|request| request.target() == "/up").unwrap();
    assert_eq!(asked.get("host"), Some("health.test"));
}
