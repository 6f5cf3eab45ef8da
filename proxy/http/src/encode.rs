//! Renders the head of a forwarded request. Its body is framed by `chunked`, or is plain bytes.

use super::edits::FieldEdits;
use super::framing::Framing;
use super::headers::{forwarded_request_id, is_copied_upstream, push_field, push_framing};
use super::kind::FieldKind;
use super::method::Version;
use super::request::RequestHead;

/// Room for what is added to a head, in bytes.
const ADDED_BYTES: usize = 512;

/// What the forwarded request says besides its head's own fields.
///
/// Many fields: one for each thing that a forwarded head depends on.
#[derive(Clone, Copy, Debug)]
pub struct RequestForward<'a> {
    /// The target to ask for, origin-form or `*`; of the head, perhaps without a prefix.
    pub path_and_query: &'a [u8],
    /// The Host to send: the head's, or what the configuration says.
    pub host: &'a [u8],
    /// How the body will be framed towards the origin; never close-delimited.
    pub framing: Framing,
    /// The downstream peer's address as text; empty if it has none (a unix socket).
    pub client_ip: &'a [u8],
    /// `http` or `https`: how the client reached us.
    pub proto: &'a [u8],
    /// Whether the peer is a trusted proxy: what it says of the client is then kept and appended to. From anybody
    /// else it is replaced.
    pub trusted: bool,
    /// The id to send unless [`forwarded_request_id`] finds one of a trusted peer's to keep.
    pub request_id: &'a [u8],
    /// When the request arrived, `t=<seconds>.<3 digits>`.
    pub request_start: &'a [u8],
    /// Whether the client has been told to go on, so that its expectation ends here (RFC 9110 section 10.1.1).
    pub continued: bool,
    /// Whether to add a Via (RFC 9110 section 7.6.3).
    pub via: bool,
    /// The Upgrade to send, of [`RequestHead::upgrade`].
    pub upgrade: Option<&'a [u8]>,
    /// Names of fields that end here, in lower case.
    pub dropped: &'a [&'a [u8]],
    /// The traceparent of our own; the client's is to be among `dropped` then.
    pub traceparent: Option<&'a [u8]>,
    /// Fields that say who the client is by the certificate that it has shown to us, in place of all that it says itself;
    /// with `None` a trusted peer's are kept.
    pub identity: Option<&'a [(&'static [u8], Vec<u8>)]>,
    /// Whether the client spoke HTTP/2: Via says so, and that it takes trailers is passed on, if it says so in TE (RFC
    /// 9110 section 10.1.4), which has no meaning for one connection there.
    pub http2: bool,
    /// What the route changes.
    pub edits: Option<&'a FieldEdits>,
}

/// Appends the head of the forwarded request to `out`.
pub fn encode_request(out: &mut Vec<u8>, head: &RequestHead, forward: &RequestForward<'_>) {
    out.reserve(head.fields.bytes.len() + ADDED_BYTES);
    out.extend_from_slice(head.method_bytes());
    out.push(b' ');
    out.extend_from_slice(forward.path_and_query);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    push_field(out, b"Host", forward.host);
    for field in head.fields() {
        let identified = forward.identity.is_some();
        let copied = is_copied_upstream(head, &field, forward.framing, forward.trusted, identified);
        let met = forward.continued && field.kind == FieldKind::Expect;
        if copied && !met && !forward.takes_out(field.name) && !forward.drops(field.name) {
            push_field(out, field.name, field.value);
        }
    }
    push_provenance(out, head, forward);
    if let Some(edits) = forward.edits {
        edits.render(out);
    }
    push_framing(out, forward.framing);
    if forward.http2 && head.fields.only(FieldKind::Te).is_some_and(|te| te.eq_ignore_ascii_case(b"trailers"))
    {
        push_field(out, b"Connection", b"te");
        push_field(out, b"TE", b"trailers");
    }
    if let Some(protocols) = forward.upgrade {
        push_field(out, b"Connection", b"upgrade");
        push_field(out, b"Upgrade", protocols);
    }
    out.extend_from_slice(b"\r\n");
}

impl RequestForward<'_> {
    fn drops(&self, name: &[u8]) -> bool {
        self.dropped.iter().any(|other| name.eq_ignore_ascii_case(other))
    }

    fn takes_out(&self, name: &[u8]) -> bool {
        self.edits.is_some_and(|edits| edits.takes_out(name))
    }

    /// Appends a field of the proxy's own, unless it is empty or the route takes it out.
    fn push_own(&self, out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        if !value.is_empty() && !self.takes_out(name) {
            push_field(out, name, value);
        }
    }

    /// What a trusted peer said in the field of this kind.
    fn told<'h>(&self, head: &'h RequestHead, kind: FieldKind) -> Option<&'h [u8]> {
        head.field(kind).filter(|value| self.trusted && !value.is_empty())
    }
}

/// Where the request came from. These are not subject to Connection's nominations: a client could otherwise have a
/// trusted proxy's word about it removed (CVE-2022-31813).
fn push_provenance(out: &mut Vec<u8>, head: &RequestHead, forward: &RequestForward<'_>) {
    push_forwarded_for(out, head, forward);
    let proto = forward.told(head, FieldKind::XForwardedProto).unwrap_or(forward.proto);
    forward.push_own(out, b"X-Forwarded-Proto", proto);
    let host = forward.told(head, FieldKind::XForwardedHost).unwrap_or(head.host());
    forward.push_own(out, b"X-Forwarded-Host", host);
    let id = forwarded_request_id(head, forward.trusted).unwrap_or(forward.request_id);
    forward.push_own(out, b"X-Request-Id", id);
    let start = forward.told(head, FieldKind::XRequestStart).unwrap_or(forward.request_start);
    forward.push_own(out, b"X-Request-Start", start);
    forward.push_own(out, b"traceparent", forward.traceparent.unwrap_or_default());
    for (name, value) in forward.identity.unwrap_or_default() {
        forward.push_own(out, name, value);
    }
    if forward.via {
        let via: &[u8] = match head.version() {
            _ if forward.http2 => b"2.0 sluice",
            Version::Http10 => b"1.0 sluice",
            Version::Http11 => b"1.1 sluice",
        };
        forward.push_own(out, b"Via", via);
    }
}

/// The addresses a trusted peer listed, then the peer's own.
fn push_forwarded_for(out: &mut Vec<u8>, head: &RequestHead, forward: &RequestForward<'_>) {
    if forward.takes_out(b"x-forwarded-for") {
        return;
    }
    let told = head.fields.all(FieldKind::XForwardedFor).filter(|_| forward.trusted);
    let addresses = told.chain([forward.client_ip]).filter(|value| !value.is_empty());
    let mut separator: &[u8] = b"X-Forwarded-For: ";
    for address in addresses {
        out.extend_from_slice(separator);
        out.extend_from_slice(address);
        separator = b", ";
    }
    if separator == b", " {
        out.extend_from_slice(b"\r\n");
    }
}
