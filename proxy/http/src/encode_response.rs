//! Encodes the head of a forwarded response, including interim ones. The proxy's own responses are rendered elsewhere.

use super::edits::FieldEdits;
use super::fields::FieldRef;
use super::framing::{Declared, Framing, declared, is_bodiless};
use super::headers::is_copied_downstream;
use super::kind::FieldKind;
use super::method::{Method, Version};
use super::response::ResponseHead;
use super::sink::HeadSink;

/// Room for what is added to a head, in bytes.
const ADDED_BYTES: usize = 256;

/// What a listener says in its responses, in place of the endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListenerFields<'a> {
    /// The value of Strict-Transport-Security (RFC 6797 section 6.1).
    pub hsts: Option<&'a [u8]>,
    /// The value of Alt-Svc (RFC 7838 section 3).
    pub alt_svc: Option<&'a [u8]>,
}

impl<'a> ListenerFields<'a> {
    /// Nothing.
    pub const NONE: Self = Self { hsts: None, alt_svc: None };

    /// Names and values.
    pub fn each(self) -> impl Iterator<Item = (&'static [u8], &'a [u8])> {
        let hsts = self.hsts.map(|value| (&b"Strict-Transport-Security"[..], value));
        let alt_svc = self.alt_svc.map(|value| (&b"Alt-Svc"[..], value));
        hsts.into_iter().chain(alt_svc)
    }
}

const REQUEST_ID: &[u8] = b"X-Request-Id";

/// What the forwarded response contains in addition to its head's own fields.
#[derive(Clone, Copy, Debug)]
pub struct ResponseForward<'a> {
    /// The framing of the body towards the client; never chunked for HTTP/1.0.
    pub framing: Framing,
    /// Whether the client's connection stays open after this response. A close-delimited response always closes it.
    pub keep_alive: bool,
    /// The client's version.
    pub client_version: Version,
    /// The method of the request. A response to HEAD keeps the length that its body would have had.
    pub request_method: Method,
    /// Whether to add a Via (RFC 9110 section 7.6.3).
    pub via: bool,
    /// Whether the body is encoded on the way, so that the Content-Length of the head does not apply.
    pub is_encoded: bool,
    /// Whether this is a 101 that the client requested and that starts a tunnel.
    pub upgrade: bool,
    /// The route's changes; not applied to interim responses.
    pub edits: Option<&'a FieldEdits>,
    /// Additional fields, such as the name of the endpoint; not added to interim responses.
    pub extra: [Option<(&'a [u8], &'a [u8])>; 5],
    /// The X-Request-Id, right after the status line, of a response that has none of its own; not added to interim
    /// responses. Direct return adds the same line at the same place.
    pub request_id: Option<&'a [u8]>,
    /// Fields that replace the endpoint's. The route's edits take precedence.
    pub listener: ListenerFields<'a>,
}

/// Writes the head of the forwarded response to `out`.
pub fn encode_response(out: &mut impl HeadSink, head: &ResponseHead, forward: &ResponseForward<'_>) {
    out.reserve(head.fields.bytes.len() + ADDED_BYTES);
    out.response(head.status(), reason(head));
    let interim = matches!(head.status(), 100..=199) && !forward.upgrade;
    let edits = forward.edits.filter(|_| !interim);
    let framing = rendered_framing(head, forward);
    let length_stays = is_canonical_length(head, framing);
    let is_edited = |name: &[u8]| edits.is_some_and(|edits| edits.takes_out(name));
    let of_listener = || forward.listener.each().filter(|(name, _)| !interim && !is_edited(name));
    // One that Connection nominates does not reach the client.
    let has_own_id = head.fields.has(FieldKind::XRequestId) && !head.fields.is_nominated(b"x-request-id");
    if let Some(id) = forward.request_id.filter(|_| !interim && !has_own_id && !is_edited(REQUEST_ID)) {
        out.field(REQUEST_ID, id);
    }
    let is_replaced =
        |field: &FieldRef<'_>| of_listener().any(|(name, _)| field.name.eq_ignore_ascii_case(name));
    for field in head.fields() {
        let copied = match field.kind {
            // No edit may write this field, see `FieldKind::is_protected`, so none removes it.
            FieldKind::ContentLength => length_stays,
            _ => {
                is_copied_downstream(&head.fields, &field, forward.framing)
                    && !is_edited(field.name)
                    && !is_replaced(&field)
            }
        };
        if copied {
            let rewritten = edits.and_then(|edits| edits.rewritten(&field));
            out.field(field.name, rewritten.as_deref().unwrap_or(field.value));
        }
    }
    of_listener().for_each(|(name, value)| out.field(name, value));
    if forward.via && !is_edited(b"via") {
        out.field(b"Via", head.version().via());
    }
    for (name, value) in forward.extra.into_iter().flatten().filter(|_| !interim) {
        out.field(name, value);
    }
    if let Some(edits) = edits {
        edits.render_to(out, &head.fields);
    }
    if !length_stays {
        out.framing(framing);
    }
    push_connection(out, head, forward);
    out.end();
}

/// The fields that a client may get with another body: end-to-end, and not about the framing.
pub fn end_to_end(head: &ResponseHead) -> impl Iterator<Item = FieldRef<'_>> {
    head.fields().filter(|field| is_copied_downstream(&head.fields, field, Framing::None))
}

/// The reason phrase of `status`; empty if the status is not registered (RFC 9110 section 15).
pub fn canonical_reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}

/// The reason phrase to send: the endpoint's, or the canonical one.
fn reason(head: &ResponseHead) -> &[u8] {
    match head.reason() {
        [] => canonical_reason(head.status()).as_bytes(),
        reason => reason,
    }
}

/// RFC 9110 section 8.6: a 1xx or 204 has no Content-Length; a 304 or a response to HEAD has that of the body it would
/// have.
fn rendered_framing(head: &ResponseHead, forward: &ResponseForward<'_>) -> Framing {
    let status = head.status();
    if is_bodiless(status) && status != 304 {
        return Framing::None;
    }
    let keeps_length = status == 304 || forward.request_method == Method::Head;
    match (forward.framing, keeps_length, declared(&head.fields)) {
        (_, true, _) if forward.is_encoded => Framing::None,
        (_, true, Ok(Declared::Length(bytes))) => Framing::Length(bytes),
        (_, true, _) => Framing::None,
        (framing, false, _) => framing,
    }
}

/// Whether the head's Content-Length equals what would be rendered for `framing`. It then keeps its position like other
/// fields, so that a head without changes is forwarded byte for byte. Direct return relies on this.
fn is_canonical_length(head: &ResponseHead, framing: Framing) -> bool {
    let Framing::Length(bytes) = framing else {
        return false;
    };
    let field = head.fields.only(FieldKind::ContentLength);
    field.is_some_and(|digits| digits == itoa::Buffer::new().format(bytes).as_bytes())
}

fn push_connection(out: &mut impl HeadSink, head: &ResponseHead, forward: &ResponseForward<'_>) {
    let stays = forward.keep_alive && forward.framing != Framing::CloseDelimited;
    match (head.status(), forward.upgrade, head.field(FieldKind::Upgrade)) {
        (101, true, Some(protocol)) => {
            out.connection_field(b"Connection", b"upgrade");
            out.connection_field(b"Upgrade", protocol);
        }
        (100..=199, _, _) => {}
        _ if !stays => out.connection_field(b"Connection", b"close"),
        _ if forward.client_version == Version::Http10 => {
            out.connection_field(b"Connection", b"keep-alive");
        }
        _ => {}
    }
}
