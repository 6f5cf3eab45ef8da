//! Starts and stops everything in order. Read [`run`] first, then the stages of a start.

mod accept_queue;
mod bans;
mod caches;
mod changes;
mod clusters;
mod control;
mod error;
mod fixed;
mod listeners;
mod operator;
mod privileges;
mod quic;
mod reload;
mod saturation;
mod scheduling;
mod services;
mod shared_bans;
mod shared_rates;
mod shown;
mod signals;
mod site;
mod stages;
mod start;
mod upgrade;

use std::process::ExitCode;

use sluice_config::Config;
use stages::Prepared;

use crate::handover::Predecessor;

pub use error::{ReloadError, StartError};
pub use privileges::raise_capabilities;
pub use reload::Source;
pub use signals::ControlRuntime;

const TOLD_TO_END: &str = "stopped by a signal during startup";

/// Runs sluice until it is asked to exit. `source` re-reads the configuration; `predecessor` is the process to take
/// over from; `runtime` has caught signals since the process began.
///
/// # Errors
/// A sentence about what cannot be started.
pub fn run(
    runtime: ControlRuntime,
    config: Config,
    source: Source,
    mut predecessor: Option<Predecessor>,
) -> Result<ExitCode, StartError> {
    let outcome = start_and_serve(runtime, config, source, &mut predecessor);
    if let (Ok(_), Some(predecessor)) = (&outcome, &predecessor) {
        predecessor.fail(TOLD_TO_END);
    }
    if let (Err(reason), Some(predecessor)) = (&outcome, &predecessor) {
        predecessor.fail(&reason.to_string());
    }
    outcome
}

fn start_and_serve(
    mut runtime: ControlRuntime,
    config: Config,
    source: Source,
    predecessor: &mut Option<Predecessor>,
) -> Result<ExitCode, StartError> {
    let bound = Prepared::new(config, predecessor.as_mut())?.bind(predecessor.as_mut())?;
    // The steps so far take most of the startup time.
    if runtime.is_told_to_end() {
        tracing::info!("{TOLD_TO_END}");
        return Ok(ExitCode::SUCCESS);
    }
    bound.start(source, predecessor.as_mut())?.serve(runtime, predecessor)
}
