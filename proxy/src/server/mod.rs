//! Starts everything in order, and ends it in order. Read [`run`] as the table of contents.

mod control;
mod privileges;
mod start;

use std::path::Path;
use std::process::ExitCode;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::config::Config;
use crate::doctor::Assists;
use crate::metrics::Metrics;
use crate::worker::Stage;
use crate::{listener, logging, ring, state_file};

/// How often the end of the workers is looked for while draining.
const JOIN_CHECK: Duration = Duration::from_millis(20);

/// Runs sluice until it is told to end.
///
/// # Errors
/// A sentence about what could not be started.
pub fn run(config: Config) -> Result<ExitCode, String> {
    ring::probe(Path::new("/proc")).map_err(|error| error.to_string())?;
    let mut assists = Assists::for_start(&config);
    assists.require()?;
    let metrics = Metrics::new();
    logging::install_panic_hook(std::sync::Arc::clone(&metrics));
    privileges::raise_descriptor_limit();
    let demo = start::demo_origin(&config)?;
    let (clusters, resolvers) = start::clusters(&config);
    let workers = config.worker_count();
    let bound = listener::bind_all(&config.listeners, workers).map_err(|error| error.to_string())?;
    let states: Vec<_> = bound.iter().take(1).flatten().map(|bound| bound.state.clone()).collect();
    let bypass = start::bypass(&config, &mut assists, &bound)?;
    let admin = start::admin_listener(&config)?;
    let log = start::access_log(&config, &metrics)?;
    let snapshot = start::snapshot(config, clusters)?;
    // Before privileges are dropped: loading takes some.
    let splice = start::splice(&snapshot.config, &mut assists)?;
    privileges::drop_to(&snapshot.config)?;

    let (stage, watched) = watch::channel(Stage::Serve);
    let assisted = start::Assisted { bypass: bypass.as_deref(), splice: splice.as_ref() };
    let threads = start::workers(bound, &snapshot, &metrics, &log, assisted, &watched)?;
    start::announce(&states, workers, &assists);
    start::invite(&snapshot.config, &states, demo);
    let control = control::Control::new(&snapshot, &metrics, &log, bypass, admin, resolvers);
    let ended = control.run(stage, |deadline| join(threads, deadline))?;
    state_file::save(&snapshot.clusters.values().cloned().collect::<Vec<_>>());
    log.close();
    Ok(ended)
}

/// Waits for the workers to end, at most until `deadline`; true when all have.
fn join(mut threads: Vec<JoinHandle<()>>, deadline: Instant) -> bool {
    loop {
        threads.retain(|thread| !thread.is_finished());
        if threads.is_empty() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(JOIN_CHECK);
    }
}
