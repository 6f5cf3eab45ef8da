//! A worker's streams that are being encoded.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use sluice_config::{CompressLevel, Compression};
use sluice_http::Coding;

use super::brotli::BrotliStream;
use super::gzip::GzipStream;
use super::pace::{Effort, Pace};
use super::zstd::ZstdStream;
use super::{brotli, gzip, zstd};

/// Contexts of each kind that wait for the next response. More would only be needed by responses that are encoded at the
/// same time, and a worker encodes one after the other unless their applications are slow.
const IDLE_MAX: usize = 4;

/// What the streams of one worker share. Clones share it, too.
#[derive(Clone)]
pub(crate) struct Compressors(Rc<Shared>);

struct Shared {
    pace: Pace,
    /// Bytes of the streams under way.
    bytes: Cell<u64>,
    idle: RefCell<Idle>,
}

#[derive(Default)]
struct Idle {
    gzip: Vec<GzipStream>,
    zstd: Vec<ZstdStream>,
}

/// The state of one coding.
pub(super) enum Stream {
    Gzip(GzipStream),
    Zstd(ZstdStream),
    Brotli(Box<BrotliStream>),
}

/// The memory for a stream, returned when it is dropped.
pub(super) struct Place {
    work: Work,
    bytes: u64,
    of: Compressors,
}

/// How far a body is.
enum Work {
    /// Nothing is encoded yet, so that others can use the context meanwhile.
    Ahead(Task),
    UnderWay(Stream),
    /// Everything is encoded, or memory was short.
    Over,
}

/// How a body is encoded.
#[derive(Clone, Copy)]
struct Task {
    coding: Coding,
    level: CompressLevel,
    /// Its length, if that is known.
    length: Option<u64>,
}

/// The memory for streams is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfMemory;

impl Compressors {
    pub(crate) fn new() -> Self {
        Self(Rc::new(Shared { pace: Pace::new(), bytes: Cell::new(0), idle: RefCell::default() }))
    }

    /// The level for the next response, at most that of its route; `None` if encoding takes more of the worker's time than
    /// it may.
    pub(super) fn level(&self, of_route: CompressLevel, limits: &Compression) -> Option<CompressLevel> {
        match self.0.pace.effort(limits.cpu_percent_max) {
            Effort::Full => Some(of_route),
            Effort::Little => Some(CompressLevel::Fast),
            Effort::Nothing => None,
        }
    }

    /// A stream for a body of so many bytes, if that is known.
    pub(super) fn open(
        &self,
        coding: Coding,
        level: CompressLevel,
        length: Option<u64>,
        (limits, workers): (&Compression, usize),
    ) -> Result<Place, OutOfMemory> {
        let bytes = match coding {
            Coding::Gzip => gzip::BYTES,
            Coding::Zstd => zstd::BYTES,
            Coding::Brotli => brotli::BYTES,
        };
        let bytes_max = limits.memory_bytes_max / workers.max(1) as u64;
        if self.0.bytes.get() + bytes > bytes_max {
            return Err(OutOfMemory);
        }
        self.0.bytes.set(self.0.bytes.get() + bytes);
        let task = Task { coding, level, length };
        Ok(Place { work: Work::Ahead(task), bytes, of: self.clone() })
    }

    /// A context, if possible the one that was used last: the processor has most of it in its caches.
    fn stream(&self, Task { coding, level, length }: Task) -> Option<Stream> {
        let idle = &mut *self.0.idle.borrow_mut();
        Some(match coding {
            Coding::Gzip => {
                let level = gzip::LEVELS[level as usize];
                let found = idle.gzip.iter().rposition(|stream| stream.level() == level);
                Stream::Gzip(found.map_or_else(|| GzipStream::new(level), |index| idle.gzip.remove(index)))
            }
            Coding::Zstd => {
                let level = [1, 3, 9][level as usize];
                match idle.zstd.iter().rposition(|stream| stream.level() == level) {
                    Some(index) => Stream::Zstd(idle.zstd.remove(index)),
                    None => Stream::Zstd(ZstdStream::new(level).ok()?),
                }
            }
            Coding::Brotli => Stream::Brotli(Box::new(BrotliStream::new([1, 4, 6][level as usize], length))),
        })
    }

    /// Counts time that was spent on encoding.
    pub(super) fn spend(&self, time: Duration) {
        self.0.pace.spend(time);
    }

    fn take_back(&self, stream: Stream) {
        let idle = &mut *self.0.idle.borrow_mut();
        match stream {
            Stream::Gzip(mut stream) => {
                stream.reset();
                keep(&mut idle.gzip, stream);
            }
            Stream::Zstd(mut stream) => {
                if stream.reset().is_ok() {
                    keep(&mut idle.zstd, stream);
                }
            }
            // One of Brotli cannot be used again.
            Stream::Brotli(_) => {}
        }
    }
}

/// Keeps a context for the next response, in place of the one that was not used for the longest time.
fn keep<S>(idle: &mut Vec<S>, stream: S) {
    if idle.len() >= IDLE_MAX {
        idle.remove(0);
    }
    idle.push(stream);
}

impl Place {
    pub(super) fn of(&self) -> &Compressors {
        &self.of
    }

    /// The stream, which begins with the first call; `None` if memory is short, or after its end.
    pub(super) fn stream(&mut self) -> Option<&mut Stream> {
        if let Work::Ahead(task) = self.work {
            self.work = self.of.stream(task).map_or(Work::Over, Work::UnderWay);
        }
        match &mut self.work {
            Work::UnderWay(stream) => Some(stream),
            Work::Ahead(_) | Work::Over => None,
        }
    }

    /// The body has ended. Only now is its context used again: at level 1, zlib-rs 0.6.8 writes a broken stream with a
    /// context that was reset in the middle of a body.
    pub(super) fn end(&mut self) {
        if let Work::UnderWay(stream) = std::mem::replace(&mut self.work, Work::Over) {
            self.of.take_back(stream);
        }
    }

    /// Encodes no more; its context is in no state to be used again.
    pub(super) fn give_up(&mut self) {
        self.work = Work::Over;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.0.bytes.set(self.of.0.bytes.get() - self.bytes);
    }
}
