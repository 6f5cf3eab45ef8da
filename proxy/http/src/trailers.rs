//! Trailer fields (RFC 9110 section 6.5): each is checked, and kept if it is allowed after a body.

use super::claim::is_claim;
use super::error::ParseError;
use super::fields::{LINE_BYTES, Span};
use super::grammar::{is_field_value, is_token, trim_ows};
use super::identity;

/// Fields for framing, routing, authentication or control, which must not be sent as trailers (RFC 9110 section 6.5.1).
const REFUSED: &[&[u8]] = &[
    b"age",
    b"authorization",
    b"cache-control",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"date",
    b"expect",
    b"expires",
    b"forwarded",
    b"host",
    b"http2-settings",
    b"keep-alive",
    b"location",
    b"max-forwards",
    b"pragma",
    b"proxy",
    b"range",
    b"retry-after",
    b"set-cookie",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"vary",
    b"via",
    b"warning",
    b"www-authenticate",
    b"x-request-id",
    b"x-request-start",
];

/// Prefixes of further refused names.
const REFUSED_PREFIXES: &[&[u8]] = &[b"if-", b"proxy-", identity::PREFIX, identity::STANDARD_PREFIX];

/// Fields after a body that may be forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trailers {
    bytes: Vec<u8>,
    fields: Vec<(Span, Span)>,
}

impl Trailers {
    /// No trailers.
    pub const NONE: &'static Trailers = &Trailers { bytes: Vec::new(), fields: Vec::new() };

    /// Names and values in order. Both are slices of [`Trailers::bytes`].
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.fields.iter().map(|(name, value)| (name.get(&self.bytes), value.get(&self.bytes)))
    }

    /// The bytes that names and values are parts of.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Adds a trailer, checked like a field of a head, if it may be forwarded. Names in `refused` may not.
    ///
    /// # Errors
    /// [`ParseError::BadBody`] if it is not a valid field. A field that may not be a trailer is silently dropped.
    pub(crate) fn take(&mut self, name: &[u8], value: &[u8], refused: &[Vec<u8>]) -> Result<(), ParseError> {
        if !is_token(name) || !is_field_value(value) {
            return Err(ParseError::BadBody);
        }
        if !is_refused(name) && !refused.iter().any(|other| is_same(name, other)) {
            let field = (self.push(name), self.push(trim_ows(value)));
            self.fields.push(field);
        }
        Ok(())
    }

    /// [`Trailers::take`] for a line without its CRLF.
    pub(crate) fn take_line(&mut self, line: &[u8], refused: &[Vec<u8>]) -> Result<(), ParseError> {
        let colon = line.iter().position(|&byte| byte == b':').ok_or(ParseError::BadBody)?;
        self.take(&line[..colon], &line[colon + 1..], refused)
    }

    fn push(&mut self, part: &[u8]) -> Span {
        Span::append(&mut self.bytes, part)
    }
}

/// Collects the trailers that arrive as fields in a protocol with frames, with the same limits as trailers after
/// chunks.
#[derive(Debug)]
pub struct TrailerReader {
    /// Bytes left, counted as if the trailers were lines of text.
    bytes_left: usize,
    refused: Vec<Vec<u8>>,
    trailers: Trailers,
}

impl TrailerReader {
    /// A reader for at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> TrailerReader {
        TrailerReader { bytes_left: bytes_max, refused: Vec::new(), trailers: Trailers::default() }
    }

    /// Also drops trailers with these lower-case names.
    pub fn refuse(&mut self, names: Vec<Vec<u8>>) {
        self.refused = names;
    }

    /// Adds a trailer.
    ///
    /// # Errors
    /// [`ParseError::BadBody`] and [`ParseError::TrailersTooLarge`].
    pub fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        let bytes = name.len() + value.len() + LINE_BYTES;
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(ParseError::TrailersTooLarge)?;
        self.trailers.take(name, value, &self.refused)
    }

    /// The trailers that may be forwarded.
    pub fn trailers(&self) -> &Trailers {
        &self.trailers
    }
}

fn is_refused(name: &[u8]) -> bool {
    is_claim(name)
        || REFUSED.iter().any(|refused| is_same(name, refused))
        || REFUSED_PREFIXES
            .iter()
            .any(|prefix| name.get(..prefix.len()).is_some_and(|start| is_same(start, prefix)))
}

/// Equal, ignoring case and treating `_` as `-`, which CGI-like servers do not distinguish.
fn is_same(name: &[u8], dashed: &[u8]) -> bool {
    let plain = |byte: &u8| {
        if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
    };
    name.iter().map(plain).eq(dashed.iter().copied())
}
