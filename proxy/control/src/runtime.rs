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

/// Chooses by the key `runtime` and what this host allows; `proc` is used to find out what denies io_uring.
///
/// # Errors
/// The requested engine is not available here.
pub(crate) fn choose(runtime: Runtime, proc: &Path) -> Result<ChosenEngine, RingError> {
    let asked_for = |engine| ChosenEngine { engine, denied: None };
    match runtime {
        Runtime::Auto => Ok(match ring::probe(proc) {
            Ok(()) => asked_for(Engine::IoUring),
            Err(error) => ChosenEngine { engine: Engine::Epoll, denied: Some(error) },
        }),
        Runtime::IoUring => ring::probe(proc).map(|()| asked_for(Engine::IoUring)),
        Runtime::TokioUring => ring::probe_tokio_uring(proc).map(|()| asked_for(Engine::TokioUring)),
        Runtime::Epoll => Ok(asked_for(Engine::Epoll)),
    }
}
