//! Traces: an exchange's place in one, and what is kept of it until its spans are built.
//!
//! A worker decides when an exchange begins whether it is sampled, tells the origin so in traceparent, and at its end
//! hands over what is to be known of a sampled one. The control thread builds, encodes and sends spans; the buffer in
//! between is bounded, and what does not fit is dropped and counted. No exchange waits for any of it.

mod buffer;
mod context;
mod record;
#[cfg(test)]
mod tests;

use sluice_http::RequestHead;

pub use buffer::{Buffered, Tracer, buffer};
use context::Context;
pub(crate) use context::TRACEPARENT_BYTES;
pub use record::{Record, Upstream};

/// Fields of the trace context, in lower case.
const TRACEPARENT: &[u8] = b"traceparent";
/// See [`TRACEPARENT`].
const TRACESTATE: &[u8] = b"tracestate";

/// An exchange's place in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    trace_id: u128,
    /// The caller's span, if the trace is the caller's.
    parent: Option<u64>,
    /// The span of the exchange.
    server: u64,
    /// The span of what is asked of the origin, child of `server`.
    client: u64,
    sampled: bool,
    random: bool,
}

impl Trace {
    /// Continues the trace that the request is part of, or begins one. What a trusted proxy has decided about sampling
    /// holds; for others it is `ratio` that decides, or anybody could have any number of spans made.
    pub fn begin(head: &RequestHead, trusted: bool, ratio: f64, random: &mut fastrand::Rng) -> Self {
        let caller = context(head);
        let sampled = match caller {
            Some(caller) if trusted => caller.sampled,
            _ => random.f64() < ratio,
        };
        Self {
            trace_id: caller.map_or_else(|| random.u128(1..), |caller| caller.trace_id),
            parent: caller.map(|caller| caller.span_id),
            server: random.u64(1..),
            client: random.u64(1..),
            sampled,
            random: caller.is_none_or(|caller| caller.random),
        }
    }

    /// Whether spans are made of the exchange.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// Whether the trace began here: then what came as tracestate is not about it.
    pub fn is_new(&self) -> bool {
        self.parent.is_none()
    }

    /// What the origin is told.
    pub fn traceparent(&self) -> [u8; TRACEPARENT_BYTES] {
        self.context().render()
    }

    /// What names the trace.
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// The span of the exchange, and that of the caller, if there is one.
    pub fn server_span(&self) -> (u64, Option<u64>) {
        (self.server, self.parent)
    }

    /// The span of what is asked of the origin.
    pub fn client_span(&self) -> u64 {
        self.client
    }

    /// The flags of traceparent.
    pub fn flags(&self) -> u8 {
        self.context().flags()
    }

    fn context(&self) -> Context {
        let Self { trace_id, client, sampled, random, .. } = *self;
        Context { trace_id, span_id: client, sampled, random }
    }
}

/// What the request's only traceparent says; two of them say nothing.
fn context(head: &RequestHead) -> Option<Context> {
    let mut values = values(head, TRACEPARENT);
    let value = values.next()?;
    values.next().is_none().then(|| Context::parse(value))?
}

fn values<'h>(head: &'h RequestHead, name: &'static [u8]) -> impl Iterator<Item = &'h [u8]> {
    head.fields().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
}
