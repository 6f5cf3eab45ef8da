//! Requests whose body is not completely read: the rest must never be parsed as a request, by either side.

use std::cell::RefCell;
use std::rc::Rc;

use tokio::time::sleep;

use super::peer::{Ended, Framing, Sink, Source};
use super::*;

/// Sends a response at once, but reads so little of a request that its beginning is still in flight when the rest
/// arrives.
const NARROW: Behaviour = Behaviour { capacity: 100, ..CALM };

/// Bytes of a body that arrive with its head.
const FIRST_BYTES: usize = 500;

/// What an attacker wants to be parsed as a request.
const HIDDEN: &[u8] = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

async fn pause(milliseconds: u64) {
    sleep(Duration::from_millis(milliseconds)).await;
}

/// A body in chunks, or with a length, that ends in [`HIDDEN`]: its head with the beginning of the body, and the rest.
fn post(chunked: bool) -> (Vec<u8>, Vec<u8>) {
    let (framing, first, rest) = if chunked {
        let rest = format!("{:x}\r\n{}\r\n0\r\n\r\n", HIDDEN.len(), std::str::from_utf8(HIDDEN).unwrap());
        let first = format!("{FIRST_BYTES:x}\r\n{}\r\n", "a".repeat(FIRST_BYTES));
        ("Transfer-Encoding: chunked".to_owned(), first, rest.into_bytes())
    } else {
        let framing = format!("Content-Length: {}", FIRST_BYTES + HIDDEN.len());
        (framing, "a".repeat(FIRST_BYTES), HIDDEN.to_vec())
    };
    (format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{first}").into_bytes(), rest)
}

/// The origin dies while the end of the body waits for the beginning to leave.
#[test]
fn an_unread_body_is_not_parsed_as_a_request() {
    for chunked in [false, true] {
        let (network, origins) = network(NARROW, |_, end| async move {
            pause(2000).await;
            end.reset();
        });
        run(async {
            let proxy = Proxy::new("", "", network);
            let end = proxy.connect(CALM);
            let (mut source, mut sink) = (Source::new(&end, None), Sink::new(&end, 1, None));
            drop(end);
            let (first, rest) = post(chunked);
            sink.write(&first).await.unwrap();
            pause(500).await;
            sink.write(&rest).await.unwrap();
            let head = source.head().await.unwrap();
            assert_eq!(head.get("x-sluice-reason"), Some("upstream_closed"));
            source.body(head.framing(Framing::Close)).await;
            if head.get("connection").is_some() {
                assert_eq!(source.rest().await, (0, Ended::Eof));
            }
            drop((source, sink));
            proxy.finish().await;
            assert_eq!(origins.borrow().len(), 1, "the rest of the body was parsed as a request");
        });
    }
}

/// The origin responds while the end of the body waits for the beginning to leave, and only then reads on.
#[test]
fn a_connection_with_an_unfinished_request_body_is_not_reused() {
    for chunked in [false, true] {
        let lines = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&lines);
        let (network, origins) = network(NARROW, move |_, end| early_origin(end, Rc::clone(&seen)));
        run(async {
            let proxy = Proxy::new("", "pool: {idle_timeout_ms: 3600000},", network);
            let end = proxy.connect(CALM);
            let (mut source, mut sink) = (Source::new(&end, None), Sink::new(&end, 1, None));
            let (first, rest) = post(chunked);
            sink.write(&first).await.unwrap();
            pause(500).await;
            sink.write(&rest).await.unwrap();
            assert_eq!(source.head().await.unwrap().line, "HTTP/1.1 200 early");
            pause(3000).await;
            let other = proxy.connect(CALM);
            Sink::new(&other, 1, None).write(b"GET /next HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
            assert_eq!(Source::new(&other, None).head().await.unwrap().line, "HTTP/1.1 200 early");
            drop((source, sink, end, other));
            proxy.finish().await;
            ended(&origins).await;
        });
        assert_eq!(*lines.borrow(), ["POST / HTTP/1.1", "GET /next HTTP/1.1"]);
    }
}

/// Reads a head, responds, and reads on at once; keeps the request lines.
async fn early_origin(end: End, lines: Rc<RefCell<Vec<String>>>) {
    let (mut source, mut sink) = (Source::new(&end, None), Sink::new(&end, 1, None));
    drop(end);
    while let Ok(head) = source.head().await {
        lines.borrow_mut().push(head.line.clone());
        pause(1000).await;
        if sink.write(b"HTTP/1.1 200 early\r\nContent-Length: 0\r\n\r\n").await.is_err() {
            return;
        }
        source.body(head.framing(Framing::Length(0))).await;
    }
}
