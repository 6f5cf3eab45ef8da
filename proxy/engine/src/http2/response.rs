//! The head of an answer, from the HTTP/1.1 bytes that our encoder made to HTTP/2 (RFC 9113 section 8.3.2).

use ::http::header::{HeaderMap, HeaderName, HeaderValue};
use ::http::{Response, StatusCode};
use bytes::Bytes;

/// What ends a head.
pub(super) const END: &[u8] = b"\r\n\r\n";

/// How the body ends that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// After as many bytes.
    Length(u64),
    /// With its last chunk.
    Chunked,
    /// When the connection does.
    Close,
}

/// A head as it goes out.
pub(super) struct Head {
    pub(super) response: Response<()>,
    pub(super) declared: Declared,
}

/// The length of the head that `bytes` begin with, if it is whole.
pub(super) fn length(bytes: &[u8]) -> Option<usize> {
    memchr::memmem::find(bytes, END).map(|at| at + END.len())
}

/// Reads a whole head. The fields that are about an HTTP/1.1 connection end here (RFC 9113 section 8.2.2). `None` if
/// it is none that our encoder makes.
pub(super) fn parse(head: &[u8]) -> Option<Head> {
    // Values are slices of one copy.
    let bytes = Bytes::copy_from_slice(head.strip_suffix(END)?);
    let mut lines = Lines { bytes: &bytes, at: 0 };
    let status = lines.next()?.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_bytes(status).ok()?;
    let mut declared = Declared::Close;
    let headers = response.headers_mut();
    while let Some(line) = lines.next() {
        let colon = memchr::memchr(b':', line)?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = bytes.slice_ref(line[colon + 1..].trim_ascii());
        match name.as_str() {
            "transfer-encoding" => declared = Declared::Chunked,
            "connection" | "keep-alive" | "proxy-connection" | "upgrade" | "http2-settings" => {}
            _ => {
                if name == ::http::header::CONTENT_LENGTH {
                    declared = Declared::Length(std::str::from_utf8(&value).ok()?.parse().ok()?);
                }
                push(headers, name, value)?;
            }
        }
    }
    Some(Head { response, declared })
}

/// Reads trailers: lines of fields, each with its end.
pub(super) fn trailers(section: &[u8]) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    let bytes = Bytes::copy_from_slice(section);
    let mut lines = Lines { bytes: &bytes, at: 0 };
    while let Some(line) = lines.next().filter(|line| !line.is_empty()) {
        let colon = memchr::memchr(b':', line)?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        push(&mut fields, name, bytes.slice_ref(line[colon + 1..].trim_ascii()))?;
    }
    Some(fields)
}

/// Appends a field; `None` if its value is none.
pub(super) fn push(fields: &mut HeaderMap, name: HeaderName, value: Bytes) -> Option<()> {
    let value = HeaderValue::from_maybe_shared(value).ok()?;
    fields.try_append(name, value).ok().map(drop)
}

/// The lines of a head or of trailers.
pub(super) struct Lines<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Lines<'a> {
    pub(super) fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let end = memchr::memmem::find(rest, b"\r\n").unwrap_or(rest.len());
        self.at += end + 2;
        Some(&rest[..end])
    }
}
