//! An origin with limited concurrency: which requests wait, which are rejected, and in which order they proceed.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::support::{Origin, Proxy, Setup, Wire, ok, poll};

/// An origin that reports each request it receives, and responds when told to.
pub(crate) struct Gate {
    pub(crate) origin: Origin,
    begun: Receiver<String>,
    open: Sender<()>,
}

impl Gate {
    pub(crate) fn new() -> Self {
        let (begin, begun) = channel();
        let (open, opened) = channel();
        let opened = Arc::new(Mutex::new(opened));
        let origin = Origin::answering(move |request| {
            begin.send(request.target().to_owned()).unwrap();
            let _ = opened.lock().unwrap_or_else(PoisonError::into_inner).recv();
            ok(request.target())
        });
        Self { origin, begun, open }
    }

    /// Waits for the next request to arrive at the origin.
    pub(crate) fn next(&self) -> String {
        self.begun.recv_timeout(std::time::Duration::from_secs(20)).expect("a request reaches the origin")
    }

    pub(crate) fn answer(&self) {
        self.open.send(()).unwrap();
    }

    /// One request at a time.
    pub(crate) fn setup(&self) -> Setup {
        Setup::to_origin(&self.origin).with("clusters.default.max_in_flight", 1)
    }
}

fn ask(proxy: &Proxy, target: &str) -> Wire {
    let mut client = proxy.connect();
    client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client
}

fn outcome(status: u64, reason: &str) -> (u64, String) {
    (status, reason.to_owned())
}

pub(crate) fn wait_for_queue(proxy: &Proxy, length: f64) {
    let name = "sluice_queue_length{cluster=\"default\"}";
    poll("the queue", || (proxy.metric(name) == length).then_some(()));
}

#[test]
fn requests_beyond_the_limit_wait() {
    let gate = Gate::new();
    let Some(proxy) = gate.setup().start() else { return };
    let mut first = ask(&proxy, "/1");
    assert_eq!(gate.next(), "/1");
    let mut second = ask(&proxy, "/2");
    wait_for_queue(&proxy, 1.0);
    let mut third = ask(&proxy, "/3");
    wait_for_queue(&proxy, 2.0);
    assert_eq!(proxy.endpoint(&gate.origin.endpoint)["in_flight"], 1);
    for (client, next) in [(&mut first, Some("/2")), (&mut second, Some("/3")), (&mut third, None)] {
        gate.answer();
        assert_eq!(client.response().status(), 200);
        if let Some(next) = next {
            assert_eq!(gate.next(), next);
        }
    }
    assert_eq!(proxy.endpoint(&gate.origin.endpoint)["limit"], 1);
    let waited = proxy.record("/3");
    assert!(waited["queue_ms"].as_f64().unwrap() > 0.0, "{waited}");
    assert_eq!(proxy.record("/1")["queue_ms"], 0.0);
    assert_eq!(proxy.metric("sluice_queue_entered_total{cluster=\"default\"}"), 2.0);
}

#[test]
fn a_slot_is_occupied_until_the_body_ends() {
    let origin = Origin::playing(|mut peer| {
        while let Some(request) = peer.next() {
            if request.target() == "/stream" {
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n");
                // The second request is not forwarded before this body has ended, so it is read from the client.
                peer.send("3\r\nend\r\n");
            } else {
                peer.send(ok("two"));
            }
        }
    });
    let setup = Setup::to_origin(&origin).with("clusters.default.max_in_flight", 1);
    let Some(proxy) = setup.start() else { return };
    let mut streaming = ask(&proxy, "/stream");
    assert_eq!(streaming.head().status(), 200);
    let second = ask(&proxy, "/second");
    wait_for_queue(&proxy, 1.0);
    streaming.reset();
    let mut second = second;
    assert_eq!(second.response().text(), "two");
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn a_full_queue_rejects_at_once() {
    let gate = Gate::new();
    let Some(proxy) = gate.setup().with("clusters.default.queue.max_length", 1).start() else { return };
    let mut first = ask(&proxy, "/1");
    gate.next();
    let mut second = ask(&proxy, "/2");
    wait_for_queue(&proxy, 1.0);
    let mut third = ask(&proxy, "/3");
    let answer = third.response();
    assert_eq!((answer.status(), answer.get("retry-after")), (503, Some("1")));
    assert_eq!(proxy.outcome("/3"), outcome(503, "queue_full"));
    gate.answer();
    gate.answer();
    assert_eq!((first.response().status(), second.response().status()), (200, 200));
    gate.answer();
    assert_eq!(third.ask("GET /4 HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200, "the connection was kept");
    let rejected = "sluice_queue_rejected_total{cluster=\"default\",reason=\"queue_full\"}";
    assert_eq!(proxy.metric(rejected), 1.0);
    assert_eq!(proxy.endpoint(&gate.origin.endpoint)["failures"], 0);
}

#[test]
fn queue_timeout_gives_503() {
    let gate = Gate::new();
    let Some(proxy) = gate.setup().with("clusters.default.queue.timeout_ms", 50).start() else { return };
    let _first = ask(&proxy, "/1");
    gate.next();
    let mut second = ask(&proxy, "/2");
    let answer = second.response();
    assert_eq!((answer.status(), answer.get("retry-after")), (503, Some("1")));
    assert_eq!(proxy.outcome("/2"), outcome(503, "queue_timeout"));
    assert!(proxy.record("/2")["queue_ms"].as_f64().unwrap() >= 50.0);
    wait_for_queue(&proxy, 0.0);
}

#[test]
fn a_disconnected_client_leaves_the_queue() {
    let gate = Gate::new();
    let Some(proxy) = gate.setup().start() else { return };
    let mut first = ask(&proxy, "/1");
    gate.next();
    let gone = ask(&proxy, "/gone");
    wait_for_queue(&proxy, 1.0);
    gone.reset();
    assert_eq!(proxy.outcome("/gone"), outcome(499, "client_gone"));
    wait_for_queue(&proxy, 0.0);
    gate.answer();
    assert_eq!(first.response().status(), 200);
    let mut next = ask(&proxy, "/next");
    assert_eq!(gate.next(), "/next", "the origin never got the request of the client that left");
    gate.answer();
    assert_eq!(next.response().status(), 200);
}

#[test]
fn a_drain_serves_queued_requests() {
    let gate = Gate::new();
    let Some(mut proxy) = gate.setup().start() else { return };
    let mut clients = vec![ask(&proxy, "/1")];
    gate.next();
    clients.extend([ask(&proxy, "/2"), ask(&proxy, "/3")]);
    wait_for_queue(&proxy, 2.0);
    proxy.signal(nix::sys::signal::Signal::SIGTERM);
    proxy.wait_for("draining");
    for _ in 0..3 {
        gate.answer();
    }
    for client in &mut clients {
        assert_eq!(client.response().status(), 200);
    }
    assert!(proxy.wait().success());
}

#[test]
fn an_automatic_limit_is_measured_and_shown() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin)
        .with("clusters.default.max_in_flight", "auto")
        .with("clusters.default.auto_limit.min", 2)
        .with("clusters.default.auto_limit.max", 2);
    let Some(proxy) = setup.start() else { return };
    assert_eq!(proxy.endpoint(&origin.endpoint)["limit"], 2);
    assert_eq!(proxy.endpoint(&origin.endpoint)["base_latency_us"], 0);
    let mut client = proxy.connect();
    poll("the latency without load", || {
        for _ in 0..50 {
            assert_eq!(client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
        }
        (proxy.endpoint(&origin.endpoint)["base_latency_us"].as_u64()? > 0).then_some(())
    });
    assert_eq!(
        proxy.metric(&format!(
            "sluice_endpoint_limit{{cluster=\"default\",endpoint=\"{}\"}}",
            origin.endpoint
        )),
        2.0
    );
}

#[test]
fn tunnels_do_not_take_request_slots() {
    let origin = Origin::playing(|mut peer| {
        while let Some(request) = peer.next() {
            if request.get("upgrade").is_some() {
                peer.send("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n");
                return peer.expect_end();
            }
            peer.send(ok("hi"));
        }
    });
    let setup = Setup::to_origin(&origin)
        .with("clusters.default.max_in_flight", 1)
        .with("clusters.default.tunnels_max", 1);
    let Some(proxy) = setup.start() else { return };
    let upgrade = "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let mut tunnel = proxy.connect();
    tunnel.send(upgrade);
    assert_eq!(tunnel.head().status(), 101);
    assert_eq!(proxy.get("/").text(), "hi");
    // A direct return is counted a moment later.
    poll("the tunnel alone", || {
        let endpoint = proxy.endpoint(&origin.endpoint);
        (endpoint["tunnels"] == 1 && endpoint["in_flight"] == 1).then_some(())
    });
    let refused = proxy.ask(upgrade);
    assert_eq!((refused.status(), refused.get("x-sluice-reason")), (503, Some("too_many_tunnels")));
    tunnel.reset();
    poll("the slot", || (proxy.endpoint(&origin.endpoint)["tunnels"] == 0).then_some(()));
}
