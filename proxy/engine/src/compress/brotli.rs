//! Brotli.

use std::io::Write;

use ::brotli::CompressorWriter;
use ::brotli::enc::BrotliEncoderParams;

/// Bytes of a stream: the window, the input and the hash table, which has 2 MiB at quality 6.
pub(super) const BYTES: u64 = 3 * 1024 * 1024;
/// The window as a power of two: 128 KiB.
const WINDOW_LOG: i32 = 17;
/// The largest length that the encoder is told. From 1 MiB on it would take a larger table.
const HINT_MAX: u64 = (1 << 20) - 1;
/// Room for output within the encoder.
const ROOM: usize = 8 * 1024;

/// A stream that is being encoded.
pub(super) struct BrotliStream {
    /// `None` once it has ended.
    writer: Option<CompressorWriter<Vec<u8>>>,
}

impl BrotliStream {
    /// A stream for a body of so many bytes, if that is known.
    pub(super) fn new(quality: i32, length: Option<u64>) -> Self {
        let params = BrotliEncoderParams {
            quality,
            lgwin: WINDOW_LOG,
            size_hint: usize::try_from(length.unwrap_or(0).min(HINT_MAX)).unwrap_or(0),
            ..BrotliEncoderParams::default()
        };
        Self { writer: Some(CompressorWriter::with_params(Vec::new(), ROOM, &params)) }
    }

    pub(super) fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let writer = self.writer.as_mut()?;
        writer.write_all(input).ok()?;
        out.append(writer.get_mut());
        Some(())
    }

    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Option<()> {
        let writer = self.writer.as_mut()?;
        writer.flush().ok()?;
        out.append(writer.get_mut());
        Some(())
    }

    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Option<()> {
        out.append(&mut self.writer.take()?.into_inner());
        Some(())
    }
}
