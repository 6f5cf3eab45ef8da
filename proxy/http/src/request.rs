//! A request head: the request line, Host, and what its fields request. `framing` determines where its body ends.

use httparse::{ParserConfig, Request};

use super::assemble::{Assembly, RequestParts, StreamEnd};
use super::authority::{host_name, is_authority};
use super::error::ParseError;
use super::expect::{Expect, read_expect};
use super::fields::{FieldRef, Fields, Parsed, Slots, Span};
use super::grammar::is_token;
use super::kind::{FieldKind, owned_lookalike};
use super::method::{Method, Version};
use super::scan::{HeadLimits, METHOD_BYTES_MAX};
use super::target::{Target, read_target};
use super::upgrade::is_upgrade_list;

/// A parsed request head. It owns a copy of the bytes and is meant for reuse: `parse` allocates only to grow.
#[derive(Clone, Debug)]
pub struct RequestHead {
    pub(super) fields: Fields,
    line: RequestLine,
    path_and_query: Span,
    host: Span,
    stream_end: StreamEnd,
}

#[derive(Clone, Copy, Debug)]
struct RequestLine {
    method: Method,
    method_bytes: Span,
    target: Span,
    version: Version,
}

const EMPTY_LINE: RequestLine = RequestLine {
    method: Method::Other,
    method_bytes: Span::EMPTY,
    target: Span::EMPTY,
    version: Version::Http11,
};

impl Default for RequestHead {
    fn default() -> Self {
        RequestHead {
            fields: Fields::default(),
            line: EMPTY_LINE,
            path_and_query: Span::EMPTY,
            host: Span::EMPTY,
            stream_end: StreamEnd::InFields,
        }
    }
}

impl RequestHead {
    /// Names that Connection marks as hop-by-hop, in lower case. They apply to trailers, too.
    pub fn nominated(&self) -> impl Iterator<Item = Vec<u8>> {
        self.fields.nominated()
    }

    /// An empty head to parse into.
    pub fn new() -> RequestHead {
        RequestHead::default()
    }

    /// Parses `head`, which must be exactly what a [`HeadScanner`](super::HeadScanner) found complete: `parse` does not
    /// check again that bare CR, bare LF, NUL and folds are absent.
    ///
    /// # Errors
    /// Any [`ParseError`] of a request head. `self` then contains as much of it as was read, for a log line.
    /// [`request_framing`](super::request_framing) judges the framing fields, except for names that imitate them.
    pub fn parse(&mut self, head: &[u8], limits: &HeadLimits) -> Result<(), ParseError> {
        self.clear();
        if head.len() > limits.head_bytes_max {
            return Err(ParseError::HeadTooLarge);
        }
        self.fields.load(head);
        self.line = match self.fields.fill(limits.headers_max, read_grammar) {
            Ok(line) => line,
            Err(httparse::Error::TooManyHeaders) => return Err(ParseError::HeadTooLarge),
            Err(httparse::Error::Version) => return Err(version_error(head)),
            Err(_) => return Err(ParseError::BadRequest),
        };
        self.settle(limits)
    }

    /// Takes a head that arrived as fields, in a protocol with frames. It refuses everything that
    /// [`RequestHead::parse`] refuses.
    ///
    /// # Errors
    /// The errors of [`RequestHead::parse`].
    pub fn assemble<'a>(
        &mut self,
        parts: &RequestParts<'a>,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        limits: &HeadLimits,
    ) -> Result<(), ParseError> {
        self.clear();
        self.stream_end =
            if parts.ended || parts.websocket.is_some() { StreamEnd::WithHead } else { StreamEnd::Later };
        let method_bytes = self.fields.push_bytes(parts.method);
        let method = Method::from_bytes(parts.method);
        let target = self.fields.push_bytes(parts.target);
        self.line = RequestLine { method, method_bytes, target, version: parts.version };
        // RFC 9113 section 8.3.1: no absolute-form, which would name a second authority.
        let rooted = method == Method::Connect || matches!(parts.target, [b'/', ..] | b"*");
        if !(rooted && is_token(parts.method) && parts.method.len() <= METHOD_BYTES_MAX) {
            return Err(ParseError::BadRequest);
        }
        Assembly::new(&mut self.fields, limits).take_request(parts, fields)?;
        self.settle(limits)
    }

    /// Clears everything except whether the head arrived in frames: nothing in a refused head can be trusted.
    pub fn forget(&mut self) {
        let version = self.line.version;
        *self = RequestHead::new();
        if version.is_framed() {
            self.line.version = version;
        }
    }

    fn clear(&mut self) {
        self.line = EMPTY_LINE;
        self.path_and_query = Span::EMPTY;
        self.host = Span::EMPTY;
        self.stream_end = StreamEnd::InFields;
        self.fields.load(b"");
    }

    /// Checks what was read.
    fn settle(&mut self, limits: &HeadLimits) -> Result<(), ParseError> {
        if self.target().len() > limits.target_bytes_max {
            return Err(ParseError::TargetTooLong);
        }
        check_lookalikes(&self.fields)?;
        self.fields.read_connection().map_err(|_| ParseError::BadRequest)?;
        self.read_host()?;
        self.read_target()
    }

    pub(crate) fn stream_end(&self) -> StreamEnd {
        self.stream_end
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.line.method
    }

    /// The method as received; a token.
    pub fn method_bytes(&self) -> &[u8] {
        self.line.method_bytes.get(&self.fields.bytes)
    }

    /// The client's version.
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// The target as received.
    pub fn target(&self) -> &[u8] {
        self.line.target.get(&self.fields.bytes)
    }

    /// Path and query, never empty: for an absolute-form target the part after the authority; `*` for the server as a
    /// whole; the authority for CONNECT.
    pub fn path_and_query(&self) -> &[u8] {
        self.path_and_query.get(&self.fields.bytes)
    }

    /// The path without the query.
    pub fn path(&self) -> &[u8] {
        self.split_target().0
    }

    /// The path, and the query without its question mark, which is empty if there is none.
    pub fn split_target(&self) -> (&[u8], &[u8]) {
        let path_and_query = self.path_and_query();
        match path_and_query.iter().position(|&byte| byte == b'?') {
            Some(mark) => (&path_and_query[..mark], &path_and_query[mark + 1..]),
            None => (path_and_query, &[]),
        }
    }

    /// The authority that the request is for. Empty for an HTTP/1.0 request without one.
    pub fn host(&self) -> &[u8] {
        self.host.get(&self.fields.bytes)
    }

    /// [`host`](Self::host) without its port; an IPv6 address keeps its brackets.
    pub fn host_name(&self) -> &[u8] {
        host_name(self.host())
    }

    /// All fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = FieldRef<'_>> + Clone {
        self.fields.iter()
    }

    /// The value of the first field of this kind.
    pub fn field(&self, kind: FieldKind) -> Option<&[u8]> {
        self.fields.first(kind)
    }

    /// The value of the first field with this name, ignoring case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.fields.get(name)
    }

    /// Whether the client will send another request on this connection (RFC 9112 section 9.3).
    pub fn keep_alive(&self) -> bool {
        let options = &self.fields.connection;
        match self.version() {
            Version::Http11 | Version::Http2 | Version::Http3 => !options.close,
            Version::Http10 => options.keep_alive && !options.close,
        }
    }

    /// The requested protocols (RFC 9110 section 7.8), if the request can be upgraded: a GET of HTTP/1.1 without a
    /// body, with one Upgrade field that Connection lists; or the equivalent in HTTP/2 (RFC 8441).
    ///
    /// Never a protocol that turns the connection into another version of HTTP or into TLS: requests would then pass
    /// through it unchecked.
    pub fn upgrade(&self) -> Option<&[u8]> {
        let eligible = self.method() == Method::Get
            && self.version() != Version::Http10
            && self.fields.connection.upgrade
            && !self.fields.has(FieldKind::ContentLength)
            && !self.fields.has(FieldKind::TransferEncoding);
        self.fields.only(FieldKind::Upgrade).filter(|value| eligible && is_upgrade_list(value))
    }

    /// What the Expect field requests.
    pub fn expect(&self) -> Expect {
        if self.version() == Version::Http10 || !self.fields.has(FieldKind::Expect) {
            return Expect::None;
        }
        read_expect(self.fields.only(FieldKind::Expect))
    }

    /// RFC 9112 section 3.2: one valid Host, which only HTTP/1.0 may omit.
    fn read_host(&mut self) -> Result<(), ParseError> {
        let host = match self.fields.only(FieldKind::Host) {
            Some(value) => value,
            None if self.version() == Version::Http10 && !self.fields.has(FieldKind::Host) => b"",
            None => return Err(ParseError::BadHost),
        };
        let may_be_empty = self.version() == Version::Http10;
        if !(is_authority(host) || host.is_empty() && may_be_empty) {
            return Err(ParseError::BadHost);
        }
        self.host = Span::of(&self.fields.bytes, host);
        Ok(())
    }

    fn read_target(&mut self) -> Result<(), ParseError> {
        let target = read_target(self.target(), self.method()).ok_or(ParseError::BadRequest)?;
        match target {
            Target::Origin | Target::Asterisk => self.path_and_query = self.line.target,
            Target::Authority => {
                self.take_authority(self.line.target)?;
                self.path_and_query = self.line.target;
            }
            Target::Absolute { authority, path_and_query } => {
                let bytes = &self.fields.bytes;
                let (authority, rest) = (Span::of(bytes, authority), Span::of(bytes, path_and_query));
                self.take_authority(authority)?;
                self.path_and_query = self.rooted(rest);
            }
        }
        Ok(())
    }

    /// The target's authority takes precedence. A Host that differs could be routed as one authority and read as
    /// another.
    fn take_authority(&mut self, authority: Span) -> Result<(), ParseError> {
        let agrees = self.host().eq_ignore_ascii_case(authority.get(&self.fields.bytes));
        if !(agrees || self.host().is_empty()) {
            return Err(ParseError::BadHost);
        }
        self.host = authority;
        Ok(())
    }

    /// An absolute-form target without a path means `/`, and for OPTIONS the server as a whole (RFC 9112 section
    /// 3.2.4). The received bytes contain neither, so it is appended to them.
    fn rooted(&mut self, rest: Span) -> Span {
        let bytes = &mut self.fields.bytes;
        let root = match rest.get(bytes) {
            [b'/', ..] => return rest,
            [] if self.line.method == Method::Options => b'*',
            _ => b'/',
        };
        let start = bytes.len();
        bytes.push(root);
        bytes.extend_from_within(rest.range());
        Span::new(start, bytes.len())
    }
}

/// The scanner has seen a version at the end of the line. If the line has two spaces, the version is what is wrong.
fn version_error(head: &[u8]) -> ParseError {
    let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    match line.iter().filter(|&&byte| byte == b' ').count() {
        2 => ParseError::VersionNotSupported,
        _ => ParseError::BadRequest,
    }
}

fn read_grammar<'h, 'b>(bytes: &'b [u8], slots: Slots<'h, 'b>) -> Parsed<'h, 'b, RequestLine> {
    let mut request = Request::new(&mut []);
    let parsed = ParserConfig::default().parse_request_with_uninit_headers(&mut request, bytes, slots)?;
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(httparse::Error::Token);
    };
    // httparse skips empty lines before the request line, and stops at the first empty line after it.
    let whole = parsed == httparse::Status::Complete(bytes.len()) && bytes.starts_with(method.as_bytes());
    if !whole {
        return Err(httparse::Error::NewLine);
    }
    let line = RequestLine {
        method: Method::from_bytes(method.as_bytes()),
        method_bytes: Span::of(bytes, method.as_bytes()),
        target: Span::of(bytes, target.as_bytes()),
        version: if minor == 0 { Version::Http10 } else { Version::Http11 },
    };
    Ok((line, request.headers))
}

/// Refuses `Content_Length` and `Transfer_Encoding`, which CGI-like servers read as the real fields.
fn check_lookalikes(fields: &Fields) -> Result<(), ParseError> {
    if !fields.has(FieldKind::Lookalike) {
        return Ok(());
    }
    let imitates_framing = fields.iter().any(|field| {
        field.kind == FieldKind::Lookalike
            && matches!(
                owned_lookalike(field.name),
                Some(FieldKind::ContentLength | FieldKind::TransferEncoding)
            )
    });
    if imitates_framing { Err(ParseError::BadFraming) } else { Ok(()) }
}
