//! Finds where a head ends, and refuses at the earliest byte what no head may contain. It does not interpret the head.

use memchr::memchr3;

use super::error::ParseError;
use super::grammar::is_token_byte;

/// Longest method accepted, in bytes; the longest registered one has 17.
pub(crate) const METHOD_BYTES_MAX: usize = 32;

/// Bytes of a request line in addition to its target: the method, two spaces and the version, rounded up.
const REQUEST_LINE_OVERHEAD_BYTES: usize = 64;

/// Bytes of empty lines that are skipped before a request line (RFC 9112 section 2.2).
const LEADING_CRLF_BYTES_MAX: usize = 8;

/// The limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Bytes of the head, from the start line through the empty line.
    pub head_bytes_max: usize,
    /// Fields of the head.
    pub headers_max: usize,
    /// Bytes of a request's target; a response has none.
    pub target_bytes_max: usize,
}

/// Progress of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// The head is this many bytes long, including its empty line.
    Complete(usize),
    /// More bytes are needed.
    Partial,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Message {
    #[default]
    Request,
    Response,
}

/// Finds the end of one head in a growing buffer.
///
/// It refuses a bare CR, a bare LF, a NUL and a folded line anywhere, and a start line that cannot become valid. How
/// the bytes were divided never changes the result.
#[derive(Debug, Default)]
pub struct HeadScanner {
    message: Message,
    /// Every byte before this offset has been scanned.
    resume: usize,
    /// Offset where the current line starts; 0 while it is the start line.
    line_start: usize,
}

impl HeadScanner {
    /// A scanner for request heads.
    pub fn new() -> HeadScanner {
        HeadScanner::default()
    }

    /// A scanner for response heads. All its errors are [`ParseError::BadResponse`].
    pub fn for_response() -> HeadScanner {
        HeadScanner { message: Message::Response, ..HeadScanner::default() }
    }

    /// Starts over for the connection's next head.
    pub fn reset(&mut self) {
        self.resume = 0;
        self.line_start = 0;
    }

    /// Scans the bytes that arrived since the last call. `buf` is everything unread, from the head's first byte.
    ///
    /// # Errors
    /// [`ParseError::BadRequest`], [`ParseError::HeadTooLarge`] and [`ParseError::TargetTooLong`]; for a response
    /// always [`ParseError::BadResponse`].
    pub fn scan(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<Scan, ParseError> {
        self.scan_lines(buf, limits).map_err(|error| match self.message {
            Message::Request => error,
            Message::Response => ParseError::BadResponse,
        })
    }

    fn scan_lines(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<Scan, ParseError> {
        if self.line_start == 0 {
            let line_bytes_max = self.start_line_bytes_max(limits);
            let window = window(buf, limits.head_bytes_max.min(line_bytes_max));
            self.check_start(window)?;
            let Some(end) = self.line_end(window)? else {
                return if window.len() == line_bytes_max && line_bytes_max < limits.head_bytes_max {
                    Err(ParseError::TargetTooLong)
                } else {
                    still_partial(window.len(), limits)
                };
            };
            self.check_start_line(&window[..end])?;
            self.advance_past(end);
        }
        let window = window(buf, limits.head_bytes_max);
        while let Some(end) = self.line_end(window)? {
            if end == self.line_start {
                return Ok(Scan::Complete(end + 2));
            }
            self.advance_past(end);
        }
        still_partial(window.len(), limits)
    }

    fn start_line_bytes_max(&self, limits: &HeadLimits) -> usize {
        match self.message {
            Message::Request => limits.target_bytes_max.saturating_add(REQUEST_LINE_OVERHEAD_BYTES + 2),
            Message::Response => usize::MAX,
        }
    }

    /// The position of the CR that ends the current line, once its LF has arrived.
    fn line_end(&mut self, window: &[u8]) -> Result<Option<usize>, ParseError> {
        // A line that starts with whitespace is a fold (RFC 9112 section 5.2) or hides a field from the next recipient.
        if matches!(window.get(self.line_start), Some(b' ' | b'\t')) {
            return Err(ParseError::BadRequest);
        }
        let unseen = window.get(self.resume..).unwrap_or_default();
        let Some(offset) = memchr3(b'\r', b'\n', 0, unseen) else {
            self.resume = window.len();
            return Ok(None);
        };
        let at = self.resume + offset;
        self.resume = at;
        match (window[at], window.get(at + 1)) {
            (b'\r', Some(b'\n')) => Ok(Some(at)),
            (b'\r', None) => Ok(None),
            _ => Err(ParseError::BadRequest),
        }
    }

    fn advance_past(&mut self, line_end: usize) {
        self.line_start = line_end + 2;
        self.resume = self.line_start;
    }

    /// Refuses a start that no later byte can make valid, so that a peer with another protocol gets an error at once.
    fn check_start(&self, buf: &[u8]) -> Result<(), ParseError> {
        match self.message {
            Message::Request => check_method(buf),
            Message::Response => {
                let seen = buf.len().min(b"HTTP/1.".len());
                if buf[..seen] == b"HTTP/1."[..seen] { Ok(()) } else { Err(ParseError::BadResponse) }
            }
        }
    }

    fn check_start_line(&self, line: &[u8]) -> Result<(), ParseError> {
        if self.message == Message::Response || ends_with_version(line) {
            Ok(())
        } else {
            Err(ParseError::BadRequest)
        }
    }
}

/// The number of bytes of empty lines before a request line that may be skipped: whole CRLFs, at most four.
///
/// A lone CR at the end is not counted, and the scanner waits for its LF. A caller that drops these bytes as they
/// arrive must count them itself to limit how many a client may send.
pub fn skip_leading_crlf(buf: &[u8]) -> usize {
    buf.chunks_exact(2).take(LEADING_CRLF_BYTES_MAX / 2).take_while(|pair| *pair == b"\r\n").count() * 2
}

fn window(buf: &[u8], bytes_max: usize) -> &[u8] {
    &buf[..buf.len().min(bytes_max)]
}

/// A head that has filled its limit without ending can only exceed it.
fn still_partial(seen: usize, limits: &HeadLimits) -> Result<Scan, ParseError> {
    if seen >= limits.head_bytes_max { Err(ParseError::HeadTooLarge) } else { Ok(Scan::Partial) }
}

fn check_method(buf: &[u8]) -> Result<(), ParseError> {
    if buf == b"\r" {
        return Ok(());
    }
    let start = &buf[..buf.len().min(METHOD_BYTES_MAX + 1)];
    match start.iter().position(|&byte| !is_token_byte(byte)) {
        Some(end) if end > 0 && start[end] == b' ' => Ok(()),
        Some(_) => Err(ParseError::BadRequest),
        None if start.len() > METHOD_BYTES_MAX => Err(ParseError::BadRequest),
        None => Ok(()),
    }
}

/// Whether `line` ends like an HTTP/1 request line: SP `HTTP/` DIGIT `.` DIGIT (RFC 9112 section 2.3).
fn ends_with_version(line: &[u8]) -> bool {
    let Some((_, [b' ', b'H', b'T', b'T', b'P', b'/', major, b'.', minor])) = line.split_last_chunk::<9>()
    else {
        return false;
    };
    major.is_ascii_digit() && minor.is_ascii_digit()
}
