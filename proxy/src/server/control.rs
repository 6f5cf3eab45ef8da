//! The control plane: one thread with an ordinary runtime for signals, health checks, name resolution and
//! the admin listener. Nothing here is on the path of a request.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::start::Resolvers;
use crate::access_log::AccessLog;
use crate::admin::{self, AdminListener, AdminState};
use crate::clock;
use crate::cluster::{Health, QueueCounts, snapshot_json};
use crate::metrics::{EndpointStatus, Metrics, QueueStatus, Status};
use crate::snapshot::Snapshot;
use crate::worker::Stage;
use crate::{bypass, config, health, resolve, state_file};

/// What the control plane looks after.
pub(super) struct Control<'a> {
    snapshot: &'a Arc<Snapshot>,
    metrics: &'a Arc<Metrics>,
    log: &'a AccessLog,
    bypass: Option<Arc<bypass::Control>>,
    admin: Option<AdminListener>,
    resolvers: Resolvers,
    draining: Arc<AtomicBool>,
}

impl<'a> Control<'a> {
    pub(super) fn new(
        snapshot: &'a Arc<Snapshot>,
        metrics: &'a Arc<Metrics>,
        log: &'a AccessLog,
        bypass: Option<Arc<bypass::Control>>,
        admin: Option<AdminListener>,
        resolvers: Resolvers,
    ) -> Self {
        let (source, programs) = (Arc::clone(snapshot), bypass.clone());
        metrics.set_status(move || Status {
            bypass: programs.as_ref().and_then(|programs| programs.counters()),
            ..status(&source)
        });
        Self { snapshot, metrics, log, bypass, admin, resolvers, draining: Arc::default() }
    }

    /// Runs until a signal ends the process: drains the workers, which `join` waits for. A second signal
    /// ends the wait.
    pub(super) fn run(
        mut self,
        stage: watch::Sender<Stage>,
        join: impl FnOnce(Instant) -> bool + Send + 'static,
    ) -> Result<ExitCode, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| format!("the control plane cannot be started: {error}"))?;
        let local = tokio::task::LocalSet::new();
        let ended = local.block_on(&runtime, async {
            let mut signals = Signals::new().map_err(|error| format!("signals: {error}"))?;
            self.spawn_tasks();
            notify(&[NotifyState::Ready]);
            signals.wait(self.log).await;
            Ok(self.drain(&stage, join, &mut signals).await)
        });
        // A name lookup may still block a thread; nothing waits for it.
        runtime.shutdown_background();
        ended
    }

    fn spawn_tasks(&mut self) {
        let clusters: Vec<_> = self.snapshot.clusters.values().cloned().collect();
        for cluster in clusters.iter().filter(|cluster| cluster.config.health_check.is_some()) {
            tokio::spawn(health::run(Arc::clone(cluster), clock::now_ms));
        }
        tokio::spawn(state_file::run(clusters));
        if let Some(bypass) = self.bypass.clone() {
            tokio::task::spawn_local(async move { bypass.log().await });
        }
        for (cluster, resolver) in self.resolvers.drain(..) {
            tokio::spawn(resolve::run(cluster, resolver));
        }
        if let Some(listener) = self.admin.take() {
            let state = self.admin_state();
            tokio::task::spawn_local(async move {
                let Err(error) = admin::serve(listener, state).await;
                tracing::error!(%error, "the admin listener has failed");
            });
        }
    }

    fn admin_state(&self) -> Arc<AdminState> {
        let (for_clusters, for_config) = (Arc::clone(self.snapshot), Arc::clone(self.snapshot));
        Arc::new(AdminState {
            metrics: Arc::clone(self.metrics),
            draining: Arc::clone(&self.draining),
            clusters: Box::new(move || {
                let now_ms = clock::now_ms();
                for_clusters.clusters.values().map(|cluster| snapshot_json(cluster, now_ms)).collect()
            }),
            config: Box::new(move || config::to_json(&for_config.config)),
        })
    }

    async fn drain(
        &self,
        stage: &watch::Sender<Stage>,
        join: impl FnOnce(Instant) -> bool + Send + 'static,
        signals: &mut Signals,
    ) -> ExitCode {
        let patience = Duration::from_millis(self.snapshot.config.drain_timeout_ms);
        tracing::info!(timeout_ms = self.snapshot.config.drain_timeout_ms, "draining");
        notify(&[NotifyState::Stopping]);
        self.draining.store(true, Ordering::Relaxed);
        if let Some(bypass) = &self.bypass {
            bypass.stop();
        }
        stage.send_replace(Stage::Drain);
        let deadline = Instant::now() + patience;
        let joined = tokio::task::spawn_blocking(move || join(deadline));
        tokio::select! {
            joined = joined => {
                if joined.unwrap_or(false) {
                    tracing::info!("drained");
                } else {
                    tracing::warn!("the drain timed out; what is open is closed");
                }
                ExitCode::SUCCESS
            }
            () = signals.terminate() => {
                tracing::warn!("a second signal ends the drain");
                ExitCode::FAILURE
            }
        }
    }
}

fn status(snapshot: &Snapshot) -> Status {
    let now_ms = clock::now_ms();
    let mut status = Status::default();
    for cluster in snapshot.clusters.values() {
        status.endpoints.extend(cluster.endpoints().iter().map(|endpoint| EndpointStatus {
            cluster: cluster.name.clone(),
            endpoint: endpoint.label.clone(),
            healthy: endpoint.health(now_ms) == Health::Healthy,
            in_flight: u64::from(endpoint.in_flight()),
            limit: (endpoint.limit_now() != u32::MAX).then(|| u64::from(endpoint.limit_now())),
        }));
        let QueueCounts { length, entered, full, timed_out } = cluster.queue_counts();
        status.queues.push(QueueStatus {
            cluster: cluster.name.clone(),
            length: length as u64,
            entered,
            full,
            timed_out,
        });
    }
    status
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager cannot be told of our state");
    }
}

/// The signals that mean something to us.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reopen: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reopen: signal(SignalKind::user_defined1())?,
        })
    }

    /// Serves SIGUSR1 until SIGTERM or SIGINT.
    async fn wait(&mut self, log: &AccessLog) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.reopen.recv() => log.reopen(),
            }
        }
    }

    async fn terminate(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
