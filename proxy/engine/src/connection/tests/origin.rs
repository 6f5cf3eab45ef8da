//! An origin that responds as the exchanges define, and records the requests.

use std::cell::RefCell;
use std::rc::Rc;

use sluice_net::stream::memory::End;

use super::exchange::Exchange;
use super::peer::{Body, Ended, Fault, Framing, Head, Sink, Source};

/// A request as received by an origin.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) tag: usize,
    pub(super) body: Vec<u8>,
    /// Whether the whole body arrived.
    pub(super) whole: bool,
    pub(super) trailers: Vec<String>,
}

/// State shared by all origins of a test.
pub(super) struct Script {
    pub(super) exchanges: Rc<Vec<Exchange>>,
    pub(super) seen: RefCell<Vec<Seen>>,
}

impl Script {
    pub(super) fn new(exchanges: &Rc<Vec<Exchange>>) -> Rc<Self> {
        Rc::new(Self { exchanges: Rc::clone(exchanges), seen: RefCell::default() })
    }
}

/// Serves one connection until it ends, with `faults` of reading and of writing.
pub(super) async fn serve(script: Rc<Script>, end: End, seed: u64, faults: [Option<Fault>; 2]) {
    let mut source = Source::new(&end, faults[0]);
    let mut sink = Sink::new(&end, seed, faults[1]);
    drop(end);
    loop {
        match exchange(&script, &mut source, &mut sink).await {
            Ok(true) => {}
            // An origin that ends its side first continues to read; otherwise bytes in flight would reset its response.
            Ok(false) => {
                sink.finish();
                source.rest().await;
                return;
            }
            Err(Ended::Silent) => {
                source.rest().await;
                return;
            }
            Err(_) => return,
        }
    }
}

/// One request and its response; returns whether there may be another.
async fn exchange(script: &Script, source: &mut Source, sink: &mut Sink) -> Result<bool, Ended> {
    let head = source.head().await?;
    let tag: usize = head.get("x-tag").unwrap().parse().unwrap();
    let exchange = &script.exchanges[tag];
    check_head(&head, exchange, tag);
    let slot = script.seen.borrow().len();
    script.seen.borrow_mut().push(Seen { tag, body: Vec::new(), whole: false, trailers: Vec::new() });
    sink.write(&exchange.interim_heads()).await?;
    if exchange.expects && head.get("expect").is_some() {
        sink.write(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let framing = head.framing(Framing::Length(0));
    match exchange.answer.early {
        None => {
            let body = source.body(framing).await;
            record(script, slot, body)?;
            sink.write(&exchange.response(tag)).await?;
        }
        Some(early) => answer_early(script, slot, (source, sink), framing, early).await?,
    }
    Ok(!exchange.ends_upstream())
}

/// Responds when `early` bytes of the body have arrived, and continues to read.
async fn answer_early(
    script: &Script,
    slot: usize,
    (source, sink): (&mut Source, &mut Sink),
    framing: Framing,
    early: usize,
) -> Result<(), Ended> {
    let tag = script.seen.borrow()[slot].tag;
    let response = script.exchanges[tag].response(tag);
    if framing == Framing::Chunked {
        // Only the first bytes matter; where a chunk ends does not.
        source.wait().await?;
    }
    let Framing::Length(length) = framing else {
        let (body, written) = tokio::join!(source.body(framing), sink.write(&response));
        return record(script, slot, body).and(written);
    };
    let mut first = Vec::new();
    let mut body = match source.read(early, &mut first).await {
        Err(end) => Body { bytes: first, trailers: Vec::new(), end: Err(end) },
        Ok(()) => {
            let rest = source.body(Framing::Length(length - early));
            let (rest, written) = tokio::join!(rest, sink.write(&response));
            first.extend_from_slice(&rest.bytes);
            if rest.end.is_ok() {
                written?;
            }
            Body { bytes: first, ..rest }
        }
    };
    body.trailers.clear();
    record(script, slot, body)
}

fn record(script: &Script, slot: usize, body: Body) -> Result<(), Ended> {
    let seen = &mut script.seen.borrow_mut()[slot];
    seen.body = body.bytes;
    seen.whole = body.end.is_ok();
    seen.trailers = body.trailers;
    body.end
}

/// Encoding of heads is tested elsewhere; this checks that the head belongs to this request.
fn check_head(head: &Head, exchange: &Exchange, tag: usize) {
    assert_eq!(head.line, format!("{} /{tag} HTTP/1.1", exchange.method));
    let expected = match &exchange.body {
        None => Framing::Length(0),
        Some(body) if exchange.held.0 && !body.has_trailers() => Framing::Length(body.length),
        Some(body) => match body.coding {
            super::exchange::Coding::Chunked { .. } => Framing::Chunked,
            _ => Framing::Length(body.length),
        },
    };
    assert_eq!(head.framing(Framing::Length(0)), expected);
}
