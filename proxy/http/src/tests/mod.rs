//! The rules of RFC 9110 and RFC 9112 in tables, and properties that hold for any input. One file per step of a
//! message.
#![allow(clippy::unwrap_used)]

mod assembled;
mod chunks;
mod direct_head;
mod framing;
mod odd_heads;
mod properties;
mod request_forward;
mod request_options;
mod requests;
mod response_forward;
mod responses;
mod scan;
mod strict;

use super::*;

pub(super) const LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: 4096, headers_max: 32, target_bytes_max: 1024 };

pub(super) const CHUNK_LIMITS: ChunkLimits = ChunkLimits { line_bytes_max: 64, trailer_bytes_max: 256 };

/// Scans and parses `bytes` as one request head, and judges its framing.
pub(super) fn read_request(bytes: &[u8]) -> Result<(RequestHead, Framing), ParseError> {
    let Scan::Complete(end) = HeadScanner::new().scan(bytes, &LIMITS)? else {
        panic!("incomplete head: {}", bytes.escape_ascii());
    };
    let mut head = RequestHead::new();
    head.parse(&bytes[..end], &LIMITS)?;
    let framing = request_framing(&head)?;
    Ok((head, framing))
}

/// Scans and parses `bytes` as one response head, and judges its framing.
pub(super) fn read_response(bytes: &[u8], method: Method) -> Result<(ResponseHead, Framing), ParseError> {
    let Scan::Complete(end) = HeadScanner::for_response().scan(bytes, &LIMITS)? else {
        panic!("incomplete head: {}", bytes.escape_ascii());
    };
    let mut head = ResponseHead::new();
    head.parse(&bytes[..end], &LIMITS)?;
    let framing = response_framing(&head, method)?;
    Ok((head, framing))
}

/// A GET with these field lines after its Host.
pub(super) fn get_with(fields: &[u8]) -> Vec<u8> {
    [b"GET / HTTP/1.1\r\nHost: a.example\r\n", fields, b"\r\n"].concat()
}

/// A POST with these field lines after its Host.
pub(super) fn post_with(fields: &[u8]) -> Vec<u8> {
    [b"POST / HTTP/1.1\r\nHost: a.example\r\n", fields, b"\r\n"].concat()
}

/// A 200 with these field lines.
pub(super) fn ok_with(fields: &[u8]) -> Vec<u8> {
    [b"HTTP/1.1 200 OK\r\n", fields, b"\r\n"].concat()
}

/// Trailers as they appear after the last chunk.
pub(super) fn lines(trailers: &Trailers) -> Vec<u8> {
    trailers.fields().flat_map(|(name, value)| [name, b": ", value, b"\r\n"].concat()).collect()
}

/// Asserts that `bytes` is refused with `error`.
#[track_caller]
pub(super) fn refused(bytes: &[u8], error: ParseError) {
    match read_request(bytes) {
        Err(found) => assert_eq!(found, error, "{}", bytes.escape_ascii()),
        Ok(_) => panic!("accepted: {}", bytes.escape_ascii()),
    }
}
