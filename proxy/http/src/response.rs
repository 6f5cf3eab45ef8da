//! A response head: the status line and its fields. `framing` determines where its body ends.

use httparse::{ParserConfig, Response};

use super::assemble::{Assembly, StreamEnd};
use super::error::ParseError;
use super::fields::{FieldRef, Fields, Parsed, Slots, Span};
use super::grammar::is_field_value;
use super::kind::FieldKind;
use super::method::Version;
use super::scan::HeadLimits;
use super::upgrade::is_upgrade_list;

/// Bytes of `HTTP/1.1 200`, after which the reason phrase may follow.
const STATUS_BYTES: usize = 12;

/// A parsed response head. It owns a copy of the bytes and is meant for reuse: `parse` allocates only to grow.
#[derive(Debug)]
pub struct ResponseHead {
    pub(super) fields: Fields,
    line: StatusLine,
    stream_end: StreamEnd,
}

#[derive(Clone, Copy, Debug)]
struct StatusLine {
    version: Version,
    status: u16,
    reason: Span,
}

const EMPTY_LINE: StatusLine = StatusLine { version: Version::Http11, status: 0, reason: Span::EMPTY };

impl Default for ResponseHead {
    fn default() -> Self {
        ResponseHead { fields: Fields::default(), line: EMPTY_LINE, stream_end: StreamEnd::InFields }
    }
}

impl ResponseHead {
    /// An empty head to parse into.
    pub fn new() -> ResponseHead {
        ResponseHead::default()
    }

    /// Parses `head`, which must be exactly what [`HeadScanner::for_response`](super::HeadScanner::for_response) found
    /// complete. A status line without a reason phrase, or without the space before it, is accepted.
    ///
    /// # Errors
    /// [`ParseError::BadResponse`]; the contents of the head are then undefined until the next `parse`.
    pub fn parse(&mut self, head: &[u8], limits: &HeadLimits) -> Result<(), ParseError> {
        self.clear();
        if head.len() > limits.head_bytes_max {
            return Err(ParseError::BadResponse);
        }
        self.fields.load(head);
        let parsed = self.fields.fill(limits.headers_max, read_grammar);
        self.line = parsed.map_err(|_| ParseError::BadResponse)?;
        let valid = matches!(self.status(), 100..=599) && is_field_value(self.reason());
        if !valid {
            return Err(ParseError::BadResponse);
        }
        self.fields.read_connection().map_err(|_| ParseError::BadResponse)
    }

    fn clear(&mut self) {
        self.line = EMPTY_LINE;
        self.stream_end = StreamEnd::InFields;
        self.fields.load(b"");
    }

    /// Takes a head that arrived as fields, in a protocol with frames. `ended` tells whether the stream ends with the
    /// head.
    ///
    /// # Errors
    /// [`ParseError::BadResponse`]; the contents of the head are then undefined until the next head.
    pub fn assemble<'a>(
        &mut self,
        (status, ended): (u16, bool),
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        limits: &HeadLimits,
    ) -> Result<(), ParseError> {
        self.clear();
        self.line = StatusLine { version: Version::Http2, status, reason: Span::EMPTY };
        self.stream_end = if ended { StreamEnd::WithHead } else { StreamEnd::Later };
        let mut assembly = Assembly::new(&mut self.fields, limits);
        for (name, value) in fields {
            assembly.take(name, value).map_err(|_| ParseError::BadResponse)?;
        }
        if matches!(status, 100..=599) { Ok(()) } else { Err(ParseError::BadResponse) }
    }

    pub(crate) fn stream_end(&self) -> StreamEnd {
        self.stream_end
    }

    /// The status, 100 to 599.
    pub fn status(&self) -> u16 {
        self.line.status
    }

    /// The reason phrase as received; may be empty.
    pub fn reason(&self) -> &[u8] {
        self.line.reason.get(&self.fields.bytes)
    }

    /// The endpoint's version.
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// All fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = FieldRef<'_>> {
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

    /// Whether its body is a stream of events, which is useful only while it arrives.
    pub fn is_event_stream(&self) -> bool {
        let kind = self.get(b"content-type").unwrap_or_default();
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default();
        kind.trim_ascii().eq_ignore_ascii_case(b"text/event-stream")
    }

    /// Whether the endpoint keeps the connection open (RFC 9112 section 9.3). The framing may still end it.
    pub fn keep_alive(&self) -> bool {
        let options = &self.fields.connection;
        match self.version() {
            Version::Http11 | Version::Http2 | Version::Http3 => !options.close,
            Version::Http10 => options.keep_alive && !options.close,
        }
    }

    /// The protocol that a valid 101 switches to: it has one Upgrade field, and Connection lists it. The caller must
    /// check that the client requested this protocol.
    pub fn upgrade(&self) -> Option<&[u8]> {
        let switches = self.status() == 101 && self.fields.connection.upgrade;
        self.fields.only(FieldKind::Upgrade).filter(|value| switches && is_upgrade_list(value))
    }
}

fn read_grammar<'h, 'b>(bytes: &'b [u8], slots: Slots<'h, 'b>) -> Parsed<'h, 'b, StatusLine> {
    let mut response = Response::new(&mut []);
    let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, slots)?;
    // httparse skips empty lines before the status line, but a response must not start with one.
    let whole = parsed == httparse::Status::Complete(bytes.len()) && bytes.starts_with(b"HTTP/1.");
    let (Some(minor), Some(status), true) = (response.version, response.code, whole) else {
        return Err(httparse::Error::Status);
    };
    let line = StatusLine {
        version: if minor == 0 { Version::Http10 } else { Version::Http11 },
        status,
        reason: reason_span(bytes),
    };
    Ok((line, response.headers))
}

/// httparse returns no reason phrase that contains obs-text, so it is taken from the line itself.
fn reason_span(bytes: &[u8]) -> Span {
    let end = bytes.iter().position(|&byte| byte == b'\r').unwrap_or(bytes.len());
    let start = STATUS_BYTES + usize::from(bytes.get(STATUS_BYTES) == Some(&b' '));
    Span::new(start.min(end), end)
}
