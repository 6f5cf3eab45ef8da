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
        self.place.has_ended = matches!(step, Step::Finish);
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read;

    use super::*;

    fn encoded(
        of: &Compressors,
        (coding, level): (Coding, CompressLevel),
        body: &[u8],
        (flushes, ends): (bool, bool),
    ) -> Vec<u8> {
        let limits = Compression { cpu_percent_max: 100, ..Compression::default() };
        let mut encoder = of.encoder(coding, level, None, (&limits, 1)).unwrap();
        let mut out = Vec::new();
        for piece in body.chunks(1000) {
            out.extend_from_slice(encoder.write(piece).unwrap());
            if flushes {
                out.extend_from_slice(encoder.flush().unwrap());
            }
        }
        if ends {
            out.extend_from_slice(encoder.finish().unwrap());
            assert_eq!(encoder.written(), out.len() as u64);
        }
        out
    }

    fn decoded(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match coding {
            Coding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap(),
            Coding::Zstd => ::zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut out).unwrap(),
            Coding::Brotli => ::brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).unwrap(),
        };
        out
    }

    #[test]
    fn a_context_has_nothing_left_of_the_body_before() {
        let of = Compressors::new();
        let mut random = fastrand::Rng::with_seed(7);
        for coding in Coding::ALL {
            for round in 0..400 {
                let levels = [CompressLevel::Fast, CompressLevel::Balanced, CompressLevel::Best];
                let level = levels[random.usize(..3)];
                let flushes = random.bool();
                let letters = random.u32(2..200);
                let body: Vec<u8> = (0..random.usize(..5_000)).map(|_| random.u32(..letters) as u8).collect();
                let ends = random.bool();
                let bytes = encoded(&of, (coding, level), &body, (flushes, ends));
                if ends {
                    assert!(decoded(coding, &bytes) == body, "{coding:?} {level:?} {flushes} {round}");
                }
            }
        }
    }
}
