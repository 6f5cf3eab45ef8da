//! The engines that a worker can run on, and which one this thread runs on.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;

use super::{epoll, uring};

/// What does the I/O of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// io_uring by a driver of our own, the fastest.
    IoUring,
    /// io_uring by tokio-uring (linux 6.6: it cancels by descriptor and operation).
    TokioUring,
    /// epoll by tokio, where io_uring is denied.
    Epoll,
}

thread_local! {
    static CURRENT: Cell<Engine> = const { Cell::new(Engine::IoUring) };
}

impl Engine {
    /// Every engine, the fastest first.
    pub const ALL: [Self; 3] = [Self::IoUring, Self::TokioUring, Self::Epoll];

    /// Its name, as in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::TokioUring => "tokio_uring",
            Self::Epoll => "epoll",
        }
    }

    /// That of this thread.
    pub(crate) fn current() -> Self {
        CURRENT.get()
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Runs `future` on this thread by an engine of its own, and leaks that: operations under way at the end keep what the
/// kernel touches until the process ends.
///
/// # Errors
/// The engine cannot be made, or not be waited for.
pub fn run<F: Future>(engine: Engine, future: F) -> io::Result<F::Output> {
    CURRENT.set(engine);
    match engine {
        Engine::IoUring => uring::run(future),
        Engine::TokioUring => uring::run_on_tokio_uring(future),
        Engine::Epoll => epoll::run(future),
    }
}

/// Sees to it that what has come is noticed by the next look at an operation, without waiting for the engine's turn.
/// tokio-uring has no such call; there a look may be late by one turn.
pub fn dispatch() {
    match Engine::current() {
        Engine::IoUring => uring::dispatch(),
        Engine::TokioUring => {}
        Engine::Epoll => epoll::look_again(),
    }
}
