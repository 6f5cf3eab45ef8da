//! Chooses the engine that workers do their I/O with.

use std::path::Path;

use sluice_config::Runtime;
use sluice_ring::{self as ring, Engine, RingError};

/// The engine of this process.
#[derive(Debug)]
pub(crate) struct ChosenEngine {
    pub(crate) engine: Engine,
    /// Why it is not io_uring, where that was not asked for by name.
    pub(crate) denied: Option<RingError>,
}

/// Chooses by the key `runtime` and what this host allows; `proc` tells who denies rings.
///
/// # Errors
/// The engine that is asked for by name cannot be had here.
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
