//! One body that is being encoded.

use std::time::Instant;

use sluice_config::{CompressLevel, Compression};
use sluice_core::metrics::Event;
use sluice_http::Coding;

use super::workshop::{Compressors, OutOfMemory, Place, Stream};

/// How much of a body is gathered before it is encoded: in small steps, the many bodies that arrive at the same time
/// would each need a context of their own, too many for the processor's caches.
const STEP_BYTES: usize = 64 * 1024;

/// The encoder of one body.
pub(crate) struct Encoder {
    place: Place,
    /// Only for a body whose length is known: others may be streams, of which each part is awaited.
    gathering: Option<Gathering>,
    /// Whether something was written that was not flushed.
    holds_back: bool,
    /// Bytes of its output.
    written: u64,
    /// The output before it is framed.
    scratch: Vec<u8>,
}

/// What has arrived of a body, and is not encoded yet.
#[derive(Default)]
struct Gathering {
    input: Vec<u8>,
    /// Bytes that have not arrived.
    missing: u64,
}

impl Gathering {
    /// Takes as much of the input as there is room for; returns the rest.
    fn add<'i>(&mut self, input: &'i [u8]) -> &'i [u8] {
        let (taken, rest) = input.split_at(input.len().min(STEP_BYTES.saturating_sub(self.input.len())));
        self.missing = self.missing.saturating_sub(taken.len() as u64);
        self.input.extend_from_slice(taken);
        rest
    }

    /// Whether it is encoded now.
    fn is_due(&self) -> bool {
        self.missing == 0 || self.input.len() >= STEP_BYTES
    }
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
        let level = self.level(level, limits.0);
        self.encoder_at(coding, level.ok_or(Event::EncodingBusy)?, length, limits)
    }

    /// The same for a body that is kept, and sent many times: if anything is encoded at all, at the level of its route.
    pub(crate) fn encoder_to_keep(
        &self,
        coding: Coding,
        level: CompressLevel,
        length: u64,
        limits: (&Compression, usize),
    ) -> Option<Encoder> {
        self.level(level, limits.0)?;
        self.encoder_at(coding, level, Some(length), limits).ok()
    }

    fn encoder_at(
        &self,
        coding: Coding,
        level: CompressLevel,
        length: Option<u64>,
        limits: (&Compression, usize),
    ) -> Result<Encoder, Event> {
        let place = self.open(coding, level, length, limits).map_err(|OutOfMemory| Event::EncodingFull)?;
        let gathering = length.map(|missing| Gathering { missing, ..Gathering::default() });
        Ok(Encoder { place, gathering, holds_back: false, written: 0, scratch: Vec::new() })
    }
}

impl Encoder {
    /// Encodes more of the body; returns what can be sent of it.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn write(&mut self, input: &[u8]) -> Result<&[u8], Broken> {
        self.holds_back |= !input.is_empty();
        self.scratch.clear();
        self.scratch.shrink_to(STEP_BYTES);
        if self.gathering.is_none() {
            self.run(&Step::Write(input))?;
            return Ok(&self.scratch);
        }
        let mut rest = input;
        while let Some(gathering) = self.gathering.as_mut().filter(|_| !rest.is_empty()) {
            rest = gathering.add(rest);
            if gathering.is_due() {
                self.run_gathered()?;
            }
        }
        Ok(&self.scratch)
    }

    /// Returns what was held back.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn flush(&mut self) -> Result<&[u8], Broken> {
        if !std::mem::take(&mut self.holds_back) {
            return Ok(&[]);
        }
        self.scratch.clear();
        self.run_gathered()?;
        self.run(&Step::Flush)?;
        Ok(&self.scratch)
    }

    /// Ends the body; returns the last of it.
    ///
    /// # Errors
    /// Memory is short.
    pub(crate) fn finish(&mut self) -> Result<&[u8], Broken> {
        self.holds_back = false;
        self.scratch.clear();
        self.run_gathered()?;
        self.run(&Step::Finish)?;
        Ok(&self.scratch)
    }

    /// Bytes of its output so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Encodes what was gathered.
    fn run_gathered(&mut self) -> Result<(), Broken> {
        let Some(gathering) = &mut self.gathering else { return Ok(()) };
        if gathering.input.is_empty() {
            return Ok(());
        }
        let mut input = std::mem::take(&mut gathering.input);
        self.run(&Step::Write(&input))?;
        if let Some(gathering) = self.gathering.as_mut().filter(|gathering| gathering.missing > 0) {
            input.clear();
            gathering.input = input;
        }
        Ok(())
    }

    /// Appends the output of a step to `scratch`.
    fn run(&mut self, step: &Step<'_>) -> Result<(), Broken> {
        let begin = Instant::now();
        let before = self.scratch.len();
        let done = self.place.stream().and_then(|stream| apply(stream, step, &mut self.scratch));
        self.place.of().spend(begin.elapsed());
        if done.is_none() {
            self.place.give_up();
            return Err(Broken);
        }
        if matches!(step, Step::Finish) {
            self.place.end();
        }
        self.written += (self.scratch.len() - before) as u64;
        Ok(())
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
        (flushes, ends, length): (bool, bool, Option<u64>),
    ) -> Vec<u8> {
        let limits = Compression { cpu_percent_max: 100, ..Compression::default() };
        let mut encoder = of.encoder(coding, level, length, (&limits, 1)).unwrap();
        let mut out = Vec::new();
        for piece in body.chunks(1 + body.len() / 7) {
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
                // Now and then more than is gathered at once.
                let most = if random.u8(..50) == 0 { 4 * STEP_BYTES } else { 5_000 };
                let body: Vec<u8> = (0..random.usize(..most)).map(|_| random.u32(..letters) as u8).collect();
                let ends = random.bool();
                let length = random.bool().then_some(body.len() as u64);
                let bytes = encoded(&of, (coding, level), &body, (flushes, ends, length));
                if ends {
                    assert!(decoded(coding, &bytes) == body, "{coding:?} {level:?} {flushes} {round}");
                }
            }
        }
    }
}
