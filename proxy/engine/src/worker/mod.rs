//! What the connections of one worker share: connections to endpoints, buffers, the configuration in force, counters, and
//! which of them are open. Workers share nothing on the hot path but counters; where requests in flight are limited, the
//! line and the idle connections too. `thread` runs it.

mod pace;
mod trace;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pace::Pace;
use slab::Slab;
use sluice_core::access_log::AccessLogHandle;
use sluice_core::metrics::{Counted, Event, WorkerRecorder};
use sluice_core::record::ExchangeRecord;
use sluice_core::spans::Tracer;
use sluice_net::buffers::Buffers;
use sluice_net::listener::ListenerState;
use sluice_net::stream::Stream;

use crate::bypass::JoinerConfig;
use crate::direct::{self, Direct};
use crate::exchange::Resources;
use crate::http2::Control;
use crate::snapshot::{Current, Live, View};
use crate::spool::{Medium, Spool};
use crate::tunnel::{self, Splicer};
use crate::upstream::{Connector, Dialer};
use sluice_core::http_challenges::HttpChallenges;

/// How long a connection that is to end may be idle: a client that is at it sends its next request meanwhile, and is
/// told with the answer that it is the last.
const IDLE_GRACE: Duration = Duration::from_secs(1);

/// What a connection is doing, as far as a drain is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for a request.
    Idle,
    /// In an exchange or a tunnel.
    Busy,
}

/// What an idle connection waits for, and how it is told to wait no more.
enum Wait {
    /// Its next request.
    Stream(Stream),
    /// Its next stream.
    Http2(Rc<Control>),
}

impl Wait {
    fn end(&self) {
        match self {
            Self::Stream(stream) => stream.shutdown_read(),
            Self::Http2(control) => control.end(),
        }
    }
}

/// A downstream connection, as the worker knows it.
struct Open {
    wait: Wait,
    phase: Phase,
    /// Since when it is in that phase, or to end if that is later.
    since: Instant,
    listener: Arc<ListenerState>,
}

/// The state of one worker thread.
pub struct Worker {
    view: View,
    resources: Resources,
    random: RefCell<fastrand::Rng>,
    log: RefCell<AccessLogHandle>,
    /// Whether another process accepts from the same sockets.
    pub(crate) shares_sockets: Cell<bool>,
    connections: RefCell<Slab<Open>>,
    turned_away: Rc<()>,
    splicer: Option<Splicer>,
    tracer: Option<Tracer>,
    pace: Option<Pace>,
    /// What authorities are answered.
    pub(crate) challenges: Arc<HttpChallenges>,
}

/// Where bodies are held that are forwarded by `connector`.
fn medium_beside(connector: &Connector) -> Medium {
    match connector {
        Connector::Sockets => Medium::Disk,
        #[cfg(test)]
        Connector::Memory(_) => Medium::Memory,
    }
}

impl Worker {
    /// A worker without connections. `seat` is its place in the direct-return map, where there is one.
    pub fn new(
        live: Live,
        connector: Connector,
        seat: Option<JoinerConfig>,
        recorder: WorkerRecorder,
        log: AccessLogHandle,
    ) -> Self {
        let metrics = Rc::new(recorder);
        let view = View::new(live);
        let snapshot = view.current();
        let alone = snapshot.config.worker_count() == 1;
        let buffers = Buffers::new(snapshot.config.limits.body_buffers_bytes_max);
        let spool = Spool::new(medium_beside(&connector), Arc::clone(metrics.budget()), buffers.clone());
        let dialer = Dialer::new(connector, alone, seat, metrics);
        Self {
            resources: Resources::new(dialer, spool, buffers),
            view,
            random: RefCell::new(fastrand::Rng::new()),
            log: RefCell::new(log),
            shares_sockets: Cell::new(false),
            connections: RefCell::new(Slab::new()),
            turned_away: Rc::new(()),
            splicer: None,
            tracer: None,
            pace: None,
            challenges: Arc::default(),
        }
    }

    /// Has tunnels spliced by the kernel.
    pub fn with_splicer(self, splicer: Option<Splicer>) -> Self {
        Self { splicer, ..self }
    }

    /// Has it be a batch thread, as it is now, only while that is good for it. To be called on its thread.
    pub fn with_pace(self, is_batch: bool) -> Self {
        let pace = if is_batch { Pace::begin(self.metrics()) } else { None };
        Self { pace, ..self }
    }

    /// Has answers go to clients past sluice.
    pub fn with_direct(mut self, seat: Option<direct::DirectConfig>) -> Self {
        self.resources.dialer.set_direct(seat.map(Direct::new));
        self
    }

    /// Has authorities answered that look whose a name is.
    pub fn with_challenges(self, challenges: Arc<HttpChallenges>) -> Self {
        Self { challenges, ..self }
    }

    /// The configuration in force now. An exchange asks once, and keeps it to its end.
    pub(crate) fn snapshot(&self) -> Current {
        self.view.current()
    }

    /// What exchanges need.
    pub(crate) fn resources(&self) -> &Resources {
        &self.resources
    }

    pub(crate) fn metrics(&self) -> &Rc<WorkerRecorder> {
        self.resources.dialer.metrics()
    }

    /// What tunnels need.
    pub(crate) fn tunnels(&self) -> tunnel::Context<'_> {
        tunnel::Context {
            metrics: self.metrics(),
            buffers: &self.resources.buffers,
            splicer: self.splicer.as_ref(),
            joiner: self.resources.dialer.joiner(),
        }
    }

    pub(crate) fn direct(&self) -> Option<&Direct> {
        self.resources.dialer.direct()
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
            self.metrics().record(record);
        }
        self.log.borrow_mut().log(record);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.resources.is_draining()
    }

    /// Counts `begun` now and `ended` when the guard is dropped.
    pub(crate) fn count_while(&self, begun: Event, ended: Event) -> Counted {
        Counted::new(self.metrics(), begun, ended)
    }

    /// Makes a connection known to the drain.
    pub(crate) fn enrol(&self, stream: Stream, listener: Arc<ListenerState>) -> usize {
        self.connections.borrow_mut().insert(Open {
            wait: Wait::Stream(stream),
            phase: Phase::Idle,
            since: Instant::now(),
            listener,
        })
    }

    /// Has an idle connection of HTTP/2 told that it is to end.
    pub(crate) fn end_through(&self, slot: usize, control: Rc<Control>) {
        if let Some(open) = self.connections.borrow_mut().get_mut(slot) {
            open.wait = Wait::Http2(control);
        }
    }

    /// Forgets a connection that has ended.
    pub(crate) fn strike_off(&self, slot: usize) {
        // It may hold the last descriptor, which is not to be closed while the others are borrowed.
        let gone = self.connections.borrow_mut().remove(slot);
        drop(gone);
    }

    /// Notes what a connection is doing.
    pub(crate) fn set_phase(&self, slot: usize, phase: Phase) {
        if let Some(open) = self.connections.borrow_mut().get_mut(slot) {
            open.phase = phase;
            open.since = Instant::now();
        }
    }

    /// Ends the waits of idle connections; a request that has just arrived is still served.
    pub(crate) fn drain(&self) {
        self.resources.drain();
        self.resources.dialer.pool.clear();
        // What is on its way in the kernel would be lost if the process ended before the tunnels do.
        if let Some(splicer) = &self.splicer {
            splicer.return_all();
        }
        if let Some(direct) = self.direct() {
            direct.call_in(None);
        }
        // Where somebody else serves, the next request of a connection in use must not meet its end.
        match self.shares_sockets.get() {
            true => self.begin_to_end(),
            false => self.end_idle(Duration::ZERO),
        }
    }

    /// From now on idle connections that are to end are given some time.
    pub(crate) fn begin_to_end(&self) {
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
                open.wait.end();
            }
        }
    }

    /// Connections that have not ended.
    #[cfg(test)]
    pub(crate) fn open_connections(&self) -> usize {
        self.connections.borrow().len()
    }

    pub(crate) fn tick(&self) {
        if let Some(pace) = &self.pace {
            let changed = pace.tick();
            changed.zip(self.direct()).into_iter().for_each(|(batch, direct)| direct.schedule(batch));
        }
        if let Some(direct) = self.direct() {
            direct.reap();
        }
        // An idle worker would otherwise hold on to a configuration that nobody uses.
        let snapshot = self.snapshot();
        self.resources.dialer.pool.reap(&snapshot.clusters);
        if let Some(joiner) = self.resources.dialer.joiner() {
            joiner.tick();
        }
        // Also when nothing ends: an endpoint may have come, got well or been given a higher limit.
        for cluster in snapshot.clusters.values() {
            cluster.serve_waiting();
        }
        self.end_idle(IDLE_GRACE);
        self.log.borrow_mut().flush();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_draining() && self.connections.borrow().is_empty()
    }
}
