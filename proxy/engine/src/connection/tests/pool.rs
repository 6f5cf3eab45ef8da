//! Idle upstream connections: what makes one unusable, and what happens to a request that meets one.

use std::cell::Cell;
use std::rc::Rc;

use super::client::{Manner, Outcome, Shared, converse};
use super::exchange::Exchange;
use super::peer::{Sink, Source};
use super::*;

/// How an origin treats its connections.
#[derive(Clone, Copy)]
enum Trick {
    /// Closes each after its first response, without announcing it.
    Closes,
    /// As before, but only when the next request has arrived.
    ClosesAtTheNext,
    /// Sends more than was requested, at once.
    SaysMore,
    /// As before, but later.
    SaysMoreLater,
    /// Closes the first connection at its second request, and every other one at its first.
    Dies,
    Behaves,
}

async fn play(trick: Trick, number: usize, end: End, exchanges: Shared, requests: Rc<Cell<usize>>) {
    let mut source = Source::new(&end, None);
    let mut sink = Sink::new(&end, 1, None);
    drop(end);
    for served in 0.. {
        let Ok(head) = source.head().await else {
            return;
        };
        let tag: usize = head.get("x-tag").unwrap().parse().unwrap();
        source.body(head.framing(super::peer::Framing::Length(0))).await;
        requests.set(requests.get() + 1);
        let dies = match trick {
            Trick::ClosesAtTheNext => served == 1,
            Trick::Dies => served == 1 || number > 0,
            _ => false,
        };
        if dies {
            return;
        }
        let mut response = exchanges[tag].response(tag);
        if matches!(trick, Trick::SaysMore) {
            response.extend_from_slice(b"HTTP/1.1 200 OK\r\nX-Tag: 1\r\nContent-Length: 4\r\n\r\nevil");
        }
        sink.write(&response).await.unwrap();
        match trick {
            Trick::Closes => return,
            Trick::SaysMoreLater => {
                tokio::time::sleep(Duration::from_millis(50)).await;
                // The proxy may have noticed and closed by now, at a second such response.
                let _ = sink.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil").await;
            }
            _ => {}
        }
    }
}

/// Two exchanges with a pause between; returns their outcomes, the number of requests that origins got, and the number
/// of connections to them.
fn two(trick: Trick, exchanges: Vec<Exchange>) -> (Vec<Outcome>, usize, usize) {
    let exchanges: Shared = Rc::new(exchanges);
    let requests = Rc::new(Cell::new(0));
    let (counter, script) = (Rc::clone(&requests), Rc::clone(&exchanges));
    let (network, origins) =
        network(CALM, move |number, end| play(trick, number, end, Rc::clone(&script), Rc::clone(&counter)));
    run(async {
        // Idle connections are timed by the machine's clock, which a loaded machine may exceed.
        let proxy =
            Proxy::new("", "pool: {idle_timeout_ms: 3600000}, balance: {hash: client_address},", network);
        let end = proxy.connect(CALM);
        let manner = Manner { seed: 3, pipelines: false, faults: [None, None] };
        let mut outcomes = Vec::new();
        outcomes.extend(converse(end, &exchanges[..1], 0, manner).await);
        tokio::time::sleep(Duration::from_millis(200)).await;
        outcomes.extend(converse(proxy.connect(CALM), &exchanges, 1, manner).await);
        proxy.finish().await;
        let connections = origins.borrow().len();
        ended(&origins).await;
        (outcomes, requests.get(), connections)
    })
}

const WHOLE: [Outcome; 2] = [Outcome::Whole; 2];

#[test]
fn an_idle_connection_is_reused() {
    assert_eq!(two(Trick::Behaves, vec![Exchange::get(5), Exchange::post(5)]), (WHOLE.to_vec(), 2, 1));
}

#[test]
fn a_closed_connection_is_not_reused() {
    assert_eq!(two(Trick::Closes, vec![Exchange::get(5), Exchange::post(5)]), (WHOLE.to_vec(), 2, 2));
}

#[test]
fn an_idempotent_request_on_a_dying_connection_is_retried() {
    let outcome = two(Trick::ClosesAtTheNext, vec![Exchange::get(5), Exchange::get(6)]);
    assert_eq!(outcome, (WHOLE.to_vec(), 3, 2));
}

#[test]
fn a_retried_request_includes_its_body() {
    let put = Exchange { method: "PUT", ..Exchange::post(1000) };
    let outcome = two(Trick::ClosesAtTheNext, vec![Exchange::get(5), put]);
    assert_eq!(outcome, (WHOLE.to_vec(), 3, 2));
}

#[test]
fn a_delivered_post_is_not_retried() {
    let outcome = two(Trick::ClosesAtTheNext, vec![Exchange::get(5), Exchange::post(5)]);
    assert_eq!(outcome, (vec![Outcome::Whole, Outcome::Local(502)], 2, 1));
}

#[test]
fn a_request_is_retried_once() {
    let outcome = two(Trick::Dies, vec![Exchange::get(5), Exchange::get(6)]);
    assert_eq!(outcome, (vec![Outcome::Whole, Outcome::Local(502)], 3, 2));
}

#[test]
fn idle_connection_with_unread_bytes_is_not_reused() {
    for trick in [Trick::SaysMore, Trick::SaysMoreLater] {
        assert_eq!(two(trick, vec![Exchange::get(5), Exchange::get(4)]), (WHOLE.to_vec(), 2, 2));
    }
}
