//! Connections with more than one exchange: when they are kept, when they are not, and what happens to a request whose
//! reused connection closes (RFC 9112 section 9).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{Origin, Peer, Proxy, Setup, ok, poll};

const IDLE: &str = "sluice_upstream_connections_idle";

fn wait_for_idle(proxy: &Proxy, count: f64) {
    poll("the number of idle upstream connections", || (proxy.metric(IDLE) == count).then_some(()));
}

/// Waits until no upstream connection is open. Waiting until none is idle would not be enough: a direct return leaves
/// none idle before its exchange has been seen to end.
fn wait_for_end(proxy: &Proxy) {
    let open = || proxy.metric("sluice_upstream_connections_open");
    poll("the end of the upstream connections", || (open() == 0.0).then_some(()));
}

/// Responds to `count` requests.
fn serve(peer: &mut Peer, count: usize) {
    for _ in 0..count {
        let Some(request) = peer.next() else { return };
        peer.send(ok(request.text()));
    }
}

#[test]
fn upstream_connections_are_reused_across_clients() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    for _ in 0..5 {
        assert_eq!(proxy.get("/").text(), "hi");
    }
    let mut client = proxy.connect();
    for _ in 0..5 {
        assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hi");
    }
    assert_eq!((origin.connections(), origin.requests().len()), (1, 10));
    assert_eq!(proxy.metric("sluice_upstream_connections_reused_total"), 9.0);
    assert_eq!(proxy.metric("sluice_downstream_requests_reused_total"), 4.0);
    wait_for_idle(&proxy, 1.0);
}

#[test]
fn an_empty_pool_keeps_no_connection() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("clusters.default.pool.idle_max_per_endpoint", 0);
    let Some(proxy) = setup.start() else { return };
    for _ in 0..3 {
        proxy.get("/");
    }
    assert_eq!(origin.connections(), 3);
}

#[test]
fn idle_upstream_connections_are_closed_in_time() {
    let origin = Origin::playing(|mut peer| {
        serve(&mut peer, 1);
        peer.expect_end();
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.pool.idle_timeout_ms", 1);
    let Some(proxy) = setup.start() else { return };
    proxy.get("/");
    // Not until none is idle: the response may arrive before its connection is.
    wait_for_end(&proxy);
    proxy.get("/");
    assert_eq!(origin.connections(), 2);
}

#[test]
fn the_origin_decides_whether_its_connection_is_kept() {
    let cases = [
        ("HTTP/1.1 200 OK\r\nConnection: close\r\n", 3),
        ("HTTP/1.1 200 OK\r\nConnection: x, CLOSE\r\n", 3),
        ("HTTP/1.0 200 OK\r\n", 3),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n", 1),
        ("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n", 1),
    ];
    for (head, connections) in cases {
        let origin = Origin::answering(move |_| format!("{head}Content-Length: 2\r\n\r\nhi").into_bytes());
        let Some(proxy) = Setup::to_origin(&origin).start() else { return };
        let mut client = proxy.connect();
        for _ in 0..3 {
            let answer = client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!((answer.text(), answer.get("connection")), ("hi", None), "{head}");
        }
        assert_eq!(origin.connections(), connections, "{head}");
    }
}

#[test]
fn the_client_decides_whether_its_connection_is_kept() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    for head in ["GET / HTTP/1.1\r\nHost: a\r\nConnection: close", "GET / HTTP/1.0\r\nHost: a"] {
        let mut client = proxy.connect();
        let answer = client.ask(format!("{head}\r\n\r\n"));
        assert_eq!((answer.text(), answer.get("connection")), ("hi", Some("close")), "{head}");
        client.expect_end();
    }
    assert_eq!(origin.connections(), 1, "the upstream connection is kept");
}

#[test]
fn requests_of_a_client_connection_are_limited() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("limits.requests_per_connection_max", 2);
    let Some(proxy) = setup.start() else { return };
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3));
    assert_eq!(client.response().get("connection"), None);
    assert_eq!(client.response().get("connection"), Some("close"));
    client.expect_end();
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn an_idle_client_connection_is_closed_silently() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("limits.keep_alive_timeout_ms", 1000);
    let Some(proxy) = setup.start() else { return };
    proxy.connect().expect_end();
    let mut client = proxy.connect();
    client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.expect_end();
}

/// The first connection serves one request, and closes after receiving a second one. Later ones serve.
fn dying_under_the_second(deaths: usize) -> Origin {
    Origin::playing(move |mut peer| {
        if peer.index == 0 {
            serve(&mut peer, 1);
        }
        if peer.index < deaths {
            peer.next();
            return;
        }
        serve(&mut peer, usize::MAX);
    })
}

#[test]
fn an_idempotent_request_is_retried_when_its_reused_connection_closes() {
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let origin = dying_under_the_second(1);
        let Some(proxy) = Setup::to_origin(&origin).start() else { return };
        proxy.get("/first");
        let mut client = proxy.connect();
        client.send(format!("{method} /again HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"));
        assert_eq!(client.head().status(), 200, "{method}");
        assert_eq!(proxy.record("/again")["retries"], 1, "{method}");
        let seen = origin.requests();
        assert_eq!(seen.len(), 3, "{method}");
        assert_eq!(
            (&seen[1].fields, &seen[1].body),
            (&seen[2].fields, &seen[2].body),
            "identical to the byte"
        );
        assert_eq!(origin.connections(), 2);
    }
}

#[test]
fn a_request_that_may_have_had_effects_is_not_retried() {
    for method in ["POST", "PATCH", "FROB"] {
        let origin = dying_under_the_second(1);
        let Some(proxy) = Setup::to_origin(&origin).start() else { return };
        proxy.get("/first");
        let answer = proxy.ask(format!("{method} /once HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi"));
        assert_eq!(
            (answer.status(), answer.get("x-sluice-reason")),
            (502, Some("upstream_closed")),
            "{method}"
        );
        assert_eq!(proxy.record("/once")["retries"], 0, "{method}");
        assert_eq!(origin.requests().len(), 2, "{method}");
    }
}

#[test]
fn a_request_is_retried_only_once() {
    let origin = dying_under_the_second(usize::MAX);
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    proxy.get("/first");
    assert_eq!(proxy.get("/again").status(), 502);
    let record = proxy.record("/again");
    assert_eq!((&record["retries"], &record["reason"]), (&1.into(), &"upstream_closed".into()));
    assert_eq!(origin.connections(), 2);
}

#[test]
fn a_request_is_not_retried_when_retries_are_off() {
    let origin = dying_under_the_second(1);
    let setup = Setup::to_origin(&origin).with("clusters.default.retry.attempts_max", 0);
    let Some(proxy) = setup.start() else { return };
    proxy.get("/first");
    assert_eq!(proxy.get("/again").status(), 502);
    assert_eq!(origin.connections(), 1);
}

#[test]
fn a_new_connection_that_closes_is_blamed_on_the_origin() {
    let origin = Origin::playing(|mut peer| drop(peer.next()));
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    assert_eq!(proxy.get("/").status(), 502);
    assert_eq!((origin.connections(), proxy.record("/")["retries"].as_u64()), (1, Some(0)));
}

#[test]
fn a_request_is_not_retried_after_the_first_response_byte() {
    let origin = Origin::playing(|mut peer| {
        serve(&mut peer, 1);
        if peer.next().is_some() {
            peer.send("HTTP/1.1 2");
        }
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    proxy.get("/first");
    assert_eq!(proxy.get("/cut").status(), 502);
    assert_eq!((origin.connections(), proxy.record("/cut")["retries"].as_u64()), (1, Some(0)));
}

#[test]
fn a_body_that_is_not_buffered_completely_is_not_retried() {
    let origin = Origin::playing(|mut peer| {
        serve(&mut peer, 1);
        let mut request = peer.try_head().unwrap();
        peer.chunk(&mut request);
    });
    // With bypass, the two requests would use connections of different kinds.
    let setup = Setup::to_origin(&origin).with("clusters.default.bypass", "off");
    let Some(proxy) = setup.start() else { return };
    proxy.get("/first");
    let answer =
        proxy.ask("PUT /half HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n");
    assert_eq!((answer.status(), answer.get("connection")), (502, Some("close")));
    assert_eq!((origin.connections(), proxy.outcome("/half")), (1, (502, "upstream_closed".to_owned())));
}

#[test]
fn a_connection_that_ended_while_idle_is_noticed_before_it_is_used() {
    let origin = Origin::playing(|mut peer| serve(&mut peer, 1));
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    for count in 1..4 {
        let answer = proxy.ask("POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(answer.text(), "hi");
        wait_for_end(&proxy);
        assert_eq!(origin.requests().len(), count);
    }
    assert!(proxy.records(3, "/post").iter().all(|record| record["retries"] == 0));
}

#[test]
fn unrequested_bytes_end_a_pooled_connection() {
    static ANSWERED: AtomicUsize = AtomicUsize::new(0);
    const POISON: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison";
    let origin = Origin::playing(|mut peer| {
        let request = peer.next().unwrap();
        let mut answer = ok("hi");
        if request.target() == "/with" {
            answer.extend_from_slice(POISON.as_bytes());
        }
        peer.send(answer);
        if request.target() == "/after" {
            poll("the client to get its response", || (ANSWERED.load(Ordering::SeqCst) > 0).then_some(()));
            peer.send(POISON);
        }
        peer.rest();
    });
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    assert_eq!(proxy.get("/with").text(), "hi");
    assert_eq!(proxy.get("/after").text(), "hi");
    ANSWERED.store(1, Ordering::SeqCst);
    wait_for_end(&proxy);
    assert_eq!(proxy.get("/").text(), "hi");
    assert_eq!(origin.connections(), 3, "each on a new connection");
}
