//! The head of a request, from HTTP/2 to the HTTP/1.1 bytes that stand for it (RFC 9113 section 8.3.1).
//!
//! What it says is judged by the parser that reads it: two hosts, an authority with userinfo, a method without a body
//! that has one. Here is refused only what could not be said in HTTP/1.1, or would be read as something else there.

use ::http::header::{CONTENT_LENGTH, COOKIE, HOST, SEC_WEBSOCKET_KEY};
use ::http::{Method, Request};
use h2::ext::Protocol;

/// How the rest of the stream is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is nothing.
    None,
    /// A body whose length the head has.
    Length,
    /// A body that ends when it ends.
    Chunked,
    /// Opaque bytes, once the other side has agreed (RFC 8441).
    Tunnel,
}

/// The head is malformed: a stream error of type PROTOCOL_ERROR (RFC 9113 section 8.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Checks what no HTTP/1.1 head could say, and finds how the rest is to be read. `ended` tells whether there is none.
pub(super) fn check(request: &Request<()>, ended: bool) -> Result<Framing, Malformed> {
    let uri = request.uri();
    let protocol = request.extensions().get::<Protocol>();
    if request.method() == Method::CONNECT && protocol.is_none() {
        // What follows is no message, and a tunnel is refused by its head.
        return uri.authority().map(|_| Framing::None).ok_or(Malformed);
    }
    // Without an authority the crate keeps no scheme.
    let scheme = uri.scheme_str().unwrap_or("http");
    let path = uri.path_and_query().map_or("", |path| path.as_str());
    let rooted = path.starts_with('/') || path == "*" && request.method() == Method::OPTIONS;
    if !matches!(scheme, "http" | "https") || !rooted {
        return Err(Malformed);
    }
    let has_length = request.headers().contains_key(CONTENT_LENGTH);
    match (protocol, ended) {
        (Some(_), _) if has_length => Err(Malformed),
        (Some(protocol), _) if is_websocket(protocol) => Ok(Framing::Tunnel),
        (Some(_), _) | (None, true) => Ok(Framing::None),
        (None, false) if has_length => Ok(Framing::Length),
        (None, false) => Ok(Framing::Chunked),
    }
}

fn is_websocket(protocol: &Protocol) -> bool {
    protocol.as_str().eq_ignore_ascii_case("websocket")
}

/// Appends the head as HTTP/1.1. `key` is for the Sec-WebSocket-Key that a websocket has there and not here.
pub(super) fn render(out: &mut Vec<u8>, request: &Request<()>, framing: Framing, key: [u8; 16]) {
    let headers = request.headers();
    let values: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    out.reserve(values + request.uri().path().len() + 256);
    push_line(out, request, framing);
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    push_hosts(out, request, authority);
    for (name, value) in headers {
        let elsewhere =
            name == HOST || name == COOKIE || name == SEC_WEBSOCKET_KEY && framing == Framing::Tunnel;
        if !elsewhere {
            push_field(out, name.as_str(), value.as_bytes());
        }
    }
    push_cookies(out, request);
    match framing {
        Framing::Chunked => push_field(out, "transfer-encoding", b"chunked"),
        Framing::Tunnel => {
            push_field(out, "connection", b"upgrade");
            push_field(out, "upgrade", b"websocket");
            push_field(out, "sec-websocket-key", data_encoding::BASE64.encode(&key).as_bytes());
        }
        Framing::None | Framing::Length => {}
    }
    out.extend_from_slice(b"\r\n");
}

fn push_line(out: &mut Vec<u8>, request: &Request<()>, framing: Framing) {
    let uri = request.uri();
    let (method, target) = match (request.method(), framing) {
        (_, Framing::Tunnel) => ("GET", uri.path_and_query().map_or("/", |path| path.as_str())),
        // Also for a protocol that we do not know: there is no other word for it, and it gets the same answer.
        (&Method::CONNECT, _) => ("CONNECT", uri.authority().map_or("", |authority| authority.as_str())),
        (method, _) => (method.as_str(), uri.path_and_query().map_or("/", |path| path.as_str())),
    };
    out.extend_from_slice(method.as_bytes());
    out.push(b' ');
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
}

/// The authority is the Host. One that came beside it and agrees is the same; another is kept, so that the parser
/// sees both and refuses them.
fn push_hosts(out: &mut Vec<u8>, request: &Request<()>, authority: Option<&[u8]>) {
    if let Some(authority) = authority {
        push_field(out, "host", authority);
    }
    let mut hosts = request.headers().get_all(HOST).iter().map(|host| host.as_bytes());
    let agrees = |host: &[u8]| authority.is_some_and(|other| host.eq_ignore_ascii_case(other));
    if let Some(first) = hosts.next()
        && !agrees(first)
    {
        push_field(out, "host", first);
    }
    hosts.for_each(|host| push_field(out, "host", host));
}

/// Clients may divide it, for it then compresses better (RFC 9113 section 8.2.3).
fn push_cookies(out: &mut Vec<u8>, request: &Request<()>) {
    let mut separator: &[u8] = b"cookie: ";
    for crumb in request.headers().get_all(COOKIE) {
        out.extend_from_slice(separator);
        out.extend_from_slice(crumb.as_bytes());
        separator = b"; ";
    }
    if separator == b"; " {
        out.extend_from_slice(b"\r\n");
    }
}

/// Neither name nor value can hold a byte that would end the line: their types see to that.
pub(super) fn push_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}
