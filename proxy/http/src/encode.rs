//! Encodes the head of a forwarded request, for any protocol.

use super::edits::FieldEdits;
use super::framing::Framing;
use super::headers::{forwarded_request_id, is_copied_upstream};
use super::kind::FieldKind;
use super::request::RequestHead;
use super::sink::HeadSink;

/// Tells an origin that it may refuse the request for now, by a 425 (RFC 8470 section 5.1).
const EARLY_DATA: &[u8] = b"Early-Data";

/// Room for what is added to a head, in bytes.
const ADDED_BYTES: usize = 512;

/// What the forwarded request contains in addition to its head's own fields.
///
/// Many fields: one for each input of a forwarded head.
#[derive(Clone, Copy, Debug)]
pub struct RequestForward<'a> {
    /// The target to request, in origin-form or `*`: the head's, possibly without a prefix.
    pub path_and_query: &'a [u8],
    /// The Host to send: the head's, or the configured one.
    pub host: &'a [u8],
    /// The framing of the body towards the endpoint; never close-delimited.
    pub framing: Framing,
    /// The downstream peer's address as text; empty if it has none (a unix socket).
    pub client_ip: &'a [u8],
    /// `http` or `https`: how the client reached sluice.
    pub proto: &'a [u8],
    /// Whether the peer is a trusted proxy. What it states about the client is then kept and appended to; otherwise it
    /// is replaced.
    pub trusted: bool,
    /// The id to send unless [`forwarded_request_id`] finds one from a trusted peer to keep.
    pub request_id: &'a [u8],
    /// When the request arrived, `t=<seconds>.<3 digits>`.
    pub request_start: &'a [u8],
    /// Whether the client has received a 100 (Continue), so that its expectation is not forwarded (RFC 9110 section
    /// 10.1.1).
    pub continued: bool,
    /// Whether to add a Via (RFC 9110 section 7.6.3).
    pub via: bool,
    /// The Upgrade to send, from [`RequestHead::upgrade`].
    pub upgrade: Option<&'a [u8]>,
    /// Names of fields that are not forwarded, in lower case.
    pub dropped: &'a [&'a [u8]],
    /// sluice's own traceparent. The client's must then be among `dropped`.
    pub traceparent: Option<&'a [u8]>,
    /// Whether somebody may have recorded the request, and repeats it (RFC 8470 section 5.1).
    pub is_early: bool,
    /// Fields that identify the client by the certificate it presented to sluice, in place of such fields from the
    /// client. With `None`, those of a trusted peer are kept.
    pub identity: Option<&'a [(&'static [u8], Vec<u8>)]>,
    /// The route's changes.
    pub edits: Option<&'a FieldEdits>,
}

/// Writes the head of the forwarded request to `out`.
pub fn encode_request(out: &mut impl HeadSink, head: &RequestHead, forward: &RequestForward<'_>) {
    out.reserve(head.fields.bytes.len() + ADDED_BYTES);
    out.request(head.method_bytes(), forward.path_and_query, forward.host);
    for field in head.fields() {
        let identified = forward.identity.is_some();
        let copied = is_copied_upstream(head, &field, forward.framing, forward.trusted, identified);
        let met = forward.continued && field.kind == FieldKind::Expect;
        // A client's word must not hide that its request came early.
        let hides = forward.is_early && field.name.eq_ignore_ascii_case(EARLY_DATA);
        if copied && !met && !hides && !forward.takes_out(field.name) && !forward.drops(field.name) {
            out.field(field.name, field.value);
        }
    }
    push_provenance(out, head, forward);
    if let Some(edits) = forward.edits {
        edits.render(out);
    }
    out.framing(forward.framing);
    if takes_trailers(head) {
        out.connection_field(b"Connection", b"te");
        out.field(b"TE", b"trailers");
    }
    if let Some(protocols) = forward.upgrade {
        out.connection_field(b"Connection", b"upgrade");
        out.connection_field(b"Upgrade", protocols);
    }
    out.end();
}

/// Whether the client accepts trailers according to TE (RFC 9110 section 10.1.4). In HTTP/2 this is not hop-by-hop, so
/// it is forwarded.
fn takes_trailers(head: &RequestHead) -> bool {
    head.version().is_framed()
        && head.fields.only(FieldKind::Te).is_some_and(|te| te.eq_ignore_ascii_case(b"trailers"))
}

impl RequestForward<'_> {
    fn drops(&self, name: &[u8]) -> bool {
        self.dropped.iter().any(|other| name.eq_ignore_ascii_case(other))
    }

    fn takes_out(&self, name: &[u8]) -> bool {
        self.edits.is_some_and(|edits| edits.takes_out(name))
    }

    /// Adds one of the proxy's own fields, unless it is empty or the route removes it.
    fn push_own(&self, out: &mut impl HeadSink, name: &[u8], value: &[u8]) {
        if !value.is_empty() && !self.takes_out(name) {
            out.field(name, value);
        }
    }

    /// The value that a trusted peer sent in the field of this kind.
    fn told<'h>(&self, head: &'h RequestHead, kind: FieldKind) -> Option<&'h [u8]> {
        head.field(kind).filter(|value| self.trusted && !value.is_empty())
    }
}

/// Adds the fields that state where the request came from. Connection cannot nominate them: otherwise a client could
/// remove what a trusted proxy states (CVE-2022-31813).
fn push_provenance(out: &mut impl HeadSink, head: &RequestHead, forward: &RequestForward<'_>) {
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
    if forward.is_early {
        forward.push_own(out, EARLY_DATA, b"1");
    }
    if forward.via {
        forward.push_own(out, b"Via", head.version().via());
    }
}

/// Adds the addresses that a trusted peer listed, then the peer's own.
fn push_forwarded_for(out: &mut impl HeadSink, head: &RequestHead, forward: &RequestForward<'_>) {
    let told = head.fields.all(FieldKind::XForwardedFor).filter(|_| forward.trusted);
    let mut addresses = told.chain([forward.client_ip]).filter(|value| !value.is_empty());
    let Some(first) = addresses.next() else { return };
    let Some(second) = addresses.next() else {
        return forward.push_own(out, b"X-Forwarded-For", first);
    };
    let mut all = [first, b", ", second].concat();
    for address in addresses {
        all.extend_from_slice(b", ");
        all.extend_from_slice(address);
    }
    forward.push_own(out, b"X-Forwarded-For", &all);
}
