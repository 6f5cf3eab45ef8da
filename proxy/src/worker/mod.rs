//! One thread, one ring: its listeners, its pool, its share of everything. Workers share nothing on the
//! hot path but counters; where requests in flight are limited, the line and the idle connections too.

mod accept;
mod counted;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::sync::watch;

use crate::access_log::AccessLogHandle;
use crate::buffers::Buffers;
use crate::bypass::{Joiner, Seat};
use crate::direct::{self, Direct};
use crate::listener::{Bound, ListenerState};
use crate::metrics::{Event, WorkerRecorder};
use crate::record::ExchangeRecord;
use crate::ring;
use crate::snapshot::Snapshot;
use crate::stream::Stream;
use crate::tunnel::Splicer;
use crate::upstream::{Connector, Pool};
use accept::accept_loop;
pub(crate) use counted::Counted;

/// How often the worker sees to its pool and its log.
const TICK: Duration = Duration::from_millis(200);
/// How often a draining worker looks whether its last connection has ended.
const DRAIN_TICK: Duration = Duration::from_millis(20);

/// What the control plane asks of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Accept and serve.
    Serve,
    /// Accept no more, end what is under way.
    Drain,
}

/// What a connection is doing, as far as a drain is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for a request.
    Idle,
    /// In an exchange or a tunnel.
    Busy,
}

/// The state of one worker thread.
pub(crate) struct Worker {
    snapshot: Arc<Snapshot>,
    connector: Connector,
    pool: Pool,
    joiner: Option<Rc<Joiner>>,
    buffers: Buffers,
    random: RefCell<fastrand::Rng>,
    metrics: Rc<WorkerRecorder>,
    log: RefCell<AccessLogHandle>,
    draining: Cell<bool>,
    connections: RefCell<Slab<(Stream, Phase)>>,
    turned_away: Rc<()>,
    splicer: Option<Splicer>,
    direct: Option<Direct>,
}

impl Worker {
    pub(crate) fn new(
        snapshot: Arc<Snapshot>,
        connector: Connector,
        seat: Option<Seat>,
        recorder: WorkerRecorder,
        log: AccessLogHandle,
    ) -> Self {
        let metrics = Rc::new(recorder);
        let joiner = seat.map(|seat| Rc::new(Joiner::new(seat, Rc::clone(&metrics))));
        Self {
            buffers: Buffers::new(snapshot.config.limits.body_buffers_bytes_max),
            pool: Pool::new(snapshot.config.worker_count() == 1, joiner.clone(), Rc::clone(&metrics)),
            joiner,
            snapshot,
            connector,
            random: RefCell::new(fastrand::Rng::new()),
            metrics,
            log: RefCell::new(log),
            draining: Cell::new(false),
            connections: RefCell::new(Slab::new()),
            turned_away: Rc::new(()),
            splicer: None,
            direct: None,
        }
    }

    /// Has tunnels spliced by the kernel.
    pub(crate) fn with_splicer(self, splicer: Option<Splicer>) -> Self {
        Self { splicer, ..self }
    }

    /// Has answers go to clients past sluice.
    pub(crate) fn with_direct(self, seat: Option<direct::Seat>) -> Self {
        Self { direct: seat.map(Direct::new), ..self }
    }

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What joins upstream connections, if anything does.
    pub(crate) fn joiner(&self) -> Option<&Joiner> {
        self.joiner.as_deref()
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    pub(crate) fn metrics(&self) -> &Rc<WorkerRecorder> {
        &self.metrics
    }

    /// What tunnels are spliced with, if they are.
    pub(crate) fn splicer(&self) -> Option<&Splicer> {
        self.splicer.as_ref()
    }

    /// What has answers go past sluice, if anything does.
    pub(crate) fn direct(&self) -> Option<&Direct> {
        self.direct.as_ref()
    }

    /// Held by each connection that is being told that there are too many.
    pub(crate) fn turned_away(&self) -> &Rc<()> {
        &self.turned_away
    }

    /// Lends the worker's random source.
    pub(crate) fn with_random<T>(&self, f: impl FnOnce(&mut fastrand::Rng) -> T) -> T {
        f(&mut self.random.borrow_mut())
    }

    /// Counts and logs one exchange.
    pub(crate) fn record(&self, record: &ExchangeRecord<'_>) {
        self.metrics.record(record);
        self.log.borrow_mut().log(record);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Counts `begun` now and `ended` when the guard is dropped.
    pub(crate) fn count_while(&self, begun: Event, ended: Event) -> Counted {
        Counted::new(&self.metrics, begun, ended)
    }

    /// Makes a connection known to the drain.
    pub(crate) fn enrol(&self, stream: Stream) -> usize {
        self.connections.borrow_mut().insert((stream, Phase::Idle))
    }

    /// Forgets a connection that has ended.
    pub(crate) fn strike_off(&self, slot: usize) {
        self.connections.borrow_mut().remove(slot);
    }

    /// Notes what a connection is doing.
    pub(crate) fn set_phase(&self, slot: usize, phase: Phase) {
        if let Some((_, now)) = self.connections.borrow_mut().get_mut(slot) {
            *now = phase;
        }
    }

    /// Ends the waits of idle connections; a request that has just arrived is still served.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.pool.clear();
        // What is on its way in the kernel would be lost if the process ended before the tunnels do.
        if let Some(splicer) = &self.splicer {
            splicer.return_all();
        }
        if let Some(direct) = &self.direct {
            direct.call_in(None);
        }
        for (_, (stream, phase)) in self.connections.borrow().iter() {
            if *phase == Phase::Idle {
                stream.shutdown_read();
            }
        }
    }

    /// Connections that have not ended.
    #[cfg(test)]
    pub(crate) fn open_connections(&self) -> usize {
        self.connections.borrow().len()
    }

    fn tick(&self) {
        if let Some(direct) = &self.direct {
            direct.reap();
        }
        self.pool.reap(&self.snapshot.clusters);
        if let Some(joiner) = &self.joiner {
            joiner.tick();
        }
        // Also when nothing ends: an endpoint may have come, got well or been given a higher limit.
        for cluster in self.snapshot.clusters.values() {
            cluster.serve_waiting();
        }
        self.log.borrow_mut().flush();
    }

    fn is_done(&self) -> bool {
        self.is_draining() && self.connections.borrow().is_empty()
    }
}

/// Runs a worker on this thread until a drain has ended its last connection.
///
/// # Errors
/// The ring could not be made.
pub(crate) fn run(
    worker: impl FnOnce() -> Worker,
    listeners: Vec<Bound>,
    stage: watch::Receiver<Stage>,
) -> std::io::Result<()> {
    ring::run(serve(worker, listeners, stage))
}

/// A socket whose accept loop has panicked would stay open, and its share of the clients would wait for ever.
async fn keep_accepting(worker: Rc<Worker>, state: Arc<ListenerState>, socket: ring::Fd) {
    loop {
        let accepting = accept_loop(Rc::clone(&worker), Arc::clone(&state), Rc::clone(&socket));
        if tokio_uring::spawn(accepting).await.is_ok() {
            return;
        }
        tracing::error!(listener = state.config.name, "the accept loop has panicked; it is started again");
    }
}

/// Resolves when a request of another worker waits for what an exchange here may hold.
async fn called(worker: &Worker) {
    match worker.direct() {
        Some(direct) => direct.called().await,
        None => std::future::pending().await,
    }
}

async fn serve(worker: impl FnOnce() -> Worker, listeners: Vec<Bound>, mut stage: watch::Receiver<Stage>) {
    let worker = Rc::new(worker());
    let mut sockets = Vec::new();
    let mut accepting = Vec::new();
    for Bound { state, socket } in listeners {
        let socket: ring::Fd = Rc::new(socket);
        sockets.push(Rc::clone(&socket));
        accepting.push(tokio_uring::spawn(keep_accepting(Rc::clone(&worker), state, socket)));
    }
    let mut tick = tokio::time::interval(TICK);
    while *stage.borrow_and_update() == Stage::Serve {
        tokio::select! {
            _ = tick.tick() => worker.tick(),
            () = called(&worker) => if let Some(direct) = worker.direct() { direct.call_in_waited_for() },
            // An error means that the control plane is gone, which ends the process anyway.
            changed = stage.changed() => if changed.is_err() { break },
        }
    }
    worker.drain();
    for socket in sockets.drain(..) {
        ring::cancel(&socket);
    }
    // They end soon, and what waited in the queue is a connection then.
    for accept_loop in accepting {
        let _ = accept_loop.await;
    }
    let mut tick = tokio::time::interval(DRAIN_TICK);
    loop {
        tick.tick().await;
        worker.tick();
        if worker.is_done() {
            return;
        }
    }
}
