//! What a client may say on the streams of QPACK if there is no dynamic table (RFC 9204 sections 4.3 and 4.4).

use super::super::code::Http3Code;

/// Set Dynamic Table Capacity, to zero: the only instruction that is allowed.
const NO_CAPACITY: u8 = 0x20;

/// The client's encoder stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct EncoderStream;

impl EncoderStream {
    /// Reads more of it.
    ///
    /// # Errors
    /// An instruction that needs a table.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Http3Code> {
        match bytes.iter().all(|byte| *byte == NO_CAPACITY) {
            true => Ok(()),
            false => Err(Http3Code::QpackEncoderStreamError),
        }
    }
}

/// The client's decoder stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct DecoderStream {
    /// Bytes of the number that is being read.
    number_bytes: u8,
}

impl DecoderStream {
    /// Reads more of it: only Stream Cancellation is allowed.
    ///
    /// # Errors
    /// Another instruction: it acknowledges what was never sent.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Http3Code> {
        const NUMBER_BYTES_MAX: u8 = 10;
        for byte in bytes {
            let goes_on = match self.number_bytes {
                0 if byte & 0xc0 != 0x40 => return Err(Http3Code::QpackDecoderStreamError),
                0 => byte & 0x3f == 0x3f,
                NUMBER_BYTES_MAX.. => return Err(Http3Code::QpackDecoderStreamError),
                _ => byte & 0x80 != 0,
            };
            self.number_bytes = if goes_on { self.number_bytes + 1 } else { 0 };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_needs_no_table_is_allowed() {
        assert_eq!(EncoderStream.read(&[0x20, 0x20]), Ok(()));
        for byte in [0x21, 0x3f, 0x00, 0x80, 0x40] {
            assert_eq!(EncoderStream.read(&[byte]), Err(Http3Code::QpackEncoderStreamError), "{byte:x}");
        }
        let mut stream = DecoderStream::default();
        assert_eq!(stream.read(&[0x44, 0x7f, 0x80]), Ok(()));
        assert_eq!(stream.read(&[0x01, 0x40]), Ok(()));
        assert_eq!(stream.read(&[0x84]), Err(Http3Code::QpackDecoderStreamError), "an acknowledgement");
        assert_eq!(DecoderStream::default().read(&[0x01]), Err(Http3Code::QpackDecoderStreamError));
        assert!(DecoderStream::default().read(&[0xff; 1]).is_err());
        let endless: Vec<u8> = std::iter::once(0x7f).chain([0x80; 20]).collect();
        assert!(DecoderStream::default().read(&endless).is_err());
    }
}
