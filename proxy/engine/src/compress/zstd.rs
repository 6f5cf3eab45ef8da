//! Zstandard.

use std::io;

use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

/// Bytes of a stream: the window and what is read ahead, the output, and the tables below.
pub(super) const BYTES: u64 = 1536 * 1024;
/// The window as a power of two: 128 KiB. Browsers take up to 8 MiB (RFC 9659), but each stream would then take 16.
const WINDOW_LOG: u32 = 17;
/// Entries of the tables, as powers of two; each has four bytes.
const HASH_LOG: u32 = 17;
const CHAIN_LOG: u32 = 16;
/// Room that is made for output at a time.
const ROOM: usize = 4 * 1024;

/// A stream that is being encoded.
pub(super) struct ZstdStream {
    state: Encoder<'static>,
    level: i32,
}

impl ZstdStream {
    pub(super) fn new(level: i32) -> io::Result<Self> {
        let mut state = Encoder::new(level)?;
        state.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        // Those of the higher levels are for larger windows, and take ten times as much.
        state.set_parameter(CParameter::HashLog(HASH_LOG))?;
        state.set_parameter(CParameter::ChainLog(CHAIN_LOG))?;
        Ok(Self { state, level })
    }

    /// The level at which it works.
    pub(super) fn level(&self) -> i32 {
        self.level
    }

    /// Prepares it for another body.
    pub(super) fn reset(&mut self) -> io::Result<()> {
        self.state.reinit()
    }

    pub(super) fn write(&mut self, input: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let mut input = InBuffer::around(input);
        while input.pos() < input.src.len() {
            self.step(out, |state, out| state.run(&mut input, out))?;
        }
        Some(())
    }

    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Option<()> {
        while self.step(out, |state, out| state.flush(out))? > 0 {}
        Some(())
    }

    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Option<()> {
        while self.step(out, |state, out| state.finish(out, true))? > 0 {}
        Some(())
    }

    fn step(
        &mut self,
        out: &mut Vec<u8>,
        work: impl FnOnce(&mut Encoder<'static>, &mut OutBuffer<'_, Vec<u8>>) -> io::Result<usize>,
    ) -> Option<usize> {
        out.reserve(ROOM);
        let at = out.len();
        work(&mut self.state, &mut OutBuffer::around_pos(out, at)).ok()
    }
}
