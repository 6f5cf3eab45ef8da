//! The head of a request from a client (RFC 9113 section 8.3.1).
//!
//! Its content is checked in the same place as that of HTTP/1.1: two hosts, an authority with userinfo, a body with a
//! method that has none. Only what no other version can express is refused here.

use ::http::header::CONTENT_LENGTH;
use ::http::{Method, Request};
use h2::ext::Protocol;
use sluice_http::{HeadLimits, ParseError, RequestHead, RequestParts, StreamFraming as Framing, Version};

use super::fields::shown;

/// The head is malformed: a stream error of type PROTOCOL_ERROR (RFC 9113 section 8.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Rejects what no HTTP/1.1 head can express, and determines how the rest is to be read. `ended` means that there is no
/// rest.
pub(super) fn check(request: &Request<()>, ended: bool) -> Result<Framing, Malformed> {
    let uri = request.uri();
    let protocol = request.extensions().get::<Protocol>();
    if request.method() == Method::CONNECT && protocol.is_none() {
        // What follows is not a message, and the tunnel is refused because of its head.
        return uri.authority().map(|_| Framing::None).ok_or(Malformed);
    }
    // Without an authority the crate does not keep the scheme.
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
        (None, false) => Ok(Framing::Stream),
    }
}

fn is_websocket(protocol: &Protocol) -> bool {
    protocol.as_str().eq_ignore_ascii_case("websocket")
}

/// Reads a checked request into `head`. `key` generates the Sec-WebSocket-Key that a WebSocket request has in HTTP/1.1
/// but not in HTTP/2.
pub(super) fn read(
    request: &Request<()>,
    framing: Framing,
    head: &mut RequestHead,
    limits: &HeadLimits,
    key: impl FnOnce() -> [u8; 16],
) -> Result<(), ParseError> {
    let uri = request.uri();
    let authority = uri.authority().map(|authority| authority.as_str().as_bytes());
    let path = uri.path_and_query().map_or("/", |path| path.as_str()).as_bytes();
    let websocket = (framing == Framing::Tunnel).then(|| data_encoding::BASE64.encode(&key()));
    let (method, target) = match request.method() {
        _ if websocket.is_some() => ("GET", path),
        // Also for an unknown protocol: it has no other representation, and gets the same response.
        &Method::CONNECT => ("CONNECT", authority.unwrap_or_default()),
        method => (method.as_str(), path),
    };
    let parts = RequestParts {
        version: Version::Http2,
        method: method.as_bytes(),
        target,
        authority,
        ended: framing == Framing::None,
        websocket: websocket.as_ref().map(String::as_bytes),
    };
    head.assemble(&parts, shown(request.headers()), limits)
}
