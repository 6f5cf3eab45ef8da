//! Where a message's body ends: the cases of RFC 9112 section 6.3, with stricter rules. `chunked` reads chunked bodies.

use super::assemble::StreamEnd;
use super::error::ParseError;
use super::fields::Fields;
use super::grammar::trim_ows;
use super::kind::FieldKind;
use super::method::{Method, Version};
use super::request::RequestHead;
use super::response::ResponseHead;

/// How a body ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// There is no body.
    None,
    /// The body has this many bytes.
    Length(u64),
    /// The body ends with the last chunk and its trailers.
    Chunked,
    /// The body ends when the connection closes. Responses only.
    CloseDelimited,
    /// The body ends with the exchange's stream, in a protocol with frames. Trailers may follow it.
    Stream,
}

impl Framing {
    /// Whether trailers may follow the body.
    pub(crate) fn has_trailers(self) -> bool {
        matches!(self, Framing::Chunked | Framing::Stream)
    }

    /// The framing towards a receiver of this version for a body that arrives with `self`.
    pub fn towards(self, version: Version) -> Framing {
        match (self, version) {
            (Framing::None | Framing::Length(_), _) => self,
            (_, Version::Http10) => Framing::CloseDelimited,
            (_, Version::Http11) => Framing::Chunked,
            (_, Version::Http2 | Version::Http3) => Framing::Stream,
        }
    }

    /// Whether the body has no bytes.
    pub fn is_empty(self) -> bool {
        matches!(self, Framing::None | Framing::Length(0))
    }
}

/// Largest Content-Length accepted, in bytes. An origin may store it in a signed 64-bit number.
const CONTENT_LENGTH_MAX: u64 = i64::MAX as u64;

/// Most digits of a Content-Length, including leading zeros.
const CONTENT_LENGTH_DIGITS_MAX: usize = 19;

/// What Content-Length and Transfer-Encoding say, before method and status are considered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Declared {
    Nothing,
    Length(u64),
    Chunked,
}

/// The two fields contradict each other, or one of them is invalid.
#[derive(Debug)]
pub(crate) struct BadDeclaration;

/// The framing of a request's body, by the cases of RFC 9112 section 6.3.
///
/// # Errors
/// [`ParseError::BadFraming`] for everything that the RFC allows a server to reject.
pub fn request_framing(head: &RequestHead) -> Result<Framing, ParseError> {
    // 1, 2. Responses only.
    // 3, 4, 5. Transfer-Encoding, both fields, and invalid ones: see `declared`. Several Content-Lengths are refused
    // even when they are equal, because the next recipient may use a different one than sluice.
    let declared = declared(&head.fields).map_err(|_| ParseError::BadFraming)?;
    if declared != Declared::Nothing && head.fields.all(FieldKind::ContentLength).count() > 1 {
        return Err(ParseError::BadFraming);
    }
    if let Some(value) = head.field(FieldKind::ContentLength)
        && value.contains(&b',')
    {
        return Err(ParseError::BadFraming);
    }
    // 6.1: HTTP/1.0 has no Transfer-Encoding, so the framing of a peer that sends one is wrong.
    if declared == Declared::Chunked && head.version() == Version::Http10 {
        return Err(ParseError::BadFraming);
    }
    let framing = match (declared, head.stream_end()) {
        (Declared::Chunked, StreamEnd::InFields) => Framing::Chunked,
        // RFC 9113 section 8.1.1: a length that differs from the body's, and a coding that the protocol does not use.
        (Declared::Length(1..), StreamEnd::WithHead) | (Declared::Chunked, _) => {
            return Err(ParseError::BadFraming);
        }
        // 6. A valid Content-Length.
        (Declared::Length(bytes), _) => Framing::Length(bytes),
        (Declared::Nothing, StreamEnd::Later) => Framing::Stream,
        // 7. Neither field: no body.
        (Declared::Nothing, _) => Framing::None,
    };
    // RFC 9110 sections 9.3.6 and 9.3.8: TRACE and CONNECT have no content, and bytes after a CONNECT are not a
    // message.
    let takes_body = !matches!(head.method(), Method::Trace | Method::Connect);
    match framing {
        Framing::Chunked | Framing::Stream | Framing::Length(1..) if !takes_body => {
            Err(ParseError::BadFraming)
        }
        _ => Ok(framing),
    }
}

/// The framing of the body of a response to `request_method`, by the cases of RFC 9112 section 6.3.
///
/// # Errors
/// [`ParseError::BadResponse`] if the framing fields are invalid, even if no body would follow.
pub fn response_framing(head: &ResponseHead, request_method: Method) -> Result<Framing, ParseError> {
    // 3, 4, 5. Equal Content-Lengths count as one here: origins send them, and sluice renders the field anew.
    let declared = declared(&head.fields).map_err(|_| ParseError::BadResponse)?;
    if declared == Declared::Chunked && head.version() == Version::Http10 {
        return Err(ParseError::BadResponse);
    }
    // 1. HEAD, 1xx, 204 and 304 have no body, whatever the fields say.
    if request_method == Method::Head || is_bodiless(head.status()) {
        return Ok(Framing::None);
    }
    // 2. A 2xx to CONNECT: the bytes after it are a tunnel.
    if request_method == Method::Connect && matches!(head.status(), 200..=299) {
        return Ok(Framing::None);
    }
    match (declared, head.stream_end()) {
        (Declared::Chunked, StreamEnd::InFields) => Ok(Framing::Chunked),
        (Declared::Length(1..), StreamEnd::WithHead) | (Declared::Chunked, _) => Err(ParseError::BadResponse),
        // In HTTP/1.1, trailers cannot follow a body with Content-Length, and a gRPC response is useless without them.
        (Declared::Length(_), StreamEnd::Later) if is_grpc(head) => Ok(Framing::Stream),
        // 6. A valid Content-Length.
        (Declared::Length(bytes), _) => Ok(Framing::Length(bytes)),
        (Declared::Nothing, StreamEnd::WithHead) => Ok(Framing::Length(0)),
        (Declared::Nothing, StreamEnd::Later) => Ok(Framing::Stream),
        // 8. Neither field: the body ends when the connection closes.
        (Declared::Nothing, StreamEnd::InFields) => Ok(Framing::CloseDelimited),
    }
}

fn is_grpc(head: &ResponseHead) -> bool {
    head.get(b"content-type").is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// Whether a response with this status never has a body (RFC 9110 section 6.4.1).
pub(crate) fn is_bodiless(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

/// Reads Content-Length and Transfer-Encoding. Equal repeated lengths count as one.
pub(crate) fn declared(fields: &Fields) -> Result<Declared, BadDeclaration> {
    match (fields.has(FieldKind::TransferEncoding), fields.has(FieldKind::ContentLength)) {
        (false, false) => Ok(Declared::Nothing),
        // 3. Both: a smuggling attempt or an error. The RFC lets Transfer-Encoding win; sluice refuses.
        (true, true) => Err(BadDeclaration),
        // 4. One field with the single coding `chunked`. With another coding, or with chunked not last, the framing is
        //    unreliable: sluice applies no other coding and cannot remove one.
        (true, false) => match fields.only(FieldKind::TransferEncoding) {
            Some(coding) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Declared::Chunked),
            _ => Err(BadDeclaration),
        },
        // 5. Every member is valid, and all are equal.
        (false, true) => read_lengths(fields).map(Declared::Length),
    }
}

fn read_lengths(fields: &Fields) -> Result<u64, BadDeclaration> {
    let mut length = None;
    let members = fields.all(FieldKind::ContentLength).flat_map(|value| value.split(|&byte| byte == b','));
    for member in members {
        let bytes = read_length(trim_ows(member)).ok_or(BadDeclaration)?;
        if length.is_some_and(|other| other != bytes) {
            return Err(BadDeclaration);
        }
        length = Some(bytes);
    }
    length.ok_or(BadDeclaration)
}

/// 1*DIGIT (RFC 9110 section 8.6) within the limits: no sign, no space, decimal only.
fn read_length(digits: &[u8]) -> Option<u64> {
    let valid =
        matches!(digits.len(), 1..=CONTENT_LENGTH_DIGITS_MAX) && digits.iter().all(u8::is_ascii_digit);
    let bytes = digits.iter().try_fold(0u64, |bytes, digit| {
        bytes.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
    });
    bytes.filter(|&bytes| valid && bytes <= CONTENT_LENGTH_MAX)
}
