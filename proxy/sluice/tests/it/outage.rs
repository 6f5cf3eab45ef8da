//! Endpoints with a limit that are unreachable for a while: requests do not wait in the queue for them.

use std::sync::mpsc::channel;
use std::thread;

use serde_json::{Value, json};

use crate::support::{Dead, Origin, Proxy, Setup, ok, poll};

const CLIENTS: usize = 32;

/// Longer than any test waits: a request that waits for it fails the test.
const FOR_EVER_MS: u64 = 600_000;

fn limited(endpoints: &[String], limit: Value, config: Value) -> Setup {
    let endpoints: Vec<_> = endpoints.iter().map(String::as_str).collect();
    let mut setup = Setup::to(&endpoints).with("clusters.default.max_in_flight", limit);
    for (key, value) in config.as_object().unwrap() {
        setup = setup.with(&format!("clusters.default.{key}"), value.clone());
    }
    setup.with("clusters.default.queue.timeout_ms", FOR_EVER_MS).with("workers", 2)
}

/// Every client sends `times` requests, all clients at once; returns the statuses.
fn ask_at_once(proxy: &Proxy, times: usize) -> Vec<u16> {
    let (answered, statuses) = channel();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let answered = answered.clone();
            scope.spawn(move || {
                let mut client = proxy.connect();
                for _ in 0..times {
                    let status = client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status();
                    answered.send(status).unwrap();
                }
            });
        }
    });
    drop(answered);
    statuses.into_iter().collect()
}

/// All requests are refused while the endpoints are away, and served once one of them is back.
fn refused_then_served(
    endpoints: &[String],
    limit: Value,
    config: Value,
    come_back: impl FnOnce() -> Origin,
) {
    let Some(proxy) = limited(endpoints, limit, config).start() else { return };
    let statuses = ask_at_once(&proxy, 4);
    assert!(statuses.iter().all(|status| *status == 502), "{statuses:?}");
    assert_eq!(proxy.metric("sluice_queue_length{cluster=\"default\"}"), 0.0);
    let _origin = come_back();
    poll("the first answer", || (proxy.get("/back").status() == 200).then_some(()));
    let statuses = ask_at_once(&proxy, 4);
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

fn each_limit(mut run: impl FnMut(Value)) {
    run(json!(4));
    run(json!("auto"));
}

#[test]
fn requests_fail_while_the_only_endpoint_is_away() {
    each_limit(|limit| {
        let dead = Dead::new();
        refused_then_served(&[dead.endpoint()], limit, json!({}), || dead.come_back());
    });
}

#[test]
fn requests_fail_while_every_endpoint_is_away() {
    each_limit(|limit| {
        let (dead, others) = (Dead::new(), [Dead::new(), Dead::new()]);
        let endpoints = [others[0].endpoint(), dead.endpoint(), others[1].endpoint()];
        // Each one is tried: a response needs one that is back.
        let config = json!({"retry": {"connect_attempts_max": 3}});
        refused_then_served(&endpoints, limit, config, || dead.come_back());
    });
}

#[test]
fn requests_fail_while_the_endpoint_is_ejected() {
    each_limit(|limit| {
        let dead = Dead::new();
        let config = json!({"ejection": {"consecutive_failures": 2, "time_ms": FOR_EVER_MS}});
        refused_then_served(&[dead.endpoint()], limit, config, || dead.come_back());
    });
}

#[test]
fn requests_fail_while_health_checks_fail() {
    each_limit(|limit| {
        let dead = Dead::new();
        let config = json!({"health_check": {"path": "/up", "interval_ms": 20, "timeout_ms": 20, "unhealthy_after": 1}});
        refused_then_served(&[dead.endpoint()], limit, config, || dead.come_back());
    });
}

#[test]
fn requests_fail_while_a_unix_socket_has_no_listener() {
    each_limit(|limit| {
        let folder = Setup::to(&[]).folder;
        let path = folder.join("origin.sock");
        let origin = || {
            Origin::playing_unix(
                &path,
                |mut peer| while peer.next().is_some() && peer.try_send(ok("back")).is_ok() {},
            )
        };
        refused_then_served(&[format!("unix:{}", path.display())], limit, json!({}), origin);
        std::fs::remove_dir_all(folder).unwrap();
    });
}

#[test]
fn waiting_requests_fail_when_no_endpoint_is_healthy() {
    let origin = Origin::playing(|mut peer| {
        // It accepts a request and responds to nothing more: neither to this one nor to health checks.
        if peer.next().is_some() {
            peer.take(1);
        }
    });
    let config = json!({
        "fail_open": false,
        "health_check": {"path": "/up", "interval_ms": 100, "timeout_ms": 100, "unhealthy_after": 2},
    });
    let Some(proxy) = limited(std::slice::from_ref(&origin.endpoint), json!(1), config).start() else {
        return;
    };
    let mut first = proxy.connect();
    first.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    poll("the first one at its origin", || {
        origin.requests().iter().any(|one| one.target() == "/first").then_some(())
    });
    let second = proxy.get("/second");
    assert_eq!(second.status(), 503);
    assert_eq!(proxy.outcome("/second").1, "no_endpoint");
}

impl Dead {
    /// Starts to serve at the address that has refused connections so far.
    fn come_back(&self) -> Origin {
        Origin::listening(self.listen(), |_| ok("back"))
    }
}
