//! Trailer fields (RFC 9110 section 6.5): one line checked and, if it may stand behind a body, kept.

use super::claim::is_claim;
use super::error::ParseError;
use super::fields::{LINE_BYTES, Span};
use super::grammar::{is_field_value, is_token, trim_ows};
use super::identity;

/// Fields that frame, route, authenticate or control, and so may not come after the fact (RFC 9110 section 6.5.1).
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

/// Beginnings of further refused names.
const REFUSED_PREFIXES: &[&[u8]] = &[b"if-", b"proxy-", identity::PREFIX, identity::STANDARD_PREFIX];

/// Fields behind a body, as far as they may be forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trailers {
    bytes: Vec<u8>,
    fields: Vec<(Span, Span)>,
}

impl Trailers {
    /// None.
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

    /// Takes one in, checked like a field of a head, if it may be forwarded, which those of the names in `refused` may not
    /// either.
    ///
    /// # Errors
    /// [`ParseError::BadBody`] if it is no valid field; one that may not be a trailer is dropped silently.
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

    /// [`Trailers::take`] of a line without its CRLF.
    pub(crate) fn take_line(&mut self, line: &[u8], refused: &[Vec<u8>]) -> Result<(), ParseError> {
        let colon = line.iter().position(|&byte| byte == b':').ok_or(ParseError::BadBody)?;
        self.take(&line[..colon], &line[colon + 1..], refused)
    }

    fn push(&mut self, part: &[u8]) -> Span {
        Span::append(&mut self.bytes, part)
    }
}

/// Takes the trailers in that a protocol with frames brings as fields, within the same bounds as those behind chunks.
#[derive(Debug)]
pub struct TrailerReader {
    /// Bytes that are left, counted as if they were lines.
    bytes_left: usize,
    refused: Vec<Vec<u8>>,
    trailers: Trailers,
}

impl TrailerReader {
    /// For at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> TrailerReader {
        TrailerReader { bytes_left: bytes_max, refused: Vec::new(), trailers: Trailers::default() }
    }

    /// Drops trailers of these names as well, in lower case.
    pub fn refuse(&mut self, names: Vec<Vec<u8>>) {
        self.refused = names;
    }

    /// Takes one in.
    ///
    /// # Errors
    /// [`ParseError::BadBody`] and [`ParseError::TrailersTooLarge`].
    pub fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), ParseError> {
        let bytes = name.len() + value.len() + LINE_BYTES;
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(ParseError::TrailersTooLarge)?;
        self.trailers.take(name, value, &self.refused)
    }

    /// Those that may be forwarded.
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

/// Equal but for case, and for `_` in place of `-`, which CGI-like servers do not tell apart.
fn is_same(name: &[u8], dashed: &[u8]) -> bool {
    let plain = |byte: &u8| {
        if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
    };
    name.iter().map(plain).eq(dashed.iter().copied())
}
