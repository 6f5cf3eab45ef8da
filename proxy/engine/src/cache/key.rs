//! Which requests ask for the same.

use sluice_cache::is_canonical;
use sluice_http::{FieldKind, RequestHead, is_same_name};

/// Fields by which frameworks change what a request asks for, and that no response names in Vary.
const CHANGING: [&[u8]; 15] = [
    b"script-name",
    b"x-action-method",
    b"x-backend-host",
    b"x-envoy-original-path",
    b"x-host",
    b"x-http-host-override",
    b"x-http-method",
    b"x-http-method-override",
    b"x-invoke-path",
    b"x-invoke-status",
    b"x-matched-path",
    b"x-method-override",
    b"x-middleware-rewrite",
    b"x-proxy-host",
    b"x-script-name",
];
/// By which scripts say that they are not browsers.
const SCRIPT: &[u8] = b"x-requested-with";
/// What Connection names in any case.
const OF_CONNECTION: [&[u8]; 5] = [b"close", b"keep-alive", b"te", b"upgrade", b"http2-settings"];
/// Fields of a trusted proxy that are about the client, not about what it asks for.
const OF_CLIENT: [&[u8]; 8] = [
    b"client-ip",
    b"true-client-ip",
    b"x-client-ip",
    b"x-cluster-client-ip",
    b"x-forwarded-for",
    b"x-forwarded-client-cert",
    b"x-real-ip",
    b"x-forwarded-by",
];

/// Whether a request is one that others may send in the same way: nothing in it changes what it asks for, except what
/// is part of the key, or named in Vary.
pub(crate) fn is_plain_request(head: &RequestHead) -> bool {
    let is_changing = |name: &[u8]| CHANGING.iter().any(|other| is_same_name(name, other));
    // The application does not get a field that is taken out on the way, whatever the response says of it.
    let is_nominated = head.nominated().any(|name| !OF_CONNECTION.contains(&&name[..]));
    let is_precondition =
        |name: &[u8]| is_same_name(name, b"if-match") || is_same_name(name, b"if-unmodified-since");
    // Frameworks know one value; what they make of another one is theirs.
    let is_script = |value: &[u8]| value.eq_ignore_ascii_case(b"XMLHttpRequest");
    let mut scripts = head.fields().filter(|field| is_same_name(field.name, SCRIPT));
    if !scripts.all(|field| is_script(field.value)) {
        return false;
    }
    let mut fields = head.fields();
    !fields.any(|field| is_changing(field.name) || is_precondition(field.name))
        && !is_nominated
        && head.upgrade().is_none()
        && is_canonical(head.path_and_query())
}

/// Writes what the application is told of how a request came to `out`: `is_secure` if the client uses TLS, `trusted` if
/// its peer may say what reached the first proxy. Scripts get other responses than browsers from some frameworks.
pub(crate) fn write_origin(out: &mut Vec<u8>, (is_secure, trusted): (bool, bool), head: &RequestHead) {
    out.extend_from_slice(if is_secure { b"https" } else { b"http" });
    if head.fields().any(|field| is_same_name(field.name, SCRIPT)) {
        out.extend_from_slice(b" script");
    }
    let mut add = |name: &[u8], value: &[u8]| {
        out.push(b'\n');
        out.extend(name.iter().map(u8::to_ascii_lowercase));
        out.push(b':');
        out.extend_from_slice(value);
    };
    for field in head.fields().filter(|field| trusted && is_of_origin(field.kind, field.name)) {
        match field.kind {
            FieldKind::Forwarded => of_origin(field.value).for_each(|pair| add(b"forwarded", pair)),
            _ => add(field.name, field.value),
        }
    }
}

/// Whether a field says how a request reached the first proxy.
fn is_of_origin(kind: FieldKind, name: &[u8]) -> bool {
    let is_of_client = || OF_CLIENT.iter().any(|other| name.eq_ignore_ascii_case(other));
    match kind {
        FieldKind::XForwardedProto | FieldKind::XForwardedHost | FieldKind::Forwarded => true,
        FieldKind::Claim => !is_of_client(),
        _ => false,
    }
}

/// The host and the scheme in Forwarded (RFC 7239).
fn of_origin(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let pairs = value.split(|byte| matches!(byte, b';' | b',')).map(<[u8]>::trim_ascii);
    pairs.filter(|pair| {
        let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.eq_ignore_ascii_case(b"host") || name.eq_ignore_ascii_case(b"proto")
    })
}

/// Whether a trusted proxy says who the client is by its certificate.
pub(crate) fn names_certificate(head: &RequestHead) -> bool {
    head.fields().any(|field| {
        field.kind == FieldKind::Identity || is_same_name(field.name, b"x-forwarded-client-cert")
    })
}
