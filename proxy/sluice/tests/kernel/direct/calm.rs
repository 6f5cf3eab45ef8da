//! Small responses use direct return while few exchanges of a worker wait for responses: by default, up to four.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use super::{LANDED, exchanges, missed};
use crate::proxy_support::{Origin, Proxy, Setup, Wire, ok, poll};

const SMALL: &str = "GET /small HTTP/1.1\r\nHost: a\r\n\r\n";

/// Asks until a response has used direct return, or fails after some.
fn ask_until_direct(proxy: &Proxy, wire: &mut Wire) {
    let before = exchanges(proxy);
    poll("a small response by direct return", || {
        assert_eq!(wire.ask(SMALL).text(), "/small");
        (exchanges(proxy) > before).then_some(())
    });
}

#[test]
#[ignore = "needs root and BPF"]
fn small_responses_use_it_unless_many_exchanges_wait() {
    if !LANDED {
        return;
    }
    let (release, held) = mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let (arrived, arrivals) = mpsc::channel();
    let arrived = Mutex::new(arrived);
    let origin = Origin::playing(move |mut peer| {
        while let Some(request) = peer.next() {
            if request.target() == "/events" {
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n.\r\n");
                continue;
            }
            if request.target() == "/held" {
                arrived.lock().unwrap().send(()).unwrap();
                if held.lock().unwrap().recv().is_err() {
                    return;
                }
            }
            if peer.try_send(ok(request.target())).is_err() {
                return;
            }
        }
    });
    let setup = Setup::to_origin(&origin).with("workers", 1).with("kernel.bypass", "required");
    let proxy = setup.with("kernel.direct_return", "required").start().unwrap();
    let mut quick = proxy.connect();
    ask_until_direct(&proxy, &mut quick);

    // Responses that sluice copies do not count, however long they take.
    let mut events: Vec<Wire> = (0..8).map(|_| proxy.connect()).collect();
    for wire in &mut events {
        wire.send("GET /events HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(wire.head().status(), 200);
    }
    ask_until_direct(&proxy, &mut quick);

    let mut slow: Vec<Wire> = (0..4).map(|_| proxy.connect()).collect();
    for wire in &mut slow {
        wire.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
        arrivals.recv().unwrap();
    }
    assert!(!missed(&proxy).contains("small"), "{}", missed(&proxy));
    // The fifth.
    assert_eq!(quick.ask(SMALL).text(), "/small");
    poll("a small response that was not returned directly", || {
        missed(&proxy).contains("small 1").then_some(())
    });

    slow.iter().for_each(|_| release.send(()).unwrap());
    for wire in &mut slow {
        assert_eq!(wire.response().text(), "/held");
    }
    ask_until_direct(&proxy, &mut quick);
}
