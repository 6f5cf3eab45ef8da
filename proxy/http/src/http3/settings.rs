//! Settings (RFC 9114 section 7.2.4).

use super::code::Http3Code;
use super::frame::FrameKind;
use super::push_frame_header;
use super::varint::{push_varint, read_varint};

const QPACK_MAX_TABLE_CAPACITY: u64 = 1;
const MAX_FIELD_SECTION_SIZE: u64 = 6;
const QPACK_BLOCKED_STREAMS: u64 = 7;
/// RFC 9220 section 3.
const ENABLE_CONNECT_PROTOCOL: u64 = 8;
/// Settings of HTTP/2 that HTTP/3 forbids (section 7.2.4.1).
const RESERVED: [u64; 4] = [2, 3, 4, 5];
/// The most settings that a client may send: more than there are registered.
const SETTINGS_MAX: usize = 64;

/// What sluice announces.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The most bytes of a field section.
    pub field_section_bytes_max: u64,
}

impl Settings {
    /// The frame.
    pub fn frame(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for (id, value) in [
            (QPACK_MAX_TABLE_CAPACITY, 0),
            (MAX_FIELD_SECTION_SIZE, self.field_section_bytes_max),
            (QPACK_BLOCKED_STREAMS, 0),
            (ENABLE_CONNECT_PROTOCOL, 1),
        ] {
            push_varint(&mut payload, id);
            push_varint(&mut payload, value);
        }
        let mut frame = Vec::new();
        push_frame_header(&mut frame, FrameKind::Settings, payload.len() as u64);
        frame.append(&mut payload);
        frame
    }
}

/// Checks the payload of a client's SETTINGS frame. What it announces changes nothing: sluice fills no dynamic
/// table, and a client resets a response whose head is too large for it.
///
/// # Errors
/// It is malformed, has a setting twice or one that is forbidden.
pub(super) fn check(mut payload: &[u8]) -> Result<(), Http3Code> {
    let mut seen = Vec::new();
    while !payload.is_empty() {
        let mut number = || {
            let (number, size) = read_varint(payload).ok_or(Http3Code::FrameError)?;
            payload = &payload[size..];
            Ok(number)
        };
        let (id, value) = (number()?, number()?);
        let is_invalid = id == ENABLE_CONNECT_PROTOCOL && value > 1;
        if is_invalid || seen.contains(&id) || RESERVED.contains(&id) {
            return Err(Http3Code::SettingsError);
        }
        if seen.len() == SETTINGS_MAX {
            return Err(Http3Code::ExcessiveLoad);
        }
        seen.push(id);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_settings_are_valid_and_violations_are_not() {
        let frame = Settings { field_section_bytes_max: 40_000 }.frame();
        assert_eq!(frame[0], 4);
        assert_eq!(check(&frame[2..]), Ok(()));
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[0x21, 0x05]), Ok(()), "unknown");
        for (payload, code) in [
            (&[0x06][..], Http3Code::FrameError),
            (&[0x06, 0x40], Http3Code::FrameError),
            (&[0x06, 0x01, 0x06, 0x01], Http3Code::SettingsError),
            (&[0x02, 0x00], Http3Code::SettingsError),
            (&[0x08, 0x02], Http3Code::SettingsError),
        ] {
            assert_eq!(check(payload), Err(code), "{payload:x?}");
        }
    }
}
