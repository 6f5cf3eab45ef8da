//! What a request for a file, or for a stored response, gets: all of it, parts, or only a status.

use sluice_http::{ByteRange, Method, Precondition, Ranges, RequestHead, Validators};

/// What a response may be made of.
pub(crate) struct WholeContent<'c> {
    pub(crate) validators: Validators<'c>,
    /// Bytes.
    pub(crate) length: u64,
    /// Its media type.
    pub(crate) kind: &'c str,
}

/// A response with such content.
pub(crate) struct Plan {
    /// The status.
    pub(crate) status: u16,
    /// Whether it has a body that is made of the content.
    pub(crate) has_content: bool,
    /// The parts of the content, each with the text before it.
    pub(crate) parts: Vec<(Vec<u8>, ByteRange)>,
    /// The text after the last part.
    pub(crate) end: Vec<u8>,
    /// Content-Range, if there is one part.
    pub(crate) content_range: Option<Vec<u8>>,
    /// The separator of several parts.
    pub(crate) boundary: Option<String>,
}

impl Plan {
    /// The plan for a GET or HEAD.
    pub(crate) fn new(
        content: &WholeContent<'_>,
        head: &RequestHead,
        now_s: u64,
        boundary: impl FnOnce() -> String,
    ) -> Self {
        let validators = content.validators;
        match validators.check(head) {
            Precondition::NotModified => return Self::status(304),
            Precondition::Failed => return Self::status(412),
            Precondition::Holds => {}
        }
        // Two fields are malformed.
        let mut ranges = head.fields().filter(|field| field.name.eq_ignore_ascii_case(b"range"));
        let range = ranges.next().filter(|_| ranges.next().is_none() && head.method() == Method::Get);
        let range = range.map(|field| field.value);
        let ranges = match range.filter(|_| validators.may_send_range(head, now_s)) {
            Some(range) => Ranges::read(range, content.length),
            None => Ranges::Whole,
        };
        match ranges {
            Ranges::Whole => Self::whole(content.length),
            Ranges::Unsatisfiable => {
                let content_range = Some(format!("bytes */{}", content.length).into_bytes());
                Self { content_range, ..Self::status(416) }
            }
            Ranges::Parts(parts) => match parts[..] {
                [part] => Self {
                    has_content: true,
                    content_range: Some(content_range(part, content.length)),
                    parts: vec![(Vec::new(), part)],
                    ..Self::status(206)
                },
                _ => Self::several((content.length, content.kind), parts, boundary()),
            },
        }
    }

    fn status(status: u16) -> Self {
        Self {
            status,
            has_content: false,
            parts: Vec::new(),
            end: Vec::new(),
            content_range: None,
            boundary: None,
        }
    }

    /// The plan for all of a content of this length, with a status.
    pub(crate) fn all(length: u64, status: u16) -> Self {
        Self { status, ..Self::whole(length) }
    }

    fn whole(length: u64) -> Self {
        let part = length.checked_sub(1).map(|last| (Vec::new(), ByteRange { first: 0, last }));
        Self { has_content: true, parts: part.into_iter().collect(), ..Self::status(200) }
    }

    /// RFC 9110 section 14.6.
    fn several((length, kind): (u64, &str), parts: Vec<ByteRange>, boundary: String) -> Self {
        let before = |at: usize, part: ByteRange| {
            let line_end = if at == 0 { "" } else { "\r\n" };
            let kind = if kind.is_empty() { String::new() } else { format!("Content-Type: {kind}\r\n") };
            let head = format!("{line_end}--{boundary}\r\n{kind}Content-Range: ");
            ([head.as_bytes(), &content_range(part, length), b"\r\n\r\n"].concat(), part)
        };
        Self {
            parts: parts.into_iter().enumerate().map(|(at, part)| before(at, part)).collect(),
            has_content: true,
            end: format!("\r\n--{boundary}--\r\n").into_bytes(),
            boundary: Some(boundary),
            ..Self::status(206)
        }
    }

    /// Bytes of its body.
    pub(crate) fn length(&self) -> u64 {
        let parts = self.parts.iter().map(|(before, part)| before.len() as u64 + part.length());
        parts.sum::<u64>() + self.end.len() as u64
    }

    /// The pieces of the body in order, of a content that is in memory.
    pub(crate) fn pieces<'p>(&'p self, content: &'p [u8]) -> impl Iterator<Item = &'p [u8]> {
        // The plan was made for these bytes.
        let slice = |part: &ByteRange| {
            let (first, last) = (usize::try_from(part.first), usize::try_from(part.last));
            first.ok().zip(last.ok()).and_then(|(first, last)| content.get(first..=last)).unwrap_or_default()
        };
        let parts = self.parts.iter().flat_map(move |(before, part)| [&before[..], slice(part)]);
        parts.chain([&self.end[..]]).filter(|piece| !piece.is_empty())
    }

    /// The only part, if nothing surrounds it.
    pub(crate) fn only_part(&self) -> Option<ByteRange> {
        match &self.parts[..] {
            [(before, part)] if before.is_empty() && self.end.is_empty() => Some(*part),
            _ => None,
        }
    }
}

fn content_range(part: ByteRange, length: u64) -> Vec<u8> {
    format!("bytes {}-{}/{length}", part.first, part.last).into_bytes()
}
