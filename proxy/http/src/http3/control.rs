//! The client's control stream (RFC 9114 section 6.2.1): frames about the connection, in an order that is checked.

use super::code::Http3Code;
use super::frame::{FrameKind, FrameReader, Step};
use super::priority::Priority;
use super::settings;
use super::varint::read_varint;

/// The most bytes of a control frame that mean something: settings, or a priority.
const FRAME_BYTES_MAX: usize = 4096;

/// A frame on the control stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlFrame {
    /// The client takes no more pushed responses. Clients send it as they leave.
    GoAway,
    /// The priority of the request on a stream.
    Priority(u64, Priority),
    /// A frame that changes nothing for a server that pushes nothing, such as the client's settings.
    Nothing,
}

/// Reads the control stream.
#[derive(Debug)]
pub struct ControlReader {
    frames: FrameReader,
    has_settings: bool,
    push_id_max: Option<u64>,
    goaway: Option<u64>,
}

impl Default for ControlReader {
    fn default() -> Self {
        Self {
            frames: FrameReader::new(FRAME_BYTES_MAX),
            has_settings: false,
            push_id_max: None,
            goaway: None,
        }
    }
}

impl ControlReader {
    /// Reads from the start of `input`, which is moved past it. `None` when more bytes are needed.
    ///
    /// # Errors
    /// The code that the connection ends with.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<ControlFrame>, Http3Code> {
        loop {
            let (used, step) = self.frames.step(input);
            *input = &input[used..];
            return match step {
                Step::More => Ok(None),
                Step::Begun(kind, length) => {
                    self.admit(kind, length)?;
                    continue;
                }
                Step::Frame(kind, payload) => self.frame(kind, &payload).map(Some),
                Step::Skipped => Ok(Some(ControlFrame::Nothing)),
                Step::TooLarge(_) => Err(Http3Code::ExcessiveLoad),
                Step::Data(_) => Err(Http3Code::FrameUnexpected),
            };
        }
    }

    fn admit(&mut self, kind: FrameKind, length: u64) -> Result<(), Http3Code> {
        if !self.has_settings && kind != FrameKind::Settings {
            return Err(Http3Code::MissingSettings);
        }
        match kind {
            FrameKind::Settings if length > FRAME_BYTES_MAX as u64 => Err(Http3Code::ExcessiveLoad),
            FrameKind::Settings if std::mem::replace(&mut self.has_settings, true) => {
                Err(Http3Code::FrameUnexpected)
            }
            FrameKind::Data | FrameKind::Headers | FrameKind::PushPromise | FrameKind::Reserved(_) => {
                Err(Http3Code::FrameUnexpected)
            }
            FrameKind::Unknown(_) => Ok(()),
            _ if length > FRAME_BYTES_MAX as u64 => Err(Http3Code::ExcessiveLoad),
            _ => Ok(()),
        }
    }

    fn frame(&mut self, kind: FrameKind, payload: &[u8]) -> Result<ControlFrame, Http3Code> {
        match kind {
            FrameKind::Settings => settings::check(payload).map(|()| ControlFrame::Nothing),
            FrameKind::GoAway => {
                let id = only_number(payload)?;
                if self.goaway.replace(id).is_some_and(|before| id > before) {
                    return Err(Http3Code::IdError);
                }
                Ok(ControlFrame::GoAway)
            }
            FrameKind::MaxPushId => {
                let id = only_number(payload)?;
                if self.push_id_max.replace(id).is_some_and(|before| id < before) {
                    return Err(Http3Code::IdError);
                }
                Ok(ControlFrame::Nothing)
            }
            // Nothing was promised.
            FrameKind::CancelPush => only_number(payload).and(Err(Http3Code::IdError)),
            FrameKind::PriorityUpdate => {
                let (id, size) = read_varint(payload).ok_or(Http3Code::FrameError)?;
                // A request is on a bidirectional stream of the client.
                if id & 3 != 0 {
                    return Err(Http3Code::IdError);
                }
                Ok(ControlFrame::Priority(id, Priority::read(&payload[size..])))
            }
            FrameKind::PushPriorityUpdate => Err(Http3Code::IdError),
            _ => Ok(ControlFrame::Nothing),
        }
    }
}

/// The only number in a payload.
fn only_number(payload: &[u8]) -> Result<u64, Http3Code> {
    match read_varint(payload) {
        Some((number, size)) if size == payload.len() => Ok(number),
        _ => Err(Http3Code::FrameError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: [u8; 2] = [4, 0];

    fn read(bytes: &[u8]) -> Result<Vec<ControlFrame>, Http3Code> {
        let (mut reader, mut frames) = (ControlReader::default(), Vec::new());
        for byte in bytes {
            let mut input = &[*byte][..];
            while let Some(frame) = reader.next(&mut input)? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    fn after_settings(bytes: &[u8]) -> Result<Vec<ControlFrame>, Http3Code> {
        let mut frames = read(&[&SETTINGS, bytes].concat())?;
        assert_eq!(frames.remove(0), ControlFrame::Nothing);
        Ok(frames)
    }

    #[test]
    fn frames_are_read() {
        assert_eq!(after_settings(&[7, 1, 8, 7, 1, 8, 7, 1, 4]), Ok(vec![ControlFrame::GoAway; 3]));
        assert_eq!(after_settings(&[0xd, 1, 8, 0x21, 1, 8]), Ok(vec![ControlFrame::Nothing; 2]));
        let priority = Priority { urgency: 1, is_incremental: false };
        assert_eq!(
            after_settings(&[0x80, 0x0f, 0x07, 0x00, 4, 4, b'u', b'=', b'1']),
            Ok(vec![ControlFrame::Priority(4, priority)])
        );
    }

    #[test]
    fn violations_have_their_codes() {
        for (bytes, code) in [
            (&[0x21, 0][..], Http3Code::MissingSettings),
            (&[7, 1, 0], Http3Code::MissingSettings),
            (&[0, 1, 0], Http3Code::MissingSettings),
            (&[4, 0, 4, 0], Http3Code::FrameUnexpected),
            (&[4, 0, 0, 1], Http3Code::FrameUnexpected),
            (&[4, 0, 1, 1], Http3Code::FrameUnexpected),
            (&[4, 0, 5, 1], Http3Code::FrameUnexpected),
            (&[4, 0, 2, 1], Http3Code::FrameUnexpected),
            (&[4, 0, 9, 0], Http3Code::FrameUnexpected),
            (&[4, 0, 7, 1, 4, 7, 1, 8], Http3Code::IdError),
            (&[4, 0, 0xd, 1, 4, 0xd, 1, 3], Http3Code::IdError),
            (&[4, 0, 3, 1, 0], Http3Code::IdError),
            (&[4, 0, 3, 0], Http3Code::FrameError),
            (&[4, 0, 7, 2, 1, 1], Http3Code::FrameError),
            (&[4, 0, 0x80, 0x0f, 0x07, 0x00, 1, 2], Http3Code::IdError),
            (&[4, 0, 0x80, 0x0f, 0x07, 0x00, 0], Http3Code::FrameError),
            (&[4, 0, 0x80, 0x0f, 0x07, 0x01, 1, 0], Http3Code::IdError),
            (&[4, 0, 7, 0x80, 1, 0, 0], Http3Code::ExcessiveLoad),
        ] {
            assert_eq!(read(bytes), Err(code), "{bytes:x?}");
        }
    }
}
