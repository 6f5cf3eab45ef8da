//! Limits of one downstream connection. Defaults and ranges are in `defaults`, except for those of HTTP/2 and HTTP/3.

use super::http2::Http2Limits;
use super::http3::Http3Limits;

/// Limits of one downstream connection. Every key may be set for all listeners or for one.
///
/// Many fields: one for each key of `limits`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of a request head, request line included (431 beyond).
    pub head_bytes_max: usize,
    /// Fields of a request head (431 beyond).
    pub headers_max: usize,
    /// Bytes of the request target (414 beyond).
    pub target_bytes_max: usize,
    /// Bytes of a request body (413 beyond).
    pub body_bytes_max: u64,
    /// Bytes of a request body that must arrive in a second of waiting, after the first ten; 0 is any number (408 below).
    pub receive_rate_bytes_min: u64,
    /// Bytes of one chunk-size line with its extensions.
    pub chunk_line_bytes_max: usize,
    /// Bytes of a trailer section.
    pub trailer_bytes_max: usize,
    /// Open downstream connections of the listener, over all workers.
    pub connections_max: usize,
    /// Open connections of one client; 0 is no limit.
    pub connections_per_client_max: usize,
    /// From the first byte of a head to its last, in milliseconds (408 beyond).
    pub header_timeout_ms: u64,
    /// How long an idle connection is kept, in milliseconds.
    pub keep_alive_timeout_ms: u64,
    /// Exchanges on one connection before it is closed.
    pub requests_per_connection_max: u64,
    /// How long sluice waits after a client shut down its writing side, in milliseconds.
    pub half_close_timeout_ms: u64,
    /// Bytes of an unread request body that are read and dropped to keep the connection.
    pub drain_bytes_max: u64,
    /// Time limit for that, in milliseconds.
    pub drain_body_timeout_ms: u64,
    /// Bytes of large body buffers that a worker may use; beyond it, bodies use small pieces.
    pub body_buffers_bytes_max: usize,
    /// Limits of an HTTP/2 connection, in addition to these.
    pub http2: Http2Limits,
    /// Limits of an HTTP/3 connection, in addition to these.
    pub http3: Http3Limits,
}
