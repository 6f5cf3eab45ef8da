//! Why a message is refused. Other crates decide which status it means and whose fault it is.

/// A message that breaks the grammar, a rule of framing, or a limit.
///
/// After any of these errors the connection cannot be read further, because the start of the next message is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The request head breaks RFC 9112 sections 2 to 5.
    #[error("malformed request head")]
    BadRequest,
    /// Host is missing, repeated, invalid, or differs from the target's authority (RFC 9112 section 3.2).
    #[error("missing, repeated or invalid host")]
    BadHost,
    /// Content-Length and Transfer-Encoding are invalid or contradict each other (RFC 9112 section 6).
    #[error("contradictory or invalid framing fields")]
    BadFraming,
    /// The request target is longer than `target_bytes_max`.
    #[error("request target over the limit")]
    TargetTooLong,
    /// The head is longer than `head_bytes_max` or has more fields than `headers_max`.
    #[error("head over a limit")]
    HeadTooLarge,
    /// A well-formed request line with a version other than HTTP/1.0 or HTTP/1.1.
    #[error("HTTP version not supported")]
    VersionNotSupported,
    /// The response head is malformed, over a limit, or its framing is invalid.
    #[error("malformed response head")]
    BadResponse,
    /// Chunk framing or a trailer field breaks RFC 9112 section 7.1.
    #[error("malformed chunked body")]
    BadBody,
    /// The trailer section is longer than `trailer_bytes_max`.
    #[error("trailers over the limit")]
    TrailersTooLarge,
}
