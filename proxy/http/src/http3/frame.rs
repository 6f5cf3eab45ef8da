//! Frames on a stream (RFC 9114 section 7): found piece by piece, without copying the bytes of DATA.

use super::varint::read_varint;

/// The most bytes of a frame's header: two numbers.
const HEADER_BYTES_MAX: usize = 16;

/// A type of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A part of a body.
    Data,
    /// A field section: a head or trailers.
    Headers,
    /// The client does not need a pushed response.
    CancelPush,
    /// The sender's settings.
    Settings,
    /// The head of a request that a server answers unasked.
    PushPromise,
    /// The sender accepts no more.
    GoAway,
    /// How many responses the server may push.
    MaxPushId,
    /// The priority of a request (RFC 9218 section 7.2).
    PriorityUpdate,
    /// The priority of a pushed response.
    PushPriorityUpdate,
    /// A frame of HTTP/2 that HTTP/3 forbids (section 7.2.8).
    Reserved(u64),
    /// An unknown type, to be ignored (section 9).
    Unknown(u64),
}

impl FrameKind {
    /// Its number on the wire.
    pub fn number(self) -> u64 {
        match self {
            Self::Data => 0,
            Self::Headers => 1,
            Self::CancelPush => 3,
            Self::Settings => 4,
            Self::PushPromise => 5,
            Self::GoAway => 7,
            Self::MaxPushId => 0xd,
            Self::PriorityUpdate => 0xf0700,
            Self::PushPriorityUpdate => 0xf0701,
            Self::Reserved(number) | Self::Unknown(number) => number,
        }
    }

    fn of(number: u64) -> Self {
        match number {
            0 => Self::Data,
            1 => Self::Headers,
            3 => Self::CancelPush,
            4 => Self::Settings,
            5 => Self::PushPromise,
            7 => Self::GoAway,
            0xd => Self::MaxPushId,
            0xf0700 => Self::PriorityUpdate,
            0xf0701 => Self::PushPriorityUpdate,
            2 | 6 | 8 | 9 => Self::Reserved(number),
            _ => Self::Unknown(number),
        }
    }
}

/// What comes next on the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// The header of a frame, of this many bytes. The caller may refuse it.
    Begun(FrameKind, u64),
    /// This many of the following bytes belong to the body; the caller takes them.
    Data(usize),
    /// A whole frame that is neither DATA nor unknown.
    Frame(FrameKind, Vec<u8>),
    /// A frame with more bytes than the reader keeps; they are skipped.
    TooLarge(FrameKind),
    /// An unknown frame was skipped.
    Skipped,
}

/// Reads the frames of one stream.
#[derive(Debug)]
pub struct FrameReader {
    /// The incomplete header of a frame.
    header: [u8; HEADER_BYTES_MAX],
    header_bytes: usize,
    frame: Option<Open>,
    /// The most bytes of a frame that are kept until it is whole.
    kept_max: usize,
}

/// A frame whose header was read.
#[derive(Debug)]
struct Open {
    kind: FrameKind,
    bytes_left: u64,
    /// `None` if the payload is not kept.
    kept: Option<Vec<u8>>,
}

impl FrameReader {
    /// A reader that keeps frames of up to `kept_max` bytes.
    pub fn new(kept_max: usize) -> Self {
        Self { header: [0; HEADER_BYTES_MAX], header_bytes: 0, frame: None, kept_max }
    }

    /// Whether the stream may end here: not within a frame.
    pub fn is_between_frames(&self) -> bool {
        self.frame.is_none() && self.header_bytes == 0
    }

    /// Reads from the start of `input`. Returns how many bytes are used up, and what was found; bytes of a body follow
    /// the used ones.
    pub fn step(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(frame) = &mut self.frame else {
            return self.read_header(input);
        };
        let count = usize::try_from(frame.bytes_left).unwrap_or(usize::MAX).min(input.len());
        if count == 0 && frame.bytes_left > 0 {
            return (0, Step::More);
        }
        frame.bytes_left -= count as u64;
        let is_whole = frame.bytes_left == 0;
        if frame.kind == FrameKind::Data {
            if is_whole {
                self.frame = None;
            }
            return (0, Step::Data(count));
        }
        if let Some(kept) = &mut frame.kept {
            kept.extend_from_slice(&input[..count]);
        }
        match self.frame.take_if(|_| is_whole) {
            None => (count, Step::More),
            Some(Open { kind: FrameKind::Unknown(_), .. }) => (count, Step::Skipped),
            Some(Open { kind, kept: Some(kept), .. }) => (count, Step::Frame(kind, kept)),
            Some(Open { kind, kept: None, .. }) => (count, Step::TooLarge(kind)),
        }
    }

    fn read_header(&mut self, input: &[u8]) -> (usize, Step) {
        let before = self.header_bytes;
        let taken = input.len().min(HEADER_BYTES_MAX - before);
        self.header[before..before + taken].copy_from_slice(&input[..taken]);
        self.header_bytes += taken;
        let header = &self.header[..self.header_bytes];
        let parsed = read_varint(header).and_then(|(kind, size)| {
            let (length, more) = read_varint(&header[size..])?;
            Some((FrameKind::of(kind), length, size + more))
        });
        let Some((kind, length, size)) = parsed else {
            return (taken, Step::More);
        };
        self.header_bytes = 0;
        let is_kept =
            !matches!(kind, FrameKind::Data | FrameKind::Unknown(_)) && length <= self.kept_max as u64;
        let is_nothing = kind == FrameKind::Data && length == 0;
        self.frame = (!is_nothing).then(|| Open { kind, bytes_left: length, kept: is_kept.then(Vec::new) });
        (size - before, Step::Begun(kind, length))
    }
}

#[cfg(test)]
mod tests {
    use super::super::push_frame_header;
    use super::*;

    /// All steps when the input arrives in pieces of `size` bytes, with bytes of bodies joined.
    fn steps(input: &[u8], size: usize) -> (Vec<Step>, Vec<u8>) {
        let (mut reader, mut steps, mut body) = (FrameReader::new(8), Vec::new(), Vec::new());
        for mut piece in input.chunks(size) {
            loop {
                let (used, step) = reader.step(piece);
                piece = &piece[used..];
                match step {
                    Step::More => break,
                    Step::Data(count) => {
                        body.extend_from_slice(&piece[..count]);
                        piece = &piece[count..];
                    }
                    step => steps.push(step),
                }
            }
            assert!(piece.is_empty());
        }
        assert!(reader.is_between_frames());
        (steps, body)
    }

    #[test]
    fn frames_are_found_however_they_arrive() {
        let mut input = Vec::new();
        for (kind, payload) in [
            (FrameKind::Headers, &b"head"[..]),
            (FrameKind::Data, b"body of some length"),
            (FrameKind::Data, b""),
            (FrameKind::Unknown(0x21), b"grease that is skipped"),
            (FrameKind::Settings, b""),
            (FrameKind::Headers, b"more than is kept"),
        ] {
            push_frame_header(&mut input, kind, payload.len() as u64);
            input.extend_from_slice(payload);
        }
        let (whole, body) = steps(&input, input.len());
        assert_eq!(body, b"body of some length");
        assert_eq!(
            whole,
            [
                Step::Begun(FrameKind::Headers, 4),
                Step::Frame(FrameKind::Headers, b"head".to_vec()),
                Step::Begun(FrameKind::Data, 19),
                Step::Begun(FrameKind::Data, 0),
                Step::Begun(FrameKind::Unknown(0x21), 22),
                Step::Skipped,
                Step::Begun(FrameKind::Settings, 0),
                Step::Frame(FrameKind::Settings, Vec::new()),
                Step::Begun(FrameKind::Headers, 17),
                Step::TooLarge(FrameKind::Headers),
            ]
        );
        for size in 1..input.len() {
            assert_eq!(steps(&input, size), (whole.clone(), body.clone()), "{size}");
        }
    }

    #[test]
    fn a_stream_that_ends_within_a_frame_is_noticed() {
        let mut reader = FrameReader::new(8);
        assert!(reader.is_between_frames());
        reader.step(&[1]);
        assert!(!reader.is_between_frames(), "half a header");
        reader.step(&[4]);
        reader.step(b"hea");
        assert!(!reader.is_between_frames(), "a payload");
        reader.step(b"d");
        assert!(reader.is_between_frames());
    }
}
