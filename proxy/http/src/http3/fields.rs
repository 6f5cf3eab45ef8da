//! A decoded field section.

use super::code::Http3Code;
use super::qpack::{DecodeError, decode};
use crate::fields::Span;
use crate::grammar::is_token;

/// What the size of a section counts for each line, besides its bytes (RFC 9114 section 4.2.2).
const LINE_BYTES: usize = 32;

/// Names and values of a head or of trailers, in order.
#[derive(Clone, Debug, Default)]
pub struct FieldSection {
    bytes: Vec<u8>,
    fields: Vec<(Span, Span)>,
}

/// Why a section is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionError {
    /// It cannot be decoded, which breaks the connection.
    Code(Http3Code),
    /// It is larger than allowed.
    TooLarge,
}

impl FieldSection {
    /// Decodes a section of at most `bytes_max` bytes as the standard counts them.
    ///
    /// # Errors
    /// See [`SectionError`].
    pub fn decode(encoded: &[u8], bytes_max: usize) -> Result<Self, SectionError> {
        let (mut section, mut left) = (Self::default(), bytes_max);
        let decoded = decode(encoded, |name, value| {
            let Some(rest) = left.checked_sub(name.len() + value.len() + LINE_BYTES) else {
                return false;
            };
            left = rest;
            let name = Span::append(&mut section.bytes, name);
            let value = Span::append(&mut section.bytes, value);
            section.fields.push((name, value));
            true
        });
        match decoded {
            Ok(()) => Ok(section),
            Err(DecodeError::Stopped) => Err(SectionError::TooLarge),
            Err(DecodeError::Invalid) => Err(SectionError::Code(Http3Code::QpackDecompressionFailed)),
        }
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> + Clone {
        self.fields.iter().map(|(name, value)| (name.get(&self.bytes), value.get(&self.bytes)))
    }

    /// Whether these may be trailers: no pseudo-header fields, and names that HTTP/3 allows (RFC 9114 section 4.3).
    pub fn is_well_formed_trailers(&self) -> bool {
        self.iter().all(|(name, _)| is_lower_name(name))
    }
}

/// Whether this is the name of a field, in lower case (RFC 9114 section 4.2).
pub(super) fn is_lower_name(name: &[u8]) -> bool {
    is_token(name) && !name.iter().any(u8::is_ascii_uppercase)
}
