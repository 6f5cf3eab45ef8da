//! Starts everything in order, and ends it in order. Read [`run`] as the table of contents.

mod control;
mod fixed;
mod privileges;
mod reload;
mod site;
mod start;

use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::config::Config;
use crate::doctor::Assists;
use crate::listener::{self, Inherited};
use crate::metrics::Metrics;
use crate::worker::Stage;
use crate::{logging, ring, state_file};
use reload::Reloader;
use site::Site;

pub use reload::Source;

/// How often the end of the workers is looked for while draining.
const JOIN_CHECK: Duration = Duration::from_millis(20);

/// Runs sluice until it is told to end. `source` is where `config` came from, for when it is to be read again.
///
/// # Errors
/// A sentence about what could not be started.
pub fn run(config: Config, source: Source) -> Result<ExitCode, String> {
    ring::probe(Path::new("/proc")).map_err(|error| error.to_string())?;
    let mut assists = Assists::for_start(&config);
    assists.require()?;
    let metrics = Metrics::new();
    logging::install_panic_hook(std::sync::Arc::clone(&metrics));
    privileges::raise_descriptor_limit();
    let demo = start::demo_origin(&config)?;
    let (clusters, resolvers) = start::clusters(&config);
    let workers = config.worker_count();
    let mut inherited = Inherited::from_environment();
    let bound = listener::bind_all(&config.listeners, workers, &mut inherited, &HashSet::new())
        .map_err(|error| error.to_string())?;
    inherited.warn_of_rest();
    let listening: Vec<_> = bound.iter().take(1).flatten().map(|bound| bound.listening.clone()).collect();
    let bypass = start::bypass(&config, &mut assists, &bound)?;
    let sockets = control::Sockets {
        admin: start::admin_listener(&config)?,
        control: start::control_listener(&config)?,
    };
    let log = start::access_log(&config, &metrics)?;
    let live = start::snapshot(config, clusters)?;
    let snapshot = live.load_full();
    // Before privileges are dropped: loading takes some.
    let splice = start::splice(&snapshot.config, &mut assists)?;
    privileges::drop_to(&snapshot.config)?;

    let (stage, watched) = watch::channel(Stage::Serve);
    let assisted = start::Assisted { bypass: bypass.as_deref(), splice: splice.as_ref() };
    let (threads, senders) = start::workers(bound, &live, &metrics, &log, assisted, &watched)?;
    start::announce(&listening, workers, &assists);
    start::invite(&snapshot.config, &listening, demo);
    drop(snapshot);
    let site = Rc::new(Site::new(Arc::clone(&live), listening, senders, bypass.clone()));
    let reloader = Reloader { site, source };
    let control = control::Control::new(&metrics, &log, bypass, reloader, sockets, resolvers);
    let ended = control.run(stage, |deadline| join(threads, deadline))?;
    state_file::save(&live.load().clusters.values().cloned().collect::<Vec<_>>());
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
