//! The frames of a request on its stream, in the order that they may have (RFC 9114 section 4.1).

use super::code::Http3Code;
use super::frame::{FrameKind, FrameReader, Step};

/// A part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessagePart {
    /// More bytes are needed.
    More,
    /// The field section of the head; `None` if it is too large.
    Head(Option<Vec<u8>>),
    /// This many of the following bytes belong to the body; the caller takes them.
    Data(usize),
    /// The field section of the trailers; `None` if it is too large.
    Trailers(Option<Vec<u8>>),
    /// A frame that means nothing: an unknown one, or DATA without bytes.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Head,
    Body,
    End,
}

/// Reads a message from a client.
#[derive(Debug)]
pub struct MessageReader {
    frames: FrameReader,
    phase: Phase,
    section_bytes_max: u64,
}

impl MessageReader {
    /// A reader that takes field sections of up to `section_bytes_max` bytes, as they are encoded.
    pub fn new(section_bytes_max: usize) -> Self {
        let frames = FrameReader::new(section_bytes_max);
        Self { frames, phase: Phase::Head, section_bytes_max: section_bytes_max as u64 }
    }

    /// Reads from the start of `input`. Returns how many bytes are used up, and what was found; bytes of a body follow
    /// the used ones.
    ///
    /// # Errors
    /// The code that the connection ends with.
    pub fn next(&mut self, input: &[u8]) -> Result<(usize, MessagePart), Http3Code> {
        let mut used = 0;
        loop {
            let (more, step) = self.frames.step(&input[used..]);
            used += more;
            let part = match step {
                Step::More => MessagePart::More,
                Step::Begun(kind, length) => {
                    self.admit(kind)?;
                    match (kind, length) {
                        (FrameKind::Data, 0) => MessagePart::Nothing,
                        // Its bytes are skipped later.
                        (FrameKind::Headers, _) if length > self.section_bytes_max => self.section(None),
                        _ => continue,
                    }
                }
                Step::Data(count) => MessagePart::Data(count),
                Step::Frame(_, section) => self.section(Some(section)),
                Step::TooLarge(_) | Step::Skipped => MessagePart::Nothing,
            };
            return Ok((used, part));
        }
    }

    fn admit(&self, kind: FrameKind) -> Result<(), Http3Code> {
        match (kind, self.phase) {
            (FrameKind::Unknown(_), _) | (FrameKind::Headers, Phase::Head | Phase::Body) => Ok(()),
            (FrameKind::Data, Phase::Body) => Ok(()),
            _ => Err(Http3Code::FrameUnexpected),
        }
    }

    fn section(&mut self, section: Option<Vec<u8>>) -> MessagePart {
        match std::mem::replace(&mut self.phase, Phase::Body) {
            Phase::Head => MessagePart::Head(section),
            Phase::Body | Phase::End => {
                self.phase = Phase::End;
                MessagePart::Trailers(section)
            }
        }
    }

    /// Whether the stream may end here.
    ///
    /// # Errors
    /// It ended within a frame, which is an error of the connection.
    pub fn end(&self) -> Result<(), Http3Code> {
        if self.frames.is_between_frames() { Ok(()) } else { Err(Http3Code::FrameError) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parts(mut input: &[u8]) -> Result<Vec<MessagePart>, Http3Code> {
        let (mut reader, mut parts) = (MessageReader::new(4), Vec::new());
        loop {
            let (used, part) = reader.next(input)?;
            input = &input[used..];
            match part {
                MessagePart::More => return reader.end().map(|()| parts),
                MessagePart::Data(count) => input = &input[count..],
                _ => {}
            }
            parts.push(part);
        }
    }

    #[test]
    fn messages_are_read_in_order() {
        let message = [0x21, 1, 9, 1, 1, b'h', 0, 2, 9, 9, 0, 0, 0x21, 0, 1, 1, b't', 0x21, 0];
        use MessagePart::{Data, Head, Nothing, Trailers};
        let section = |byte| Some(vec![byte]);
        assert_eq!(
            parts(&message).unwrap(),
            [Nothing, Head(section(b'h')), Data(2), Nothing, Nothing, Trailers(section(b't')), Nothing]
        );
        assert_eq!(parts(&[1, 5, 0, 0, 0, 0, 0]).unwrap(), [Head(None), Nothing]);
    }

    #[test]
    fn frames_out_of_order_are_errors() {
        for (message, code) in [
            (&[0, 1, 9][..], Http3Code::FrameUnexpected),
            (&[1, 0, 1, 0, 1, 0], Http3Code::FrameUnexpected),
            (&[1, 0, 1, 0, 0, 1, 9], Http3Code::FrameUnexpected),
            (&[4, 0], Http3Code::FrameUnexpected),
            (&[1, 0, 7, 1, 0], Http3Code::FrameUnexpected),
            (&[1, 0, 0xd, 1, 0], Http3Code::FrameUnexpected),
            (&[1, 0, 5, 1, 0], Http3Code::FrameUnexpected),
            (&[1, 0, 2, 0], Http3Code::FrameUnexpected),
            (&[1, 0, 0, 2, 9], Http3Code::FrameError),
            (&[1, 3, 9], Http3Code::FrameError),
        ] {
            assert_eq!(parts(message), Err(code), "{message:x?}");
        }
    }
}
