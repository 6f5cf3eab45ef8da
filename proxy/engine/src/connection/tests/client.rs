//! A client that asks what the exchanges say, one after the other or all at once, and judges what comes back.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use sluice_net::stream::memory::End;
use tokio::sync::Notify;

use super::exchange::{Coding, Exchange};
use super::peer::{Body, Ended, Fault, Framing, Head, Sink, Source};

/// How long an expectant client waits for a 100 before it sends its body all the same.
const PATIENCE: Duration = Duration::from_millis(500);

/// How a client goes about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    pub(super) seed: u64,
    /// Asks again before it has its answer.
    pub(super) pipelines: bool,
    /// Of reading, and of writing.
    pub(super) faults: [Option<Fault>; 2],
}

/// What came in answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The whole answer of the origin.
    Whole,
    /// An answer of the proxy's own, with this status.
    Local(u16),
    /// A part of the origin's answer, and visibly so.
    Cut,
    /// A part that looks whole, of an answer that its origin delimited by closing.
    Short,
    /// The connection ended with no byte of an answer.
    None,
}

/// What reading and writing tell one another.
#[derive(Default)]
struct Signals {
    answered: Cell<usize>,
    moved: Notify,
    interim: Notify,
}

/// Runs the exchanges from `first` on over one connection, until it ends or they do. The outcomes are those
/// of the exchanges from `first` on, in order.
pub(super) async fn converse(end: End, exchanges: &[Exchange], first: usize, manner: Manner) -> Vec<Outcome> {
    let mut source = Source::new(&end, manner.faults[0]);
    let mut sink = Sink::new(&end, manner.seed, manner.faults[1]);
    drop(end);
    let signals = Signals { answered: Cell::new(first), ..Signals::default() };
    let mut outcomes = Vec::new();
    let reading = read(&mut source, exchanges, first, &signals, &mut outcomes);
    let writing = async {
        match write(&mut sink, exchanges, first, &signals, manner.pipelines).await {
            Err(Ended::Gone) => {}
            // Done, or not heard any more: answers may still come.
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
    outcomes
}

async fn write(
    sink: &mut Sink,
    exchanges: &[Exchange],
    first: usize,
    signals: &Signals,
    pipelines: bool,
) -> Result<(), Ended> {
    for (tag, exchange) in exchanges.iter().enumerate().skip(first) {
        while !pipelines && signals.answered.get() < tag {
            signals.moved.notified().await;
        }
        sink.write(&exchange.request_head(tag)).await?;
        if exchange.expects {
            // A permit of an earlier answer means no more than that the wait is short.
            let _ = tokio::time::timeout(PATIENCE, signals.interim.notified()).await;
        }
        sink.write(&exchange.request_body(tag)).await?;
        if exchange.closes || exchange.old {
            break;
        }
    }
    Ok(())
}

async fn read(
    source: &mut Source,
    exchanges: &[Exchange],
    first: usize,
    signals: &Signals,
    outcomes: &mut Vec<Outcome>,
) {
    for (tag, exchange) in exchanges.iter().enumerate().skip(first) {
        let (outcome, goes_on) = answer(source, exchange, tag, signals).await;
        outcomes.push(outcome);
        signals.answered.set(tag + 1);
        signals.moved.notify_one();
        if !goes_on {
            if matches!(outcome, Outcome::Whole | Outcome::Local(_)) {
                assert_eq!(source.rest().await.0, 0, "bytes behind the last answer");
            }
            return;
        }
        if exchange.closes || exchange.old {
            panic!("the connection was to be closed after {exchange:?}");
        }
    }
}

/// Reads the answer to one request; also whether the connection goes on.
async fn answer(source: &mut Source, exchange: &Exchange, tag: usize, signals: &Signals) -> (Outcome, bool) {
    let mut interim = Vec::new();
    let head = loop {
        let head = match source.head().await {
            Ok(head) => head,
            Err(_) => return (Outcome::None, false),
        };
        signals.interim.notify_one();
        match status(&head) {
            status @ 100..=199 => interim.push(status),
            _ => break head,
        }
    };
    check_interim(&interim, exchange, head.get("x-sluice-reason").is_some());
    let goes_on = head.get("connection").is_none();
    if let Some(reason) = head.get("x-sluice-reason") {
        let Framing::Length(length) = head.framing(Framing::Close) else {
            panic!("an answer of the proxy's own without a length: {head:?}");
        };
        // Who has not read the request cannot know that it was a HEAD.
        let unread = matches!(status(&head), 400 | 408) && !goes_on;
        let length = if exchange.method == "HEAD" && !unread { 0 } else { length };
        let body = source.body(Framing::Length(length)).await;
        let text = String::from_utf8(body.bytes).unwrap();
        let bodiless = exchange.method == "HEAD" && text.is_empty();
        if body.end.is_err() && !bodiless {
            return (Outcome::Cut, false);
        }
        assert!(bodiless || text.contains(reason), "{head:?} {text}");
        return (Outcome::Local(status(&head)), goes_on);
    }
    assert_eq!(status(&head), exchange.answer.status);
    assert_eq!(head.get("x-tag"), Some(tag.to_string().as_str()), "answers out of order");
    let framing = framing(&head, exchange);
    let body = source.body(framing).await;
    judge(&body, exchange, tag, framing, goes_on)
}

fn status(head: &Head) -> u16 {
    let rest = head.line.strip_prefix("HTTP/1.1 ").unwrap_or_else(|| panic!("{head:?}"));
    rest[..3].parse().unwrap()
}

fn check_interim(interim: &[u16], exchange: &Exchange, local: bool) {
    let passed: Vec<u16> = interim.iter().copied().filter(|status| *status != 100).collect();
    let expected: &[u16] = if exchange.old { &[] } else { &exchange.answer.interim };
    assert!(expected.starts_with(&passed), "{interim:?} of {exchange:?}");
    assert!(local || passed == expected, "{interim:?} of {exchange:?}");
    assert!(exchange.expects || passed.len() == interim.len(), "a 100 that was not expected");
}

fn framing(head: &Head, exchange: &Exchange) -> Framing {
    if exchange.is_bodiless() {
        return Framing::Length(0);
    }
    let framing = head.framing(Framing::Close);
    let length = exchange.answer.message.length;
    if exchange.held.1 {
        return held_framing(framing, exchange);
    }
    match (&exchange.answer.message.coding, exchange.old) {
        (Coding::Length | Coding::Old, _) => assert_eq!(framing, Framing::Length(length)),
        (_, true) => assert_eq!(framing, Framing::Close, "an HTTP/1.0 client knows no chunks"),
        (_, false) => assert_eq!(framing, Framing::Chunked),
    }
    framing
}

/// What was held is counted, but where trailers follow. What ends by a close may have ended too soon.
fn held_framing(framing: Framing, exchange: &Exchange) -> Framing {
    let message = &exchange.answer.message;
    match framing {
        Framing::Chunked => assert!(message.has_trailers() && !exchange.old),
        Framing::Length(length) if exchange.ends_by_close() => assert!(length <= message.length),
        _ => {
            assert_eq!(framing, Framing::Length(message.length));
            assert!(!message.has_trailers() || exchange.old);
        }
    }
    framing
}

fn judge(body: &Body, exchange: &Exchange, tag: usize, framing: Framing, goes_on: bool) -> (Outcome, bool) {
    let expected = exchange.answered(tag);
    assert!(expected.starts_with(&body.bytes), "bytes that are not of this answer");
    if body.end.is_err() {
        return (Outcome::Cut, false);
    }
    if body.bytes.len() < expected.len() {
        // An origin that ends such a body too soon cannot be told from one that is done.
        assert!(exchange.ends_by_close(), "a part that looks whole");
        return (Outcome::Short, goes_on);
    }
    if framing == Framing::Chunked {
        let trailers = exchange.answer.message.trailers(!tag);
        assert!(body.trailers == trailers, "{:?}", body.trailers);
    }
    (Outcome::Whole, goes_on)
}

/// Whether the connection goes on after this exchange, if nothing goes wrong.
pub(super) fn stays_open(exchange: &Exchange) -> bool {
    !exchange.closes && !exchange.old
}

/// The exchanges, as clients and origins share them.
pub(super) type Shared = Rc<Vec<Exchange>>;
