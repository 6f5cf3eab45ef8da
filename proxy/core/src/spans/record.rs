//! What is kept of a sampled exchange until its spans are built: owned, and bounded in size.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use sluice_http::RequestHead;

use super::{TRACESTATE, Trace, values};
use crate::error::Reason;
use crate::record::{BodyPath, ExchangeRecord};

/// Bytes kept of a target; the rest of a longer one says little in a trace.
const TARGET_BYTES_MAX: usize = 2048;
/// Bytes kept of any other text of the client's.
const TEXT_BYTES_MAX: usize = 256;
/// Bytes of a tracestate that is kept (the specification wants 512 at least).
const STATE_BYTES_MAX: usize = 1024;

/// A sampled exchange that has ended: a few hundred bytes, 5 KB at the most.
///
/// Many fields: one for each attribute of a span.
#[derive(Debug)]
pub struct Record {
    pub(super) trace: Trace,
    /// The caller's tracestate; empty if there is none, or it is too long to keep.
    pub(super) state: String,
    pub(super) started: SystemTime,
    pub(super) duration: Duration,
    pub(super) queue: Option<Duration>,
    pub(super) client: IpAddr,
    pub(super) method: String,
    pub(super) host: String,
    pub(super) target: String,
    pub(super) version: &'static str,
    pub(super) user_agent: String,
    pub(super) request_id: String,
    pub(super) listener: String,
    /// Name and path prefix.
    pub(super) route: Option<(String, String)>,
    pub(super) cluster: Option<String>,
    pub(super) status: u16,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) retries: u32,
    pub(super) reason: Option<Reason>,
    pub(super) path: &'static str,
    pub(super) upstream: Option<Upstream>,
}

/// The last request that was sent to an endpoint. Times count from the begin of the exchange; it lasted to its end.
#[derive(Debug)]
pub struct Upstream {
    /// `name:port`, an address, or `unix:` and a path.
    pub host: String,
    /// The address that was connected to.
    pub address: String,
    /// What was asked for.
    pub target: Vec<u8>,
    /// The begin of connecting, or of sending on an idle connection.
    pub began: Duration,
    /// How long connecting took.
    pub connect: Option<Duration>,
    /// From the request sent to the first byte of the response, if one came.
    pub first_byte: Option<Duration>,
    /// The origin's own, if one was passed on.
    pub status: Option<u16>,
}

impl Record {
    /// What is kept of an exchange. `prefix` is the route's.
    pub fn of(
        trace: Trace,
        head: &RequestHead,
        exchange: &ExchangeRecord<'_>,
        prefix: &str,
        upstream: Option<Upstream>,
    ) -> Self {
        Self {
            state: if trace.is_new() { String::new() } else { state(head) },
            trace,
            started: exchange.started,
            duration: exchange.duration,
            queue: exchange.queue,
            client: exchange.client,
            method: text(exchange.method, TEXT_BYTES_MAX),
            host: text(exchange.host, TEXT_BYTES_MAX),
            target: text(exchange.target, TARGET_BYTES_MAX),
            version: exchange.version,
            user_agent: text(exchange.user_agent, TEXT_BYTES_MAX),
            request_id: text(exchange.request_id, TEXT_BYTES_MAX),
            listener: exchange.listener.to_owned(),
            route: exchange.route.map(|(_, name)| (name.to_owned(), prefix.to_owned())),
            cluster: exchange.cluster.map(str::to_owned),
            status: exchange.status,
            bytes_in: exchange.bytes_in,
            bytes_out: exchange.bytes_out,
            retries: exchange.retries,
            reason: exchange.reason,
            path: exchange.path.map_or("-", BodyPath::word),
            upstream: upstream.map(|mut upstream| {
                upstream.target.truncate(TARGET_BYTES_MAX);
                upstream
            }),
        }
    }

    /// How many spans it becomes.
    pub(super) fn spans(&self) -> usize {
        spans(self.upstream.is_some())
    }
}

/// How many spans an exchange becomes.
pub(super) fn spans(has_upstream: bool) -> usize {
    1 + usize::from(has_upstream)
}

/// What of these bytes fits, as UTF-8.
pub(super) fn text(bytes: &[u8], max: usize) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(max)]).into_owned()
}

/// All fields as one list (section 3.3 of the specification).
fn state(head: &RequestHead) -> String {
    let mut state = String::new();
    for value in values(head, TRACESTATE).filter(|value| !value.is_empty()) {
        if state.len() + value.len() >= STATE_BYTES_MAX {
            return String::new();
        }
        if !state.is_empty() {
            state.push(',');
        }
        state.push_str(&String::from_utf8_lossy(value));
    }
    state
}
