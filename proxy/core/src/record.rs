//! The data of one finished exchange, read by both the metrics and the access log.
//!
//! Borrowed from the data path for the length of a call; nothing is kept.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use crate::error::Reason;

/// The path that the bytes of an exchange took between client and endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyPath {
    /// Through sluice's buffers.
    Copy,
    /// Through sluice's buffers, over a connection to the endpoint that is joined past loopback TCP.
    Bypass,
    /// The response went from the endpoint to the client directly.
    Direct,
    /// The kernel forwarded them, in a tunnel.
    Splice,
}

impl BodyPath {
    /// All paths; the index is the path's number.
    pub const ALL: [Self; 4] = [Self::Copy, Self::Bypass, Self::Direct, Self::Splice];

    /// The word used in logs and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Bypass => "bypass",
            Self::Direct => "direct",
            Self::Splice => "splice",
        }
    }
}

/// One finished exchange.
///
/// Many fields: one for each value that a line of the log can contain.
#[derive(Clone, Debug)]
pub struct ExchangeRecord<'a> {
    /// When the first byte of the request was read.
    pub started: SystemTime,
    /// From then to the last byte written.
    pub duration: Duration,
    /// Time spent in the cluster's queue; `None` when there was no cluster.
    pub queue: Option<Duration>,
    /// Time spent connecting upstream; `None` on a reused connection, or when there was none.
    pub connect: Option<Duration>,
    /// From the request sent to the first byte of the response.
    pub upstream: Option<Duration>,
    /// From the first byte of the response to its last byte.
    pub transfer: Option<Duration>,
    /// The client, as determined from the PROXY protocol and trusted proxies.
    pub client: IpAddr,
    /// Name of the listener.
    pub listener: &'a str,
    /// Id (unique in the process) and name of the route.
    pub route: Option<(u32, &'a str)>,
    /// Name of the cluster.
    pub cluster: Option<&'a str>,
    /// Id (unique over all clusters) and label of the endpoint.
    pub endpoint: Option<(u32, &'a str)>,
    /// Method as sent; empty when the request line could not be parsed.
    pub method: &'a [u8],
    /// Host as sent.
    pub host: &'a [u8],
    /// Request target as sent, including the query.
    pub target: &'a [u8],
    /// Version of the request, as in its request line.
    pub version: &'static str,
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
    /// The path of its bytes, if it was to be forwarded.
    pub path: Option<BodyPath>,
    /// X-Request-Id, received or generated.
    pub request_id: &'a [u8],
    /// Who sent the request, if the route asks for it; else empty.
    pub user: &'a str,
    /// User-Agent; empty when absent.
    pub user_agent: &'a [u8],
    /// Referer; empty when absent.
    pub referer: &'a [u8],
    /// What a service logs in addition to the configured fields: keys of ASCII letters, digits, `_` and `.`, and
    /// values.
    pub fields: &'a [(&'a str, Vec<u8>)],
}

#[cfg(any(test, feature = "fake"))]
impl ExchangeRecord<'static> {
    /// An ordinary exchange that tests can modify.
    pub fn sample() -> Self {
        Self {
            started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_795_255_200_042),
            duration: Duration::from_micros(12_345),
            queue: Some(Duration::ZERO),
            connect: None,
            upstream: Some(Duration::from_micros(9_001)),
            transfer: Some(Duration::from_micros(3_000)),
            client: IpAddr::from([192, 0, 2, 7]),
            listener: "web",
            route: Some((0, "app")),
            cluster: Some("puma"),
            endpoint: Some((3, "127.0.0.1:3000")),
            method: b"GET",
            host: b"example.com",
            target: b"/a?b=c",
            version: "HTTP/1.1",
            status: 200,
            bytes_in: 0,
            bytes_out: 512,
            retries: 0,
            reason: None,
            path: Some(BodyPath::Copy),
            request_id: b"id-1",
            user: "",
            user_agent: b"curl/8",
            referer: b"",
            fields: &[],
        }
    }
}
