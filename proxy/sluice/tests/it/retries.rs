//! Requests that go to another endpoint after an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};

use super::support::{Origin, Proxy, Setup, ok, pattern, poll};

fn failing() -> Origin {
    Origin::answering(|_| {
        let body = pattern(100_000);
        let head = format!(
            "HTTP/1.1 503 Service Unavailable\r\nX-By: app\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), &body].concat()
    })
}

fn before(endpoints: &[&Origin], retry: Value) -> Option<Proxy> {
    let endpoints: Vec<&str> = endpoints.iter().map(|origin| origin.endpoint.as_str()).collect();
    Setup::to(&endpoints)
        .with("clusters.default.balance", "round_robin")
        .with("clusters.default.retry", retry)
        .start()
}

#[test]
fn an_error_sends_a_harmless_request_elsewhere() {
    let (bad, good) = (failing(), Origin::saying("hello"));
    let Some(proxy) = before(&[&bad, &good], json!({"statuses": ["502-504"]})) else { return };
    let mut wire = proxy.connect();
    for _ in 0..6 {
        assert_eq!(wire.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n").text(), "hello");
        let put = wire.ask("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nagain");
        assert_eq!(put.status(), 200);
        assert_eq!((good.last().line.as_str(), good.last().text()), ("PUT / HTTP/1.1", "again"));
    }
    assert!(!bad.requests().is_empty(), "it was tried");
    // What acts twice is not sent twice, and the client gets the application's own response.
    let mut seen = [(); 4].map(|()| wire.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    seen.sort_by_key(|answer| answer.status());
    assert_eq!(seen.each_ref().map(|answer| answer.status()), [200, 200, 503, 503]);
    assert_eq!((seen[3].get("x-by"), seen[3].body.len()), (Some("app"), 100_000));
}

#[test]
fn a_connection_that_breaks_counts_as_502() {
    let breaking = Origin::playing(|mut peer| drop(peer.next()));
    let good = Origin::saying("hello");
    let Some(proxy) = before(&[&breaking, &good], json!({"statuses": [502]})) else { return };
    for _ in 0..4 {
        assert_eq!(proxy.get("/").text(), "hello");
    }
    assert!(!breaking.requests().is_empty());
    let Some(proxy) = before(&[&breaking, &good], json!({"statuses": [503]})) else { return };
    let mut seen = [(); 2].map(|()| proxy.get("/").status());
    seen.sort_unstable();
    assert_eq!(seen, [200, 502], "not if it is not among them");
}

#[test]
fn the_last_error_is_the_response() {
    let (one, two) = (failing(), failing());
    let Some(proxy) = before(&[&one, &two], json!({"statuses": [503], "attempts_max": 5})) else { return };
    let answer = proxy.get("/");
    assert_eq!((answer.status(), answer.get("x-by"), answer.body.len()), (503, Some("app"), 100_000));
    assert_eq!((one.requests().len(), two.requests().len()), (1, 1), "each was asked once");
    let Some(proxy) = before(&[&one], json!({"statuses": [503]})) else { return };
    assert_eq!(proxy.get("/").get("x-by"), Some("app"), "there is no other endpoint");
    assert_eq!(one.requests().len(), 2);
}

#[test]
fn retries_have_a_budget() {
    let (bad, good) = (failing(), Origin::saying("hello"));
    let retry = json!({"statuses": [503], "budget_percent": 1});
    let Some(proxy) = before(&[&bad, &good], retry) else { return };
    let served = (0..60).filter(|_| proxy.get("/").status() == 200).count();
    // A turn of the good one follows each of the bad one; a retry takes a turn as well.
    let sent_again = bad.requests().len() - (60 - served);
    assert_eq!(sent_again, 10, "of {} at the bad one", bad.requests().len());
}

/// An application that does not answer while it is stuck.
fn stuck_while(stuck: &Arc<AtomicBool>, name: &'static str) -> Origin {
    let stuck = Arc::clone(stuck);
    Origin::answering(move |_| {
        while stuck.load(SeqCst) {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        ok(name)
    })
}

#[test]
fn a_second_endpoint_answers_for_one_that_is_stuck() {
    let (never, stuck) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (first, second) = (stuck_while(&stuck, "first"), stuck_while(&never, "second"));
    let retry = json!({"hedge": true, "budget_percent": 100});
    let Some(proxy) = before(&[&first, &second], retry) else { return };
    let mut wire = proxy.connect();
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for _ in 0..120 {
        assert_eq!(wire.ask(get).status(), 200);
    }
    stuck.store(true, SeqCst);
    let before = (first.requests().len(), second.requests().len());
    for number in 0..20 {
        let answer = wire.ask(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(answer.text(), "second", "{number}");
    }
    let asked = (first.requests().len() - before.0, second.requests().len() - before.1);
    assert!(asked.0 > 0 && asked.1 == 20, "{asked:?}");
    let records: Vec<_> = (0..20).map(|number| proxy.record(&format!("/{number}"))).collect();
    assert!(records.iter().all(|record| record["endpoint"] == second.endpoint.as_str()));
    // The times of the one that answered.
    let hedged: Vec<_> = records.iter().filter(|record| record["retries"] == 1).collect();
    assert!(
        !hedged.is_empty()
            && hedged.iter().all(|record| record["upstream_ms"].is_f64() && record["transfer_ms"].is_f64())
    );
    // What changes something waits.
    let mut posts: Vec<_> = (0..2).map(|_| proxy.connect()).collect();
    let post = "PUT /post HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    posts.iter_mut().for_each(|wire| wire.send(post));
    let count =
        |origin: &Origin| origin.requests().iter().filter(|request| request.target() == "/post").count();
    poll("both", || (count(&first) + count(&second) == 2).then_some(()));
    stuck.store(false, SeqCst);
    posts.iter_mut().for_each(|wire| assert_eq!(wire.response().status(), 200));
    assert_eq!(count(&first) + count(&second), 2);
    // The connections that were given up are closed, and everything goes on.
    for _ in 0..20 {
        assert_eq!(wire.ask(get).status(), 200);
    }
}

#[test]
fn second_requests_are_a_part_of_all() {
    let stuck = Arc::new(AtomicBool::new(false));
    let (first, second) = (stuck_while(&stuck, "first"), stuck_while(&stuck, "second"));
    let retry = json!({"hedge": true, "budget_percent": 1});
    let endpoints = [first.endpoint.as_str(), second.endpoint.as_str()];
    let setup = Setup::to(&endpoints).with("clusters.default.retry", retry);
    let Some(proxy) = setup.with("clusters.default.response_timeout", "300ms").start() else { return };
    let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut wire = proxy.connect();
    for _ in 0..120 {
        assert_eq!(wire.ask(get).status(), 200);
    }
    stuck.store(true, SeqCst);
    let before = first.requests().len() + second.requests().len();
    let mut wires: Vec<_> = (0..40).map(|_| proxy.connect()).collect();
    wires.iter_mut().for_each(|wire| wire.send(get));
    wires.iter_mut().for_each(|wire| assert_eq!(wire.response().status(), 504));
    // Ten after a calm, and one of a hundred.
    let asked = first.requests().len() + second.requests().len() - before;
    assert!((40..=51).contains(&asked), "{asked}");
    stuck.store(false, SeqCst);
}
