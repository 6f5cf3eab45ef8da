//! The stages of startup. Each is created from the previous one and holds what the next one needs.
//!
//! [`Prepared`] has read and restored state, and looked up names; nothing is bound. [`Bound`] has the listeners'
//! sockets, on which nothing is accepted yet, and the working kernel assists. [`Running`] has dropped privileges, and
//! its workers accept.

use std::cell::OnceCell;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sluice_config::Config;
use sluice_core::access_log::AccessLog;
use sluice_core::bans::Barrier;
use sluice_core::logging;
use sluice_core::metrics::Metrics;
use sluice_core::tls::Terminators;
use sluice_engine::bypass;
use sluice_engine::thread::Stage;
use sluice_engine::tunnel;
use sluice_kernel::accept::Chooser;
use sluice_net::listener::{self, HeldSockets};
use sluice_ring::Engine;
use tokio::sync::watch;

use super::clusters::{Clusters, Resolvers};
use super::control::{Control, Sockets};
use super::operator::Operator;
use super::reload::{Reloader, Source};
use super::services::RestoredServices;
use super::signals::ControlRuntime;
use super::site::Site;
use super::upgrade::Upgrader;
use super::{StartError, bans, clusters, privileges, services, start};
use crate::acme::{self, Acme};
use crate::demo;
use crate::doctor::Assists;
use crate::handover::{Predecessor, Program};
use crate::spans::Tracing;
use crate::status::document::Fixed;
use crate::{runtime, state_file, status};

/// How often the exit of the workers is checked while draining.
const JOIN_CHECK: Duration = Duration::from_millis(20);

/// What was read and restored.
pub(super) struct Prepared {
    config: Config,
    program: Program,
    engine: Engine,
    assists: Assists,
    metrics: Arc<Metrics>,
    demo: Option<demo::Origin>,
    clusters: (Clusters, Resolvers),
    restored: RestoredServices,
}

/// The listeners' sockets, and the kernel assists.
pub(super) struct Bound {
    prepared: Prepared,
    sockets: Vec<Vec<listener::Bound>>,
    held: Vec<HeldSockets>,
    terminators: Arc<Terminators>,
    bypass: Option<Arc<bypass::Control>>,
    splice: Option<tunnel::SplicerFactory>,
    barrier: Option<Arc<dyn Barrier>>,
    chooser: Option<Arc<Chooser>>,
}

/// Workers that accept, and the parts of the control plane.
pub(super) struct Running {
    metrics: Arc<Metrics>,
    log: AccessLog,
    tracing: Option<Tracing>,
    bypass: Option<Arc<bypass::Control>>,
    operator: Operator,
    sockets: Sockets,
    resolved: (Resolvers, RestoredServices),
    fixed: Fixed,
    stage: watch::Sender<Stage>,
    threads: Vec<JoinHandle<()>>,
}

impl Prepared {
    pub(super) fn new(config: Config, predecessor: Option<&mut Predecessor>) -> Result<Self, StartError> {
        let program = Program::of_this_process()
            .map_err(|error| format!("cannot determine the path of the binary: {error}"))?;
        let chosen = runtime::choose(config.runtime, runtime::probe(config.runtime, Path::new("/proc")))
            .map_err(|error| error.to_string())?;
        if let Some(error) = &chosen.denied {
            tracing::warn!("{error}; serving with epoll, which takes more CPU per request");
        }
        let engine = chosen.engine;
        let assists = Assists::for_start(&config);
        assists.require()?;
        let metrics = Metrics::new();
        metrics.set_engine(engine.name());
        let counted = Arc::clone(&metrics);
        logging::install_panic_hook(move || counted.count_panic());
        privileges::raise_descriptor_limit();
        let mut predecessor = predecessor;
        let demo = start::demo_origin(&config, predecessor.as_deref_mut())?;
        let clusters = clusters::at_start(&config, predecessor.as_deref())?;
        let restored = services::restore(&config)?;
        Ok(Self { config, program, engine, assists, metrics, demo, clusters, restored })
    }

    /// Takes most of the startup time: the kernel assists are loaded, while there are privileges, and tested.
    pub(super) fn bind(mut self, predecessor: Option<&mut Predecessor>) -> Result<Bound, StartError> {
        let (sockets, terminators) = start::listeners(&self.config, &self.restored.attached, predecessor)?;
        let held = listener::hold(&sockets).map_err(|error| error.to_string())?;
        let bypass = start::bypass(&self.config, &mut self.assists, &sockets)?;
        let splice = start::splice(&self.config, &mut self.assists, self.engine)?;
        let barrier = start::barrier(&self.config, &mut self.assists)?;
        let chooser = start::chooser(&self.config, &mut self.assists)?;
        Ok(Bound { prepared: self, sockets, held, terminators, bypass, splice, barrier, chooser })
    }
}

impl Bound {
    /// Starts to serve, once nothing is left that could fail for lack of a privilege or a file.
    pub(super) fn start(
        self,
        source: Source,
        mut predecessor: Option<&mut Predecessor>,
    ) -> Result<Running, StartError> {
        let Self { prepared, sockets: bound, held, terminators, bypass, splice, barrier, chooser } = self;
        let Prepared { config, program, engine, assists, metrics, demo, clusters, restored } = prepared;
        let (clusters, resolvers) = clusters;
        let mut sockets = Sockets {
            admin: start::admin_listener(&config, predecessor.as_deref_mut())?,
            control: start::control_listener(&config, predecessor.is_some())?,
        };
        let others = start::others(&config, sockets.admin.as_ref(), demo.as_ref());
        let log = start::access_log(&config, &metrics, source.show_line)?;
        let live = restored.attached.live(&config, clusters)?;
        let snapshot = live.load_full();
        barrier.into_iter().for_each(|barrier| snapshot.bans.set_barrier(barrier));
        predecessor.iter().for_each(|from| {
            clusters::inherit_experience(&snapshot.clusters, from);
            bans::inherit(&snapshot, from);
        });
        // Only the admin listener needs it, and collecting it takes some milliseconds.
        let fixed = sockets.admin.as_ref().map(|_| {
            let listeners: Vec<_> = held.iter().map(|held| held.listening.current()).collect();
            status::findings(&snapshot.config, &listeners, engine, &assists)
        });
        start::publish(sockets.control.as_mut())?;
        privileges::drop_to(&snapshot.config)?;
        start::try_account(&snapshot.config, &terminators)?;
        let certified = restored.attached.with_certificates(&config);
        if let Some(fleet) = &restored.fleet {
            acme::take_over(&certified, fleet);
        }
        let acme = Acme::for_start(&certified, &terminators.in_force())?;

        // Before the first request changes what is on their disks.
        snapshot.start_caches();
        // Last, so that a client that finds the port open also finds the control socket, and gets a response at once.
        listener::listen_all(&bound).map_err(|error| error.to_string())?;
        if let Some(chooser) = &chooser {
            listener::choose_by(chooser, &held, bound.len());
        }
        let (stage, watched) = watch::channel(Stage::Serve);
        let tracing = snapshot.config.tracing.as_ref().map(|config| Tracing::new(config, &metrics));
        let assisted = start::ReadyAssists {
            bypass: bypass.as_deref(),
            splice: splice.as_ref(),
            chooser: chooser.as_ref(),
        };
        let (threads, senders, scheduling) = start::workers(
            bound,
            &live,
            &metrics,
            &log,
            (engine, assisted),
            (tracing.as_ref(), &acme),
            &watched,
        )?;
        let listening: Vec<_> = held.iter().map(|held| Arc::clone(&held.listening)).collect();
        start::announce(&listening, (engine, snapshot.config.worker_count()), scheduling, &assists);
        start::invite(&snapshot.config, &listening, demo.is_some());
        let said = (config, restored.attached.clone(), acme);
        let token = sockets.admin.as_ref().and_then(|admin| admin.token.clone());
        let site = Site::new(live, held, (senders, chooser), bypass.clone(), terminators, said)
            .with_admin_token(token);
        let site = Rc::new(site);
        let path = sockets.control.as_ref().map(|control| control.path().to_owned());
        let upgrader = Rc::new(Upgrader::new(Rc::clone(&site), program, others, path));
        let operator = Operator { reloader: Reloader { site, source }, upgrader, services: OnceCell::new() };
        let (resolved, fixed) = ((resolvers, restored), fixed.unwrap_or_default());
        Ok(Running { metrics, log, tracing, bypass, operator, sockets, resolved, fixed, stage, threads })
    }
}

impl Running {
    /// Serves until the process is asked to exit or another one has taken over. The predecessor is notified once
    /// commands are accepted.
    pub(super) fn serve(
        self,
        runtime: ControlRuntime,
        predecessor: &mut Option<Predecessor>,
    ) -> Result<ExitCode, StartError> {
        let Self { metrics, log, tracing, bypass, operator, sockets, resolved, fixed, stage, threads } = self;
        let live = Arc::clone(&operator.reloader.site.live);
        let control = Control::new(&metrics, &log, bypass, operator, sockets, resolved, fixed);
        let serving = || match predecessor.take() {
            Some(predecessor) => {
                predecessor.ready().map_err(|error| format!("the old process is gone: {error}").into())
            }
            None => Ok(()),
        };
        let join = |deadline| join(threads, deadline);
        let (ended, is_handed_over) = control.with_tracing(tracing).run(runtime, stage, join, serving)?;
        if !is_handed_over {
            state_file::save(&live.load().clusters.values().cloned().collect::<Vec<_>>());
        }
        log.close();
        Ok(ended)
    }
}

/// Waits for the workers to exit, at most until `deadline`; true when all have.
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
