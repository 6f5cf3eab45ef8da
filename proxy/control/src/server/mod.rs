//! Starts everything in order, and ends it in order. Read [`run`] as the table of contents.

mod changes;
mod clusters;
mod control;
mod error;
mod fixed;
mod listeners;
mod operator;
mod privileges;
mod reload;
mod scheduling;
mod services;
mod shown;
mod signals;
mod site;
mod start;
mod upgrade;

use std::cell::OnceCell;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reload::Reloader;
use site::Site;
use sluice_config::Config;
use sluice_core::logging;
use sluice_core::metrics::Metrics;
use sluice_core::spans::Tracing;
use sluice_engine::thread::Stage;
use sluice_net::listener;
use sluice_ring as ring;
use tokio::sync::watch;
use upgrade::Upgrader;

use crate::acme::Acme;
use crate::doctor::Assists;
use crate::handover::{Predecessor, Program};
use crate::{state_file, status};

pub use error::{ReloadError, StartError};
pub use reload::Source;
pub use signals::ControlRuntime;

const TOLD_TO_END: &str = "a signal ended the process while it was starting";

/// How often the end of the workers is looked for while draining.
const JOIN_CHECK: Duration = Duration::from_millis(20);

/// Runs sluice until it is told to end. `source` is where `config` came from, for when it is to be read again;
/// `predecessor` the process to take over from; `runtime` has caught signals since the process began.
///
/// # Errors
/// A sentence about what could not be started.
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
    let program = Program::of_this_process().map_err(|error| format!("the path of the binary: {error}"))?;
    ring::probe(Path::new("/proc")).map_err(|error| error.to_string())?;
    let mut assists = Assists::for_start(&config);
    assists.require()?;
    let metrics = Metrics::new();
    let counted = Arc::clone(&metrics);
    logging::install_panic_hook(move || counted.count_panic());
    privileges::raise_descriptor_limit();
    let demo = start::demo_origin(&config, predecessor.as_mut())?;
    let (clusters, resolvers) = clusters::at_start(&config, predecessor.as_ref())?;
    let restored = services::restore(&config)?;
    let (bound, terminators) = start::listeners(&config, predecessor.as_mut())?;
    let held = listener::hold(&bound).map_err(|error| error.to_string())?;
    let bypass = start::bypass(&config, &mut assists, &bound)?;
    // The steps so far take the time that a start takes.
    if runtime.is_told_to_end() {
        tracing::info!("{TOLD_TO_END}");
        return Ok(ExitCode::SUCCESS);
    }
    let mut sockets = control::Sockets {
        admin: start::admin_listener(&config, predecessor.as_mut())?,
        control: start::control_listener(&config, predecessor.is_some())?,
    };
    let others = start::others(&config, sockets.admin.as_ref(), demo.as_ref());
    let log = start::access_log(&config, &metrics)?;
    let live = restored.attached.live(&config, clusters)?;
    let snapshot = live.load_full();
    predecessor.iter().for_each(|from| clusters::inherit_experience(&snapshot.clusters, from));
    // Before privileges are dropped: loading takes some.
    let splice = start::splice(&snapshot.config, &mut assists)?;
    // Nobody else asks for it, and looking takes some milliseconds.
    let fixed = sockets.admin.as_ref().map(|_| {
        let listeners: Vec<_> = held.iter().map(|(listening, _)| listening.current()).collect();
        status::findings(&snapshot.config, &listeners, &assists)
    });
    start::publish(sockets.control.as_mut())?;
    privileges::drop_to(&snapshot.config)?;
    start::try_account(&snapshot.config, &terminators)?;
    let acme = Acme::for_start(&snapshot.config, &terminators.in_force())?;

    // Last, so that whoever finds the port open finds the control socket as well, and is answered at once.
    listener::listen_all(&bound).map_err(|error| error.to_string())?;
    let (stage, watched) = watch::channel(Stage::Serve);
    let tracing = snapshot.config.tracing.as_ref().map(|config| Tracing::new(config, &metrics));
    let assisted = start::Assisted { bypass: bypass.as_deref(), splice: splice.as_ref() };
    let (threads, senders, scheduling) =
        start::workers(bound, &live, &metrics, &log, assisted, (tracing.as_ref(), &acme), &watched)?;
    let listening: Vec<_> = held.iter().map(|(listening, _)| Arc::clone(listening)).collect();
    start::announce(&listening, snapshot.config.worker_count(), scheduling, &assists);
    start::invite(&snapshot.config, &listening, demo.is_some());
    drop(snapshot);
    let said = (config, restored.attached.clone(), acme);
    let token = sockets.admin.as_ref().and_then(|admin| admin.token.clone());
    let site = Rc::new(
        Site::new(Arc::clone(&live), held, senders, bypass.clone(), terminators, said)
            .with_admin_token(token),
    );
    let path = sockets.control.as_ref().map(|control| control.path().to_owned());
    let upgrader = Rc::new(Upgrader::new(Rc::clone(&site), program, others, path));
    let operator =
        operator::Operator { reloader: Reloader { site, source }, upgrader, services: OnceCell::new() };
    let fixed = fixed.unwrap_or_default();
    let control =
        control::Control::new(&metrics, &log, bypass, operator, sockets, (resolvers, restored), fixed)
            .with_tracing(tracing);
    let serving = || match predecessor.take() {
        Some(predecessor) => predecessor
            .ready()
            .map_err(|error| format!("the process to take over from is gone: {error}").into()),
        None => Ok(()),
    };
    let (ended, is_handed_over) = control.run(runtime, stage, |deadline| join(threads, deadline), serving)?;
    if !is_handed_over {
        state_file::save(&live.load().clusters.values().cloned().collect::<Vec<_>>());
    }
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
