//! Which fields are forwarded and which are hop-by-hop (RFC 9110 section 7.6.1). `encode` renders them.

use super::expect::Expect;
use super::fields::{FieldRef, Fields};
use super::framing::Framing;

use super::kind::FieldKind;
use super::request::RequestHead;

/// Longest X-Request-Id kept, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The request's X-Request-Id, if it is kept: from a trusted peer, not repeated, 1 to 128 bytes of letters, digits,
/// `_`, `.` and `-`, and not nominated by Connection. Other clients could reuse the ids of foreign requests.
pub fn forwarded_request_id(head: &RequestHead, trusted: bool) -> Option<&[u8]> {
    let id = head.fields.only(FieldKind::XRequestId).filter(|_| trusted)?;
    let well_formed = matches!(id.len(), 1..=REQUEST_ID_BYTES_MAX)
        && id.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte));
    (well_formed && !head.fields.is_nominated(b"x-request-id")).then_some(id)
}

/// Whether a request's field is copied. Fields that the proxy renders itself are not.
pub(crate) fn is_copied_upstream(
    head: &RequestHead,
    field: &FieldRef<'_>,
    framing: Framing,
    trusted: bool,
    is_identified: bool,
) -> bool {
    use FieldKind::*;
    let end_to_end = match field.kind {
        Host | ContentLength | TransferEncoding | Connection | KeepAlive | ProxyConnection => false,
        ProxyAuthorization | ProxyAuthenticate | Te | Upgrade | Http2Settings | Proxy | Lookalike => false,
        XForwardedFor | XForwardedProto | XForwardedHost | XRequestId | XRequestStart => false,
        Forwarded | Claim => trusted,
        Identity => trusted && !is_identified,
        Trailer => framing.has_trailers(),
        Expect => is_expect_copied(head, framing),
        Via | Cookie | UserAgent | Referer | Accept | Date | Server | Other => true,
    };
    end_to_end && !head.fields.is_nominated(field.name)
}

/// Whether a response's field is copied, in a message with this framing.
pub(crate) fn is_copied_downstream(fields: &Fields, field: &FieldRef<'_>, framing: Framing) -> bool {
    use FieldKind::*;
    let end_to_end = match field.kind {
        ContentLength | TransferEncoding | Connection | KeepAlive | ProxyConnection | Lookalike => false,
        ProxyAuthorization | ProxyAuthenticate | Te | Upgrade | Http2Settings => false,
        Trailer => framing.has_trailers(),
        _ => true,
    };
    end_to_end && !fields.is_nominated(field.name)
}

/// HTTP/1.0 clients do not understand a 100, and without a body there is nothing to wait for.
fn is_expect_copied(head: &RequestHead, framing: Framing) -> bool {
    match head.expect() {
        Expect::None | Expect::Failed => false,
        Expect::Continue => !matches!(framing, Framing::None | Framing::Length(0)),
        Expect::Other => true,
    }
}
