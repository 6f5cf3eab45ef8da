//! The data of a sampled exchange until its spans are built: owned, and limited in size.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use sluice_http::RequestHead;

use super::{TRACESTATE, Trace, values};
use crate::error::Reason;
use crate::record::{BodyPath, ExchangeRecord};

/// Bytes kept of a target; the rest of a longer target is of little use in a trace.
const TARGET_BYTES_MAX: usize = 2048;
/// Bytes kept of any other text sent by the client.
const TEXT_BYTES_MAX: usize = 256;
/// Bytes kept of a tracestate (the specification requires at least 512).
const STATE_BYTES_MAX: usize = 1024;

/// A sampled exchange that has ended: a few hundred bytes, at most 5 KB.
///
/// Many fields: one for each attribute of a span.
#[derive(Debug)]
pub struct Record {
    /// Its position in a trace.
    pub trace: Trace,
    /// The caller's tracestate; empty if there is none, or if it is too long to keep.
    pub state: String,
    /// When its first byte was read.
    pub started: SystemTime,
    /// From then to the last byte written.
    pub duration: Duration,
    /// Time in its cluster's queue.
    pub queue: Option<Duration>,
    /// The client's address.
    pub client: IpAddr,
    /// The method as sent.
    pub method: String,
    /// The host as sent.
    pub host: String,
    /// The target as sent.
    pub target: String,
    /// The version in its request line.
    pub version: &'static str,
    /// User-Agent.
    pub user_agent: String,
    /// X-Request-Id.
    pub request_id: String,
    /// Name of the listener.
    pub listener: String,
    /// Name and path prefix of the route.
    pub route: Option<(String, String)>,
    /// Name of the cluster.
    pub cluster: Option<String>,
    /// Status that was sent, or only logged (499).
    pub status: u16,
    /// Body bytes read from the client.
    pub bytes_in: u64,
    /// Bytes written to the client.
    pub bytes_out: u64,
    /// Attempts beyond the first.
    pub retries: u32,
    /// Why it did not end with the origin's own response.
    pub reason: Option<Reason>,
    /// The path of its bytes.
    pub path: &'static str,
    /// The request to an endpoint.
    pub upstream: Option<Upstream>,
}

/// The last request that was sent to an endpoint. Times count from the start of the exchange; the request lasted until
/// the end of the exchange.
#[derive(Debug)]
pub struct Upstream {
    /// `name:port`, an address, or `unix:` and a path.
    pub host: String,
    /// The address that was connected to.
    pub address: String,
    /// The target of the request.
    pub target: Vec<u8>,
    /// The start of connecting, or of sending on an idle connection.
    pub began: Duration,
    /// How long connecting took.
    pub connect: Option<Duration>,
    /// From the request sent to the first byte of the response, if one came.
    pub first_byte: Option<Duration>,
    /// The origin's status, if its response was forwarded.
    pub status: Option<u16>,
}

impl Record {
    /// The record of an exchange. `prefix` is the route's.
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

    /// The number of its spans.
    pub fn spans(&self) -> usize {
        spans(self.upstream.is_some())
    }
}

/// The number of spans of an exchange.
pub(super) fn spans(has_upstream: bool) -> usize {
    1 + usize::from(has_upstream)
}

/// The first `max` bytes, as UTF-8.
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
