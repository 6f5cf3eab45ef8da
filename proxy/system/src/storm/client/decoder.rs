//! Decodes a body as it arrives.

use std::io::{self, Write};

/// The decoder of one body. What it has decoded is in its vector until it is taken.
pub(super) enum Decoder {
    /// There is nothing to decode.
    Plain,
    Gzip(Box<flate2::write::GzDecoder<Vec<u8>>>),
    Zstd(Box<ZstdDecoder>),
    Brotli(Box<brotli::DecompressorWriter<Vec<u8>>>),
}

/// Zstandard, and the bytes that may still be a part of a frame.
pub(super) struct ZstdDecoder {
    decoder: zstd::stream::raw::Decoder<'static>,
    /// What the decoder expects next, in bytes; 0 after a frame.
    wanted: usize,
}

impl Decoder {
    /// `None` if the coding is not known.
    pub(super) fn of(coding: &[u8]) -> Option<Self> {
        match coding {
            b"gzip" => Some(Self::Gzip(Box::new(flate2::write::GzDecoder::new(Vec::new())))),
            b"zstd" => {
                let decoder = zstd::stream::raw::Decoder::new().ok()?;
                Some(Self::Zstd(Box::new(ZstdDecoder { decoder, wanted: 1 })))
            }
            b"br" => Some(Self::Brotli(Box::new(brotli::DecompressorWriter::new(Vec::new(), 4096)))),
            _ => None,
        }
    }

    /// The next part of the body; `None` if it is the data itself.
    pub(super) fn decode(&mut self, data: &[u8]) -> io::Result<Option<Vec<u8>>> {
        Ok(Some(match self {
            Self::Plain => return Ok(None),
            Self::Gzip(decoder) => {
                decoder.write_all(data)?;
                // Otherwise it keeps what it has until the next write.
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
            Self::Zstd(decoder) => decoder.decode(data)?,
            Self::Brotli(decoder) => {
                decoder.write_all(data)?;
                decoder.flush()?;
                std::mem::take(decoder.get_mut())
            }
        }))
    }

    /// Whether the coding has ended.
    pub(super) fn is_complete(&mut self) -> bool {
        match self {
            Self::Plain => true,
            Self::Gzip(decoder) => decoder.try_finish().is_ok(),
            Self::Zstd(decoder) => decoder.wanted == 0,
            Self::Brotli(decoder) => decoder.close().is_ok(),
        }
    }
}

impl ZstdDecoder {
    fn decode(&mut self, data: &[u8]) -> io::Result<Vec<u8>> {
        use zstd::stream::raw::{InBuffer, Operation, OutBuffer};
        let mut out = Vec::new();
        let mut input = InBuffer::around(data);
        loop {
            out.reserve(8192);
            let before = out.len();
            self.wanted = self.decoder.run(&mut input, &mut OutBuffer::around_pos(&mut out, before))?;
            if input.pos() == data.len() && (self.wanted == 0 || out.len() < out.capacity()) {
                return Ok(out);
            }
        }
    }
}
