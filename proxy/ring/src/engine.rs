//! The engines that a worker can run on, and the current thread's engine.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;

use super::{epoll, uring};

/// The implementation of a worker's I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// io_uring with sluice's own driver; the fastest.
    IoUring,
    /// io_uring with tokio-uring (Linux 6.6, because it cancels by descriptor and operation).
    TokioUring,
    /// epoll with tokio, where io_uring is denied.
    Epoll,
}

thread_local! {
    static CURRENT: Cell<Engine> = const { Cell::new(Engine::IoUring) };
}

impl Engine {
    /// Every engine, fastest first.
    pub const ALL: [Self; 3] = [Self::IoUring, Self::TokioUring, Self::Epoll];

    /// Its name, as in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::TokioUring => "tokio_uring",
            Self::Epoll => "epoll",
        }
    }

    /// This thread's engine.
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs `future` on this thread with a new engine, and leaks the engine: operations in progress at the end keep the
/// memory that the kernel accesses until the process ends.
///
/// # Errors
/// The engine cannot be created, or waiting on it failed.
pub fn run<F: Future>(engine: Engine, future: F) -> io::Result<F::Output> {
    CURRENT.set(engine);
    match engine {
        Engine::IoUring => uring::run(future),
        Engine::TokioUring => uring::run_on_tokio_uring(future),
        Engine::Epoll => epoll::run(future),
    }
}
