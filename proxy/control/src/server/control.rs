//! The control plane: one thread with an ordinary runtime for signals, health checks, name resolution and the admin
//! listener. No request passes through it.

use crate::server::StartError;
use crate::spans::Tracing;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use sluice_config as config;
use sluice_core::access_log::AccessLog;
use sluice_core::clock;
use sluice_core::cluster::{alive, snapshot_json};
use sluice_core::metrics::{Known, Metrics, Status};
use sluice_engine::bypass;
use sluice_engine::snapshot::Live;
use sluice_engine::thread::Stage;
use sluice_kernel::memory;
use sluice_net::quic::{QuicProcess, receive_relayed};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::clusters::Resolvers;
use super::operator::Operator;
use super::services::{RestoredServices, Services};
use super::signals::{ControlRuntime, Signals};
use super::{saturation, shared_bans, shared_rates, shown};
use crate::acme::{Keeper, SharedAcme};
use crate::admin::{self, Admin, AdminState, Gate};
use crate::commands;
use crate::fleet::Fleet;
use crate::status;
use crate::status::document::Fixed;

/// The longest wait for workers to tell their last clients that the process ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// State of the control plane.
///
/// Many fields: one for each part that the start hands to it.
pub(super) struct Control<'a> {
    live: Live,
    metrics: &'a Arc<Metrics>,
    log: &'a AccessLog,
    bypass: Option<Arc<bypass::Control>>,
    operator: Rc<Operator>,
    sockets: Sockets,
    resolvers: Resolvers,
    tracing: Option<Tracing>,
    restored: Option<RestoredServices>,
    draining: Arc<AtomicBool>,
    fixed: Fixed,
    issuing: Option<AbortHandle>,
    fleet: Option<Rc<Fleet>>,
}

/// Why the process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A signal.
    Told,
    /// Another process has taken over.
    HandedOver,
}

/// How long the end waits at most until the caches are on their disks.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// When the start is over for all threads; nothing depends on it but the memory that sluice shows.
const STARTED_AFTER: Duration = Duration::from_secs(1);

/// The sockets of the control plane.
pub(super) struct Sockets {
    /// The admin listener, read-only.
    pub(super) admin: Option<Admin>,
    /// The control socket.
    pub(super) control: Option<commands::Listener>,
}

impl<'a> Control<'a> {
    #[expect(clippy::too_many_arguments, reason = "called once, with everything the start has prepared")]
    pub(super) fn new(
        metrics: &'a Arc<Metrics>,
        log: &'a AccessLog,
        bypass: Option<Arc<bypass::Control>>,
        operator: Operator,
        sockets: Sockets,
        (resolvers, restored): (Resolvers, RestoredServices),
        fixed: Fixed,
    ) -> Self {
        let live = Arc::clone(&operator.reloader.site.live);
        let (source, programs) = (Arc::clone(&live), bypass.clone());
        let terminators = Arc::clone(&operator.reloader.site.listeners.terminators);
        let acme = Arc::clone(&operator.reloader.site.acme);
        let fleet = restored.fleet.as_ref().map(|fleet| Arc::clone(&fleet.board));
        metrics.set_status(move || Status {
            bypass: programs.as_ref().and_then(|programs| programs.counters()),
            certificates: shown::certificate_statuses(&terminators),
            acme: acme.board.status(),
            fleet: fleet.as_ref().map(|board| board.status()),
            ..shown::status(&source.load())
        });
        metrics.set_known(Known { cluster: alive::has_cluster, endpoint: alive::has_endpoint });
        let operator = Rc::new(operator);
        Self {
            live,
            metrics,
            log,
            bypass,
            operator,
            sockets,
            resolvers,
            restored: Some(restored),
            tracing: None,
            draining: Arc::default(),
            fixed,
            issuing: None,
            fleet: None,
        }
    }

    /// Adds the export of spans.
    pub(super) fn with_tracing(self, tracing: Option<Tracing>) -> Self {
        Self { tracing, ..self }
    }

    /// Runs until a signal ends the process or another process takes over. Then drains the workers, which `join` waits
    /// for; a second signal ends the wait. `serving` is called once commands are accepted.
    pub(super) fn run(
        mut self,
        started: ControlRuntime,
        stage: watch::Sender<Stage>,
        join: impl FnOnce(Instant) -> bool + Send + 'static,
        serving: impl FnOnce() -> Result<(), StartError>,
    ) -> Result<(ExitCode, bool), StartError> {
        let (runtime, mut signals) = started.into_parts();
        let local = tokio::task::LocalSet::new();
        let ended = local.block_on(&runtime, async {
            self.spawn_tasks();
            serving()?;
            notify(&[NotifyState::Ready]);
            let end = tokio::select! {
                () = signals.obey(self.log, &self.operator) => End::Told,
                () = self.operator.upgrader.handed_over() => End::HandedOver,
            };
            let code = self.drain(end, &stage, join, &mut signals).await;
            Ok((code, end == End::HandedOver))
        });
        // A name lookup may still block a thread; do not wait for it.
        runtime.shutdown_background();
        ended
    }

    fn spawn_tasks(&mut self) {
        self.operator.reloader.site.look_after(std::mem::take(&mut self.resolvers));
        if let Some(restored) = self.restored.take() {
            self.fleet.clone_from(&restored.fleet);
            let services = Services::new(Rc::clone(&self.operator.reloader.site), restored);
            let services = Rc::new(services);
            if let Some(fleet) = &self.fleet {
                let (following, announcing) = (Rc::clone(fleet), Rc::clone(fleet));
                tokio::task::spawn_local(async move { following.follow().await });
                tokio::task::spawn_local(async move { announcing.announce().await });
                let (showing, counted) = (Rc::clone(fleet), Rc::clone(fleet));
                tokio::task::spawn_local(async move { showing.show().await });
                let (live, exchanging) = (Arc::clone(&self.live), Rc::clone(fleet));
                tokio::task::spawn_local(async move { shared_bans::run(live, &exchanging).await });
                let (live, counting) = (Arc::clone(&self.live), Rc::clone(fleet));
                tokio::task::spawn_local(async move { shared_rates::run(live, &counting).await });
                let traffic = status::TrafficTrack::new(Arc::clone(self.metrics), Arc::clone(&self.live));
                tokio::task::spawn_local(async move { traffic.run(&counted).await });
                tokio::task::spawn_local(Rc::clone(&services).follow_fleet(Rc::clone(fleet)));
            }
            let _ = self.operator.services.set(services);
        }
        if let Some(bypass) = self.bypass.clone() {
            tokio::task::spawn_local(async move { bypass.log().await });
        }
        tokio::task::spawn_local(async {
            tokio::time::sleep(STARTED_AFTER).await;
            memory::end_start();
        });
        match QuicProcess::this().receivers() {
            Ok(receivers) => receivers.into_iter().for_each(|one| drop(tokio::spawn(receive_relayed(one)))),
            Err(error) => tracing::warn!(%error, "QUIC packets that reach the old process are lost"),
        }
        let operator = Rc::clone(&self.operator);
        tokio::task::spawn_local(async move { operator.reloader.watch().await });
        tokio::task::spawn_local(Arc::clone(&self.operator.reloader.site.listeners.terminators).watch());
        self.issuing = self.keep_names();
        if let Some(listener) = self.sockets.control.take() {
            tokio::task::spawn_local(commands::serve(listener, Rc::clone(&self.operator)));
        }
        if let Some(tracing) = &self.tracing {
            tokio::task::spawn_local(tracing.run());
        }
        if let Some(Admin { listener, gate, .. }) = self.sockets.admin.take() {
            let shown = self.shown();
            tokio::spawn(status::run(Arc::clone(&shown)));
            let live = Arc::clone(&self.live);
            let clusters = move || live.load().clusters.values().cloned().collect();
            tokio::task::spawn_local(async move { saturation::watch(clusters).await });
            let state = self.admin_state(gate, shown);
            tokio::task::spawn_local(async move {
                let Err(error) = admin::serve(listener, state).await;
                tracing::error!(%error, "the admin listener failed");
            });
        }
    }

    /// Starts the certificate keeper, which runs until the drain.
    fn keep_names(&self) -> Option<AbortHandle> {
        let site = &self.operator.reloader.site;
        let terminators = Arc::clone(&site.listeners.terminators);
        let shared = self.fleet.clone().filter(|fleet| fleet.sealer().is_some()).map(SharedAcme::new);
        let keeper = Keeper::new(Arc::clone(&self.live), terminators, Arc::clone(&site.acme), shared)?;
        Some(tokio::task::spawn_local(keeper.run()).abort_handle())
    }

    /// The data of the status page.
    fn shown(&self) -> Arc<status::Live> {
        let (for_clusters, for_config) = (Arc::clone(&self.live), Arc::clone(&self.live));
        let fixed = self.fixed.clone();
        let terminators = Arc::clone(&self.operator.reloader.site.listeners.terminators);
        let acme = Arc::clone(&self.operator.reloader.site.acme);
        status::Live::new(status::Sources {
            metrics: Arc::clone(self.metrics),
            draining: Arc::clone(&self.draining),
            clusters: Box::new(move || for_clusters.load().clusters.values().cloned().collect()),
            fleet: self.fleet.as_ref().map(|fleet| Arc::clone(&fleet.board)),
            fixed: Box::new(move || Fixed {
                config: config::to_json(&for_config.load().config),
                certificates: shown::certificates(&terminators, &acme),
                ..fixed.clone()
            }),
        })
    }

    fn admin_state(&self, gate: Gate, shown: Arc<status::Live>) -> Arc<AdminState> {
        let (for_clusters, for_config) = (Arc::clone(&self.live), Arc::clone(&self.live));
        Arc::new(AdminState {
            metrics: Arc::clone(self.metrics),
            draining: Arc::clone(&self.draining),
            clusters: Box::new(move || {
                let now_ms = clock::now_ms();
                for_clusters.load().clusters.values().map(|cluster| snapshot_json(cluster, now_ms)).collect()
            }),
            config: Box::new(move || config::to_json(&for_config.load().config)),
            live: shown,
            metrics_only: self.live.load().config.admin_metrics_only,
            gate,
            streams: admin::Streams::default(),
        })
    }

    /// Goes on as before for `drain_delay`, but for what health checks hear, and for connections, which end with their next
    /// response. Returns false if a second signal ends it.
    async fn announce_drain(&self, stage: &watch::Sender<Stage>, signals: &mut Signals) -> bool {
        let delay_ms = self.live.load().config.drain_delay_ms;
        if delay_ms == 0 {
            return true;
        }
        tracing::info!(delay_ms, "about to drain: health checks fail, and requests are still accepted");
        stage.send_replace(Stage::Announce);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(delay_ms)) => true,
            () = signals.end() => {
                tracing::warn!("second signal: stopping without draining");
                false
            }
        }
    }

    /// Is no longer a member of the fleet, which finds out by itself if it is not told.
    async fn leave_fleet(&self) {
        if let Some(fleet) = &self.fleet {
            fleet.leave().await;
        }
    }

    async fn drain(
        &self,
        end: End,
        stage: &watch::Sender<Stage>,
        join: impl FnOnce(Instant) -> bool + Send + 'static,
        signals: &mut Signals,
    ) -> ExitCode {
        let timeout_ms = self.live.load().config.drain_timeout_ms;
        let patience = Duration::from_millis(timeout_ms);
        self.draining.store(true, Ordering::Relaxed);
        if end == End::Told {
            notify(&[NotifyState::Stopping]);
            if !self.announce_drain(stage, signals).await {
                stage.send_replace(Stage::End);
                let _ = tokio::time::timeout(LAST_WORDS, stage.closed()).await;
                return ExitCode::FAILURE;
            }
        }
        tracing::info!(timeout_ms, "draining");
        if end == End::HandedOver {
            // The other process is the member now.
            self.leave_fleet().await;
        }
        self.live.load().drain_caches(true);
        if let Some(bypass) = &self.bypass {
            bypass.stop();
        }
        // From here on, authorities reach the new process.
        self.issuing.iter().for_each(AbortHandle::abort);
        self.operator.reloader.site.listeners.release();
        stage.send_replace(if end == End::Told { Stage::Drain } else { Stage::HandOver });
        let deadline = Instant::now() + patience;
        let joined = tokio::task::spawn_blocking(move || join(deadline));
        let live = self.live.load_full();
        let close = move || live.close_caches(Instant::now() + CLOSE_MAX);
        let joined = async {
            let joined = joined.await;
            // Afterwards: until then, requests may change what is there.
            let _ = tokio::task::spawn_blocking(close).await;
            joined
        };
        let outcome = tokio::select! {
            joined = joined => {
                if joined.unwrap_or(false) {
                    tracing::info!("drained");
                } else {
                    tracing::warn!("the drain timed out; closing the remaining connections");
                }
                if let Some(tracing) = &self.tracing {
                    tracing.flush().await;
                }
                ExitCode::SUCCESS
            }
            () = signals.end() => {
                tracing::warn!("second signal: stopping without draining");
                ExitCode::FAILURE
            }
        };
        // Until here, others waited for the requests of this process.
        self.leave_fleet().await;
        stage.send_replace(Stage::End);
        // A worker that is stuck is not waited for.
        let _ = tokio::time::timeout(LAST_WORDS, stage.closed()).await;
        outcome
    }
}

pub(super) fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
