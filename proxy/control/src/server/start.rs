//! The steps of startup. Each error names what failed.

use crate::server::StartError;
use crate::spans::Tracing;
use std::collections::HashSet;
use std::io::Write;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use sluice_config::{self as config, Config, ControlSocket, Protocol, WorkerPlacement};
use sluice_core::access_log::{AccessLog, ShowLine};
use sluice_core::bans::Barrier;
use sluice_core::logging;
use sluice_core::metrics::Metrics;
use sluice_core::tls::Terminators;
use sluice_engine::snapshot::Live;
use sluice_engine::thread::{self, Command, Stage, WorkerControl};
use sluice_engine::tunnel;
use sluice_engine::upstream::Connector;
use sluice_engine::worker::Worker;
use sluice_engine::{barrier, bypass};
use sluice_kernel::accept::Chooser;
use sluice_net::listener::{self, Bound, Inherited, Listening, ReadySockets};
use sluice_net::quic::QuicProcess;
use sluice_ring::Engine;
use tokio::sync::{mpsc, watch};

use super::scheduling::Scheduling;
use super::services::Attached;
use super::{listeners, quic, upgrade};
use crate::admin::{self, Admin};
use crate::doctor::{self, Assists};
use crate::handover::{PassedSockets, Predecessor, Role};
use crate::{acme, commands, demo};

/// Starts the embedded demo origin.
pub(super) fn demo_origin(
    config: &Config,
    predecessor: Option<&mut Predecessor>,
) -> Result<Option<demo::Origin>, StartError> {
    let Some(address) = config.demo_origin else {
        return Ok(None);
    };
    let passed = predecessor.and_then(|from| from.take_only(Role::DemoOrigin, &address.to_string()));
    passed
        .map_or_else(|| TcpListener::bind(address), |socket| Ok(TcpListener::from(socket)))
        .and_then(demo::start)
        .map(Some)
        .map_err(|error| format!("demo_origin: cannot listen on {address}: {error}").into())
}

/// Binds the admin listener.
pub(super) fn admin_listener(
    config: &Config,
    predecessor: Option<&mut Predecessor>,
) -> Result<Option<Admin>, StartError> {
    let address = config.admin.as_ref().map(ToString::to_string);
    let passed = predecessor.zip(address).and_then(|(from, address)| from.take_only(Role::Admin, &address));
    if passed.is_none() && config.admin_if_free && admin::is_taken(config) {
        let address = config.admin.as_ref().map(ToString::to_string);
        tracing::warn!(address, "no admin listener: the address is in use; choose another with --admin");
        return Ok(None);
    }
    let admin = Admin::open(config, passed)?;
    if let Some(admin) = &admin {
        tracing::info!(address = %admin.listener, "the admin listener is bound");
    }
    Ok(admin)
}

/// Binds the control socket. A default path may be in use by another process; then there is no control socket.
pub(super) fn control_listener(
    config: &Config,
    takes_over: bool,
) -> Result<Option<commands::Listener>, StartError> {
    let bound = match &config.control {
        ControlSocket::Off => return Ok(None),
        ControlSocket::At(path) => commands::Listener::bind(path, takes_over)
            .map_err(|error| format!("control: cannot listen on {}: {error}", path.display()))?,
        ControlSocket::Auto => {
            let path = commands::default_path();
            match commands::Listener::bind(&path, takes_over) {
                Ok(bound) => bound,
                Err(error) => {
                    let path = path.display();
                    tracing::warn!(%path, %error, "no control socket; write another path as `control`, or off");
                    return Ok(None);
                }
            }
        }
    };
    Ok(Some(bound))
}

/// Publishes the control socket, replacing that of the process that is taken over from. As late as possible: if this
/// process fails before this point, commands must still reach the other one.
pub(super) fn publish(control: Option<&mut commands::Listener>) -> Result<(), StartError> {
    let Some(control) = control else {
        return Ok(());
    };
    let published = control.publish();
    let path = control.path().display();
    published.map_err(|error| format!("control: {path}: {error}"))?;
    tracing::info!(%path, "the control socket is bound");
    Ok(())
}

/// Opens the access log.
pub(super) fn access_log(
    config: &Config,
    metrics: &Arc<Metrics>,
    show: Option<ShowLine>,
) -> Result<AccessLog, StartError> {
    AccessLog::start_for_people(&config.access_log, Arc::clone(metrics), show)
        .map_err(|error| format!("access_log: cannot be opened: {error}").into())
}

/// Reads the certificates of the listeners and binds them, or takes over sockets from another process or a service
/// manager.
pub(super) fn listeners(
    config: &Config,
    attached: &Attached,
    mut predecessor: Option<&mut Predecessor>,
) -> Result<(Vec<Vec<Bound>>, Arc<Terminators>), StartError> {
    let terminators = Arc::<Terminators>::default();
    let planned = terminators.plan(&attached.with_certificates(config).listeners)?;
    terminators.switch(&planned);
    if let Some(estate) = predecessor.as_mut().and_then(|from| from.take_quic()) {
        QuicProcess::succeed(estate);
    }
    quic::prepare(config)?;
    let mut inherited = Inherited::from_environment();
    let mut take = |listener: &config::Listener| {
        let passed = predecessor.as_mut().map(|from| from.take_listener(&listener.name, &listener.address));
        let passed = passed.unwrap_or_default();
        if !passed.sockets.is_empty() {
            return passed;
        }
        let sockets = inherited.take(&listener.address).into_iter().collect();
        ReadySockets { sockets, are_own: false, ..ReadySockets::default() }
    };
    let (listeners, workers) = (&config.listeners, config.worker_count());
    let bound = listener::bind_all(listeners, workers, &mut take, &HashSet::new(), &planned);
    inherited.warn_of_rest();
    Ok((bound.map_err(|error| error.to_string())?, terminators))
}

/// Sockets other than the listeners' that another process would need.
pub(super) fn others(
    config: &Config,
    admin: Option<&Admin>,
    demo: Option<&demo::Origin>,
) -> Vec<(PassedSockets, OwnedFd)> {
    let of = |address: Option<String>| address.unwrap_or_default();
    let admin = admin.and_then(|admin| {
        let configured = of(config.admin.as_ref().map(ToString::to_string));
        upgrade::other(Role::Admin, &configured, admin.listener.hold())
    });
    let demo = demo.and_then(|demo| {
        let configured = of(config.demo_origin.map(|address| address.to_string()));
        upgrade::other(Role::DemoOrigin, &configured, demo.socket.try_clone())
    });
    admin.into_iter().chain(demo).collect()
}

/// Prepares bypass if it may be used; a failure is recorded in its verdict.
pub(super) fn bypass(
    config: &Config,
    assists: &mut Assists,
    bound: &[Vec<Bound>],
) -> Result<Option<Arc<bypass::Control>>, StartError> {
    if !assists.may_bypass() {
        return Ok(None);
    }
    match bypass::start(config, assists.returns_directly(), bound) {
        Ok(control) => {
            if let Some(failure) = &control.direct_failure {
                doctor::note_direct(assists, failure);
                assists.require()?;
                tracing::warn!("direct return is not used: {failure}");
            }
            Ok(Some(Arc::new(control)))
        }
        Err(trouble) => {
            doctor::note(assists, &trouble);
            assists.require()?;
            tracing::warn!("bypass is not used: {trouble}");
            Ok(None)
        }
    }
}

/// Tests, as the user that sluice runs as, whether bodies can be spooled to files and keys can be read again.
pub(super) fn try_account(config: &Config, terminators: &Terminators) -> Result<(), StartError> {
    terminators.warn_of_unreadable();
    config::can_spool(config).map_err(|why| format!("buffers.spool_directory: {why}").into())
}

/// Prepares and tests splicing if it may be used; a failure is recorded in its verdict.
pub(super) fn splice(
    config: &Config,
    assists: &mut Assists,
    engine: Engine,
) -> Result<Option<tunnel::SplicerFactory>, StartError> {
    if !assists.splices() {
        return Ok(None);
    }
    match tunnel::ready(config.kernel, engine) {
        Ok(shared) => Ok(Some(shared)),
        Err((code, means)) => {
            assists.note_failure("splice", code, &means);
            assists.require()?;
            tracing::warn!("splice is not used: {means}");
            Ok(None)
        }
    }
}

/// Prepares the kernel to turn banned clients away, if it may; a failure is recorded in its verdict.
pub(super) fn barrier(
    config: &Config,
    assists: &mut Assists,
) -> Result<Option<Arc<dyn Barrier>>, StartError> {
    if !assists.bars() {
        return Ok(None);
    }
    match barrier::load(config.kernel.bans_clients_max) {
        Ok(barrier) => Ok(Some(barrier)),
        Err(error) => {
            let means = error.to_string();
            assists.note_failure("bans", "load", &means);
            assists.require()?;
            tracing::warn!("bans are not enforced by the kernel: {means}");
            Ok(None)
        }
    }
}

/// Prepares the kernel to give each connection to the worker with the fewest, if it may; a failure is recorded in its
/// verdict.
pub(super) fn chooser(config: &Config, assists: &mut Assists) -> Result<Option<Arc<Chooser>>, StartError> {
    if !assists.chooses_workers() {
        return Ok(None);
    }
    match Chooser::load(config.worker_count() as u32) {
        Ok(chooser) => Ok(Some(Arc::new(chooser))),
        Err(error) => {
            let means = error.to_string();
            assists.note_failure("accept_steering", "load", &means);
            assists.require()?;
            tracing::warn!("workers hand connections to each other: {means}");
            Ok(None)
        }
    }
}

/// The kernel assists that are ready.
#[derive(Clone, Copy)]
pub(super) struct ReadyAssists<'a> {
    pub(super) bypass: Option<&'a bypass::Control>,
    pub(super) splice: Option<&'a tunnel::SplicerFactory>,
    pub(super) chooser: Option<&'a Arc<Chooser>>,
}

/// The worker threads, their command channels, and their scheduling policy.
pub(super) type Workers = (Vec<JoinHandle<()>>, Vec<mpsc::UnboundedSender<Command>>, &'static str);

/// Starts one thread per worker.
#[expect(clippy::too_many_arguments, reason = "called once, with everything the start has prepared")]
pub(super) fn workers(
    bound: Vec<Vec<Bound>>,
    live: &Live,
    metrics: &Arc<Metrics>,
    log: &AccessLog,
    (engine, assisted): (Engine, ReadyAssists<'_>),
    (tracing, acme): (Option<&Tracing>, &acme::Acme),
    stage: &watch::Receiver<Stage>,
) -> Result<Workers, StartError> {
    let (mut threads, mut senders) = (Vec::new(), Vec::new());
    let scheduling = Scheduling::begin(live.load().config.worker_scheduling);
    let shares = thread::shares(bound.len(), assisted.chooser.cloned());
    let (workers, spreads) = (bound.len(), live.load().config.worker_placement == WorkerPlacement::Spread);
    for (index, (listeners, (share, handed))) in bound.into_iter().zip(shares).enumerate() {
        let live = Arc::clone(live);
        let recorder = metrics.add_worker();
        let log = log.worker();
        let (sender, commands) = mpsc::unbounded_channel();
        senders.push(sender);
        let told = WorkerControl { stage: stage.clone(), commands, share, handed };
        let seat = assisted.bypass.map(bypass::Control::seat).transpose()?;
        let direct = assisted.bypass.map(|bypass| bypass.direct_seat(index)).transpose()?.flatten();
        let (tracer, challenges) = (tracing.map(Tracing::tracer), Arc::clone(&acme.challenges));
        let is_batch = scheduling.is_batch();
        let splicer = assisted.splice.map(tunnel::SplicerFactory::splicer).transpose()?;
        let thread = std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            let make = move || {
                let worker = Worker::new(live, Connector::Sockets, seat, recorder, log)
                    .with_splicer(splicer)
                    .with_direct(direct)
                    .with_tracer(tracer)
                    .with_challenges(challenges)
                    .with_pace(is_batch);
                if spreads { worker.with_place(index, workers) } else { worker }
            };
            let run = || thread::run(engine, make, listeners, told);
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    tracing::error!(%error, worker = index, "the worker's I/O engine failed")
                }
                // Its sockets would stay open, and its share of the clients would wait forever.
                Err(_) => tracing::error!(worker = index, "the worker panicked; the process exits"),
            }
            logging::end();
            std::process::exit(1);
        });
        threads.push(thread.map_err(|error| format!("worker {index} cannot be started: {error}"))?);
    }
    Ok((threads, senders, scheduling.word()))
}

/// Logs what is served where, and how bytes are moved.
pub(super) fn announce(
    listeners: &[Arc<Listening>],
    (engine, workers): (Engine, usize),
    scheduling: &str,
    assists: &Assists,
) {
    listeners.iter().for_each(listeners::announce);
    let [bypass, direct_return, splice, bans, accept_steering] = assists.words();
    tracing::info!(
        workers,
        scheduling,
        bypass,
        direct_return,
        splice,
        bans,
        accept_steering,
        "serving with {engine}"
    );
}

/// Prints a line. Unlike `println!`, does not panic if the reader has gone.
macro_rules! say {
    ($($text:tt)*) => {
        let _ = writeln!(std::io::stdout(), $($text)*);
    };
}

/// Prints what to try with the demo origin.
pub(super) fn invite(config: &Config, listeners: &[Arc<Listening>], demo: bool) {
    let mut current = listeners.iter().map(|listener| listener.current());
    let Some(listener) = current.find(|at| demo && at.config.protocol == Protocol::Http) else {
        return;
    };
    let at = &listener.config.address;
    // Users who try the demo often have a self-signed certificate.
    let (curl, s) = if listener.config.tls.is_some() { ("curl -ik", "s") } else { ("curl -i", "") };
    say!("sluice is running with its demo origin. Try:");
    for target in ["/", "/echo", "/delay?ms=200", "/stream", "/bytes?n=1000000"] {
        let quote = if target.contains('?') { "'" } else { "" };
        say!("  {curl} {quote}http{s}://{at}{target}{quote}");
    }
    say!("  a websocket echo is at ws{s}://{at}/ws");
    if let Some(admin) = &config.admin {
        say!("Status page: http://{admin}/   also /metrics /healthz /clusters /config; or: sluice top");
    }
    say!("Ctrl-C drains connections and exits.");
}
