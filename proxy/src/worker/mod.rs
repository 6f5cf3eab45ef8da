//! One thread, one ring: its listeners, its pool, its share of everything. Workers share nothing on the
//! hot path but counters; where requests in flight are limited, the line and the idle connections too.

mod accept;
mod counted;
mod pace;
mod run;
mod share;
mod trace;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

use crate::access_log::AccessLogHandle;
use crate::acme::HttpChallenges;
use crate::buffers::Buffers;
use crate::bypass::{Joiner, Seat};
use crate::direct::{self, Direct};
use crate::listener::{Bound, ListenerState, Listening};
use crate::metrics::{Event, WorkerRecorder};
use crate::record::ExchangeRecord;
use crate::snapshot::{Current, Live, View};
use crate::spans::Tracer;
use crate::stream::Stream;
use crate::tunnel::Splicer;
use crate::upstream::{Connector, Pool};
pub(crate) use counted::Counted;
use pace::Pace;
pub(crate) use run::{Told, run};
pub(crate) use share::shares;

/// How long a connection that is to end may be idle: a client that is at it sends its next request meanwhile, and is
/// told with the answer that it is the last.
const IDLE_GRACE: Duration = Duration::from_secs(1);

/// What the control plane asks of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Accept and serve.
    Serve,
    /// Accept no more, end what is under way.
    Drain,
    /// The same, but what waits to be accepted is another process's, which has the same sockets.
    HandOver,
}

/// What a connection is doing, as far as a drain is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for a request.
    Idle,
    /// In an exchange or a tunnel.
    Busy,
}

/// What the control plane has one worker do.
pub(crate) enum Command {
    /// Accept from another listener.
    Listen(Bound),
    /// Accept no more from one that has been closed, and end its connections after what is under way.
    Close(Arc<Listening>),
}

/// A downstream connection, as the worker knows it.
struct Open {
    stream: Stream,
    phase: Phase,
    /// Since when it is in that phase, or to end if that is later.
    since: Instant,
    listener: Arc<ListenerState>,
}

/// The state of one worker thread.
pub(crate) struct Worker {
    view: View,
    connector: Connector,
    pool: Pool,
    joiner: Option<Rc<Joiner>>,
    buffers: Buffers,
    random: RefCell<fastrand::Rng>,
    metrics: Rc<WorkerRecorder>,
    log: RefCell<AccessLogHandle>,
    draining: Cell<bool>,
    /// Whether another process accepts from the same sockets.
    shares_sockets: Cell<bool>,
    connections: RefCell<Slab<Open>>,
    turned_away: Rc<()>,
    splicer: Option<Splicer>,
    direct: Option<Direct>,
    tracer: Option<Tracer>,
    pace: Option<Pace>,
    /// What authorities are answered.
    pub(crate) challenges: Arc<HttpChallenges>,
}

impl Worker {
    pub(crate) fn new(
        live: Live,
        connector: Connector,
        seat: Option<Seat>,
        recorder: WorkerRecorder,
        log: AccessLogHandle,
    ) -> Self {
        let metrics = Rc::new(recorder);
        let joiner = seat.map(|seat| Rc::new(Joiner::new(seat, Rc::clone(&metrics))));
        let view = View::new(live);
        let snapshot = view.current();
        Self {
            buffers: Buffers::new(snapshot.config.limits.body_buffers_bytes_max),
            pool: Pool::new(snapshot.config.worker_count() == 1, joiner.clone(), Rc::clone(&metrics)),
            joiner,
            view,
            connector,
            random: RefCell::new(fastrand::Rng::new()),
            metrics,
            log: RefCell::new(log),
            draining: Cell::new(false),
            shares_sockets: Cell::new(false),
            connections: RefCell::new(Slab::new()),
            turned_away: Rc::new(()),
            splicer: None,
            direct: None,
            tracer: None,
            pace: None,
            challenges: Arc::default(),
        }
    }

    /// Has tunnels spliced by the kernel.
    pub(crate) fn with_splicer(self, splicer: Option<Splicer>) -> Self {
        Self { splicer, ..self }
    }

    /// Has it be a batch thread, as it is now, only while that is good for it. To be called on its thread.
    pub(crate) fn with_pace(self, is_batch: bool) -> Self {
        let pace = if is_batch { Pace::begin(&self.metrics) } else { None };
        Self { pace, ..self }
    }

    /// Has answers go to clients past sluice.
    pub(crate) fn with_direct(self, seat: Option<direct::Seat>) -> Self {
        Self { direct: seat.map(Direct::new), ..self }
    }

    /// Has authorities answered that look whose a name is.
    pub(crate) fn with_challenges(self, challenges: Arc<HttpChallenges>) -> Self {
        Self { challenges, ..self }
    }

    /// The configuration in force now. An exchange asks once, and keeps it to its end.
    pub(crate) fn snapshot(&self) -> Current {
        self.view.current()
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
    pub(crate) fn record(&self, record: &ExchangeRecord<'_>, counts: bool) {
        if counts {
            self.metrics.record(record);
        }
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
    pub(crate) fn enrol(&self, stream: Stream, listener: Arc<ListenerState>) -> usize {
        self.connections.borrow_mut().insert(Open {
            stream,
            phase: Phase::Idle,
            since: Instant::now(),
            listener,
        })
    }

    /// Has the end of an idle connection asked of something else than its socket.
    pub(crate) fn end_through(&self, slot: usize, stream: Stream) {
        if let Some(open) = self.connections.borrow_mut().get_mut(slot) {
            open.stream = stream;
        }
    }

    /// Forgets a connection that has ended.
    pub(crate) fn strike_off(&self, slot: usize) {
        self.connections.borrow_mut().remove(slot);
    }

    /// Notes what a connection is doing.
    pub(crate) fn set_phase(&self, slot: usize, phase: Phase) {
        if let Some(open) = self.connections.borrow_mut().get_mut(slot) {
            open.phase = phase;
            open.since = Instant::now();
        }
    }

    /// Ends the waits of idle connections; a request that has just arrived is still served.
    fn drain(&self) {
        self.draining.set(true);
        self.pool.clear();
        // What is on its way in the kernel would be lost if the process ended before the tunnels do.
        if let Some(splicer) = &self.splicer {
            splicer.return_all();
        }
        if let Some(direct) = &self.direct {
            direct.call_in(None);
        }
        // Where somebody else serves, the next request of a connection in use must not meet its end.
        match self.shares_sockets.get() {
            true => self.begin_to_end(),
            false => self.end_idle(Duration::ZERO),
        }
    }

    /// From now on idle connections that are to end are given some time.
    fn begin_to_end(&self) {
        let now = Instant::now();
        for (_, open) in self.connections.borrow_mut().iter_mut() {
            if self.is_draining() || open.listener.is_closed() {
                open.since = now;
            }
        }
    }

    /// Ends the waits of connections that are to end and have been idle for some time.
    fn end_idle(&self, grace: Duration) {
        for (_, open) in self.connections.borrow().iter() {
            let is_ending = self.is_draining() || open.listener.is_closed();
            if is_ending && open.phase == Phase::Idle && open.since.elapsed() >= grace {
                open.stream.shutdown_read();
            }
        }
    }

    /// Connections that have not ended.
    #[cfg(test)]
    pub(crate) fn open_connections(&self) -> usize {
        self.connections.borrow().len()
    }

    fn tick(&self) {
        if let Some(pace) = &self.pace {
            let changed = pace.tick();
            changed.zip(self.direct()).into_iter().for_each(|(batch, direct)| direct.schedule(batch));
        }
        if let Some(direct) = &self.direct {
            direct.reap();
        }
        // An idle worker would otherwise hold on to a configuration that nobody uses.
        let snapshot = self.snapshot();
        self.pool.reap(&snapshot.clusters);
        if let Some(joiner) = &self.joiner {
            joiner.tick();
        }
        // Also when nothing ends: an endpoint may have come, got well or been given a higher limit.
        for cluster in snapshot.clusters.values() {
            cluster.serve_waiting();
        }
        self.end_idle(IDLE_GRACE);
        self.log.borrow_mut().flush();
    }

    fn is_done(&self) -> bool {
        self.is_draining() && self.connections.borrow().is_empty()
    }
}
