//! One body that is being encoded.

use std::time::Instant;

use sluice_config::{CompressLevel, Compression};
use sluice_core::metrics::Event;
use sluice_http::Coding;

use super::workshop::{Compressors, Place, Refusal, Stream};

/// The encoder of one body.
pub(crate) struct Encoder {
    place: Place,
    /// Whether something was written that was not flushed.
    holds_back: bool,
    /// Bytes of its output.
    written: u64,
    /// The output before it is framed.
    scratch: Vec<u8>,
}

/// The encoder is broken: memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// A step of one body.
enum Step<'i> {
    Write(&'i [u8]),
    Flush,
    Finish,
}

impl Compressors {
    /// An encoder for a body of so many bytes, if that is known. The error is what to count if there is none: it would
    /// take more than it may, of the worker's time or memory.
    pub(crate) fn encoder(
        &self,
        coding: Coding,
        level: CompressLevel,
        length: Option<u64>,
        limits: (&Compression, usize),
    ) -> Result<Encoder, Event> {
        self.open(coding, level, length, limits).map(Encoder::new).map_err(|refusal| match refusal {
            Refusal::Busy => Event::EncodingBusy,
            Refusal::Memory => Event::EncodingFull,
        })
    }
}

impl Encoder {
    pub(super) fn new(place: Place) -> Self {
        Self { place, holds_back: false, written: 0, scratch: Vec::new() }
    }

    /// Encodes more of the body; returns what can be sent of it.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn write(&mut self, input: &[u8]) -> Result<&[u8], Broken> {
        self.holds_back |= !input.is_empty();
        self.run(&Step::Write(input))
    }

    /// Returns what was held back.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn flush(&mut self) -> Result<&[u8], Broken> {
        if !std::mem::take(&mut self.holds_back) {
            return Ok(&[]);
        }
        self.run(&Step::Flush)
    }

    /// Ends the body; returns the last of it.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn finish(&mut self) -> Result<&[u8], Broken> {
        self.holds_back = false;
        self.run(&Step::Finish)
    }

    /// Bytes of its output so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    fn run(&mut self, step: &Step<'_>) -> Result<&[u8], Broken> {
        let begin = Instant::now();
        self.scratch.clear();
        let stream = self.place.stream.as_mut().ok_or(Broken)?;
        let done = apply(stream, step, &mut self.scratch);
        self.place.of().spend(begin.elapsed());
        if done.is_none() {
            // Its context is in no state to be used again.
            self.place.stream = None;
            return Err(Broken);
        }
        self.written += self.scratch.len() as u64;
        Ok(&self.scratch)
    }
}

fn apply(stream: &mut Stream, step: &Step<'_>, out: &mut Vec<u8>) -> Option<()> {
    match (stream, step) {
        (Stream::Gzip(stream), Step::Write(input)) => stream.write(input, out),
        (Stream::Gzip(stream), Step::Flush) => stream.flush(out),
        (Stream::Gzip(stream), Step::Finish) => stream.finish(out),
        (Stream::Zstd(stream), Step::Write(input)) => stream.write(input, out),
        (Stream::Zstd(stream), Step::Flush) => stream.flush(out),
        (Stream::Zstd(stream), Step::Finish) => stream.finish(out),
        (Stream::Brotli(stream), Step::Write(input)) => stream.write(input, out),
        (Stream::Brotli(stream), Step::Flush) => stream.flush(out),
        (Stream::Brotli(stream), Step::Finish) => stream.finish(out),
    }
}
