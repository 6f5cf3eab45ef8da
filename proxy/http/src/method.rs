//! The method and version of a message. `request` reads the request line itself.

/// The HTTP version a message was sent with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
    /// HTTP/2: heads arrive as fields, bodies in frames, and each exchange has its own stream.
    Http2,
    /// HTTP/3: the same, on streams of QUIC.
    Http3,
}

impl Version {
    /// Whether heads arrive as fields, and each exchange has its own stream.
    pub fn is_framed(self) -> bool {
        matches!(self, Version::Http2 | Version::Http3)
    }

    /// The name of the protocol, as nginx and its log formats write it.
    pub fn name(self) -> &'static str {
        match self {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        }
    }

    /// The protocol version and pseudonym in Via (RFC 9110 section 7.6.3).
    pub(crate) fn via(self) -> &'static [u8] {
        match self {
            Version::Http10 => b"1.0 sluice",
            Version::Http11 => b"1.1 sluice",
            Version::Http2 => b"2.0 sluice",
            Version::Http3 => b"3.0 sluice",
        }
    }
}

/// A request method, to the extent that forwarding depends on it. Methods are case-sensitive (RFC 9110 section 9.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Method {
    /// GET.
    Get,
    /// HEAD; its response has no body.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// DELETE.
    Delete,
    /// OPTIONS; the only method that may have the target `*`.
    Options,
    /// TRACE; must not have a body.
    Trace,
    /// CONNECT; parsed so that sluice can respond to it, and never forwarded.
    Connect,
    /// PATCH (RFC 5789).
    Patch,
    /// Any other token; its bytes are in the head.
    Other,
}

impl Method {
    /// The method with this name. Any unknown name is [`Method::Other`].
    pub fn from_bytes(name: &[u8]) -> Method {
        match name {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"CONNECT" => Method::Connect,
            b"PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }

    /// Whether it asks for no change (RFC 9110 section 9.2.1).
    pub fn is_safe(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Options | Method::Trace)
    }

    /// Whether sending the request twice has the effect of sending it once (RFC 9110 section 9.2.2).
    pub fn is_idempotent(self) -> bool {
        match self {
            Method::Get | Method::Head | Method::Options | Method::Trace => true,
            Method::Put | Method::Delete => true,
            Method::Post | Method::Patch | Method::Connect | Method::Other => false,
        }
    }
}
