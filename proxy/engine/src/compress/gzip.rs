//! gzip by zlib-rs.

use flate2::{Compress, Compression, FlushCompress, Status};

/// Bytes of a stream: the window and the tables of zlib at its largest memory level, and what is gathered.
pub(super) const BYTES: u64 = 464 * 1024;
/// `fast`, `balanced` and `best`. The levels of zlib-rs are not those of zlib: 4 makes bodies as small as level 6 there,
/// and beyond 7 they do not become smaller (docs/internals/compression.md).
pub(super) const LEVELS: [u32; 3] = [1, 4, 7];
/// The window of gzip, as a power of two.
const WINDOW_BITS: u8 = 15;
/// Room that is made for output at a time.
const ROOM: usize = 4 * 1024;

/// A stream that is being encoded.
pub(super) struct GzipStream {
    state: Compress,
    level: u32,
}

impl GzipStream {
    pub(super) fn new(level: u32) -> Self {
        Self { state: Compress::new_gzip(Compression::new(level), WINDOW_BITS), level }
    }

    /// The level at which it works.
    pub(super) fn level(&self) -> u32 {
        self.level
    }

    /// Prepares it for another body.
    pub(super) fn reset(&mut self) {
        self.state.reset();
    }

    pub(super) fn write(&mut self, mut input: &[u8], out: &mut Vec<u8>) -> Option<()> {
        while !input.is_empty() {
            let before = self.state.total_in();
            self.step(input, out, FlushCompress::None)?;
            input = &input[usize::try_from(self.state.total_in() - before).ok()?..];
        }
        Some(())
    }

    pub(super) fn flush(&mut self, out: &mut Vec<u8>) -> Option<()> {
        // Done when it leaves room.
        loop {
            self.step(&[], out, FlushCompress::Sync)?;
            if out.len() < out.capacity() {
                return Some(());
            }
        }
    }

    pub(super) fn finish(&mut self, out: &mut Vec<u8>) -> Option<()> {
        while self.step(&[], out, FlushCompress::Finish)? != Status::StreamEnd {}
        Some(())
    }

    fn step(&mut self, input: &[u8], out: &mut Vec<u8>, flush: FlushCompress) -> Option<Status> {
        out.reserve(ROOM);
        self.state.compress_vec(input, out, flush).ok()
    }
}
