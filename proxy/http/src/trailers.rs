//! Trailer fields (RFC 9110 section 6.5): one line checked and, if it may stand behind a body, kept.

use super::claim::is_claim;
use super::error::ParseError;
use super::grammar::{is_field_value, is_token, trim_ows};
use super::headers::push_field;
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

/// Checks one line, without its CRLF, like a field of a head, and appends it to `kept` if it may be forwarded, which those
/// of the names in `refused` may not either.
///
/// # Errors
/// [`ParseError::BadBody`] if it is no valid field line; a field that may not be a trailer is dropped silently.
pub(crate) fn take_trailer(kept: &mut Vec<u8>, line: &[u8], refused: &[Vec<u8>]) -> Result<(), ParseError> {
    let colon = line.iter().position(|&byte| byte == b':').ok_or(ParseError::BadBody)?;
    let (name, value) = (&line[..colon], &line[colon + 1..]);
    if !is_token(name) || !is_field_value(value) {
        return Err(ParseError::BadBody);
    }
    if !is_refused(name) && !refused.iter().any(|other| is_same(name, other)) {
        push_field(kept, name, trim_ows(value));
    }
    Ok(())
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
