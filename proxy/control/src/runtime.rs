//! Chooses the I/O engine of the workers.

use std::path::Path;

use sluice_config::Runtime;
use sluice_ring::{self as ring, Engine, RingError};

/// The engine of this process.
#[derive(Debug)]
pub(crate) struct ChosenEngine {
    pub(crate) engine: Engine,
    /// Why it is not io_uring, if `runtime` is auto.
    pub(crate) denied: Option<RingError>,
}

/// Tests what the engines that `runtime` allows need: nothing for epoll. `proc` shows what denies io_uring.
///
/// On a thread of its own: for some time after a ring is closed, the kernel interrupts the thread that used it, and
/// refuses to load an eBPF program that it is checking then. The next attempt takes most of a second.
///
/// # Errors
/// What is missing.
pub(crate) fn probe(runtime: Runtime, proc: &Path) -> Result<(), RingError> {
    let probe = match runtime {
        Runtime::Auto | Runtime::IoUring => ring::probe,
        Runtime::TokioUring => ring::probe_tokio_uring,
        Runtime::Epoll => return Ok(()),
    };
    std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, || probe(proc)) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(_) => probe(proc),
    })
}

/// Chooses by the key `runtime` and what [`probe`] found.
///
/// # Errors
/// The requested engine is not available here.
pub(crate) fn choose(runtime: Runtime, probed: Result<(), RingError>) -> Result<ChosenEngine, RingError> {
    let engine = likely(runtime, &probed);
    match probed {
        Err(error) if runtime != Runtime::Auto => Err(error),
        probed => Ok(ChosenEngine { engine, denied: probed.err() }),
    }
}

/// The engine that [`choose`] would choose, or epoll if it would refuse.
pub(crate) fn likely(runtime: Runtime, probed: &Result<(), RingError>) -> Engine {
    match (runtime, probed) {
        (_, Err(_)) | (Runtime::Epoll, _) => Engine::Epoll,
        (Runtime::Auto | Runtime::IoUring, Ok(())) => Engine::IoUring,
        (Runtime::TokioUring, Ok(())) => Engine::TokioUring,
    }
}
