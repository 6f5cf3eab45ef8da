//! Traces: an exchange's position in a trace, and the data kept until its spans are built.
//!
//! When an exchange begins, a worker decides whether it is sampled and tells the origin in traceparent. When a sampled
//! exchange ends, the worker hands over its data. The control thread builds, encodes and sends spans. The buffer in
//! between is limited; what does not fit is dropped and counted. No exchange waits for any of this.

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

/// An exchange's position in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    trace_id: u128,
    /// The caller's span, if the caller started the trace.
    parent: Option<u64>,
    /// The span of the exchange.
    server: u64,
    /// The span of the request to the origin, a child of `server`.
    client: u64,
    sampled: bool,
    random: bool,
}

impl Trace {
    /// Continues the trace of the request, or starts one. A trusted proxy's sampling decision is kept. For other
    /// clients `ratio` decides; otherwise anyone could cause any number of spans.
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

    /// Whether spans are built for the exchange.
    pub fn is_sampled(&self) -> bool {
        self.sampled
    }

    /// Whether the trace started here: a received tracestate then belongs to another trace.
    pub fn is_new(&self) -> bool {
        self.parent.is_none()
    }

    /// The traceparent sent to the origin.
    pub fn traceparent(&self) -> [u8; TRACEPARENT_BYTES] {
        self.context().render()
    }

    /// The id of the trace.
    pub fn trace_id(&self) -> u128 {
        self.trace_id
    }

    /// The span of the exchange, and the caller's span, if there is one.
    pub fn server_span(&self) -> (u64, Option<u64>) {
        (self.server, self.parent)
    }

    /// The span of the request to the origin.
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

/// The context of the request's only traceparent; two of them are ignored.
fn context(head: &RequestHead) -> Option<Context> {
    let mut values = values(head, TRACEPARENT);
    let value = values.next()?;
    values.next().is_none().then(|| Context::parse(value))?
}

fn values<'h>(head: &'h RequestHead, name: &'static [u8]) -> impl Iterator<Item = &'h [u8]> {
    head.fields().filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
}
