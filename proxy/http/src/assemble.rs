//! Heads that arrive as fields, in a protocol with frames (RFC 9113 section 8). They fill the same head as the text of
//! HTTP/1.1.

use super::error::ParseError;
use super::fields::{Fields, LINE_BYTES};
use super::grammar::{is_field_value, is_token};
use super::kind::FieldKind;
use super::method::Version;
use super::scan::HeadLimits;

/// The parts of a request that are not fields.
#[derive(Clone, Copy, Debug)]
pub struct RequestParts<'a> {
    /// The version of the protocol.
    pub version: Version,
    /// The method; GET for a WebSocket.
    pub method: &'a [u8],
    /// Path and query, or `*`; for CONNECT the authority.
    pub target: &'a [u8],
    /// The authority, if it was sent separately from a Host field.
    pub authority: Option<&'a [u8]>,
    /// Whether the stream ends with the head.
    pub ended: bool,
    /// For a request that opens a WebSocket (RFC 8441): the Sec-WebSocket-Key that it would have in HTTP/1.1.
    pub websocket: Option<&'a [u8]>,
}

/// How the rest of the stream of a request is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFraming {
    /// There is no body.
    None,
    /// A body with a declared length.
    Length,
    /// A body that ends with its stream.
    Stream,
    /// Opaque bytes, once the other side has accepted (RFC 8441, RFC 9220).
    Tunnel,
}

/// What a protocol with frames says about the body in addition to the head's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamEnd {
    /// Nothing: only the fields matter.
    InFields,
    /// The stream ended with the head.
    WithHead,
    /// The stream continues.
    Later,
}

/// Fills the fields of a head, within its limits.
pub(crate) struct Assembly<'h> {
    fields: &'h mut Fields,
    headers_max: usize,
    bytes_left: usize,
}

impl<'h> Assembly<'h> {
    /// The limits count the head as if it were text.
    pub(crate) fn new(fields: &'h mut Fields, limits: &HeadLimits) -> Assembly<'h> {
        let bytes_left = limits.head_bytes_max.saturating_sub(fields.bytes.len());
        fields.reserve();
        Assembly { fields, headers_max: limits.headers_max, bytes_left }
    }

    /// Adds the fields of a request. The authority becomes Host, and a divided Cookie becomes one field.
    pub(crate) fn take_request<'a>(
        &mut self,
        parts: &RequestParts<'a>,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), ParseError> {
        if let Some(authority) = parts.authority {
            self.push(b"host", authority)?;
        }
        let mut cookie = Vec::new();
        // A Host field that equals the authority is dropped. A different one is kept, so that both are seen and
        // refused.
        let mut authority = parts.authority;
        for (name, value) in fields {
            let agrees = || authority.is_some_and(|authority| value.eq_ignore_ascii_case(authority));
            match () {
                () if is(name, b"host") && agrees() => authority = None,
                () if is(name, b"cookie") => {
                    // Clients may divide Cookie because it then compresses better (RFC 9113 section 8.2.3).
                    cookie.extend_from_slice(if cookie.is_empty() { b"" } else { b"; " });
                    cookie.extend_from_slice(value);
                }
                () if parts.websocket.is_some() && is(name, b"sec-websocket-key") => {}
                () => self.take(name, value)?,
            }
        }
        if !cookie.is_empty() {
            self.take(b"cookie", &cookie)?;
        }
        if let Some(key) = parts.websocket {
            self.push(b"connection", b"upgrade")?;
            self.push(b"upgrade", b"websocket")?;
            self.push(b"sec-websocket-key", key)?;
        }
        Ok(())
    }

    /// Adds a field that the peer sent. A connection-specific field of HTTP/1.1 makes the head malformed (RFC 9113
    /// section 8.2.2).
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        use FieldKind::{Connection, KeepAlive, ProxyConnection, Te, TransferEncoding, Upgrade};
        match self.push(name, value)? {
            Connection | KeepAlive | ProxyConnection | TransferEncoding | Upgrade => {
                Err(ParseError::BadRequest)
            }
            Te if !value.eq_ignore_ascii_case(b"trailers") => Err(ParseError::BadRequest),
            _ => Ok(()),
        }
    }

    fn push(&mut self, name: &[u8], value: &[u8]) -> Result<FieldKind, ParseError> {
        let bytes = name.len() + value.len() + LINE_BYTES;
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(ParseError::HeadTooLarge)?;
        if self.fields.len() == self.headers_max {
            return Err(ParseError::HeadTooLarge);
        }
        if !(is_token(name) && is_field_value(value)) {
            return Err(ParseError::BadRequest);
        }
        Ok(self.fields.push(name, value))
    }
}

fn is(name: &[u8], other: &[u8]) -> bool {
    name.eq_ignore_ascii_case(other)
}
