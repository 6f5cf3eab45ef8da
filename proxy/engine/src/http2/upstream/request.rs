//! The head of a request, from the HTTP/1.1 bytes that our encoder made to HTTP/2 (RFC 9113 section 8.3.1).

use ::http::header::{CONTENT_LENGTH, HeaderName};
use ::http::uri::{Authority, PathAndQuery, Scheme};
use ::http::{Method, Request, Uri, Version};
use bytes::Bytes;

use super::super::response::{END, Lines, push};

/// How the body ends that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Declared {
    /// There is none, or it has ended after as many bytes.
    Length(u64),
    /// With its last chunk.
    Chunked,
}

/// A head as it goes out.
pub(super) struct Head {
    pub(super) request: Request<()>,
    pub(super) declared: Declared,
}

/// Whether HTTP/2 can say this target and this host: HTTP/1.1 lets bytes through that no URI has.
pub(crate) fn can_say(target: &[u8], host: &[u8]) -> bool {
    PathAndQuery::try_from(target).is_ok() && Authority::try_from(host).is_ok()
}

/// Reads a whole head. The fields that are about an HTTP/1.1 connection end here (RFC 9113 section 8.2.2), an upgrade
/// with them: what it asks for is then answered as if it had not been asked for. `None` if it is none that our
/// encoder makes, or has a target or a host that HTTP/2 cannot say.
pub(super) fn parse(head: &[u8], scheme: &Scheme) -> Option<Head> {
    // Values are slices of one copy.
    let bytes = Bytes::copy_from_slice(head.strip_suffix(END)?);
    let mut lines = Lines { bytes: &bytes, at: 0 };
    let line = lines.next()?.strip_suffix(b" HTTP/1.1")?;
    let space = memchr::memchr(b' ', line)?;
    let path = PathAndQuery::from_maybe_shared(bytes.slice_ref(&line[space + 1..])).ok()?;
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(&line[..space]).ok()?;
    *request.version_mut() = Version::HTTP_2;
    let mut declared = Declared::Length(0);
    let mut authority = None;
    let headers = request.headers_mut();
    while let Some(line) = lines.next() {
        let colon = memchr::memchr(b':', line)?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = bytes.slice_ref(line[colon + 1..].trim_ascii());
        match name.as_str() {
            "host" => authority = Some(Authority::from_maybe_shared(value).ok()?),
            "transfer-encoding" => declared = Declared::Chunked,
            "connection" | "keep-alive" | "proxy-connection" | "upgrade" | "http2-settings" => {}
            // The only value that may be said here.
            "te" if !value.eq_ignore_ascii_case(b"trailers") => {}
            _ => {
                if name == CONTENT_LENGTH {
                    declared = Declared::Length(std::str::from_utf8(&value).ok()?.parse().ok()?);
                }
                push(headers, name, value)?;
            }
        }
    }
    let uri = Uri::builder().scheme(scheme.clone()).authority(authority?).path_and_query(path);
    *request.uri_mut() = uri.build().ok()?;
    Some(Head { request, declared })
}
