//! State that the connections of one worker share: connections to endpoints, buffers, the current configuration,
//! counters, and the list of open connections. On the hot path workers share only counters, and if requests in flight
//! are limited, also the queue and the idle connections. `thread` runs the worker.

mod gather;
mod lateness;
mod pace;
mod place;
mod schedule;
mod trace;
mod waits;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use schedule::Schedule;
use slab::Slab;
use sluice_core::access_log::AccessLogHandle;
use sluice_core::metrics::{Counted, Event, WorkerRecorder};
use sluice_core::record::ExchangeRecord;
use sluice_core::spans::Tracer;
use sluice_net::buffers::Buffers;
use sluice_net::listener::ListenerState;

use crate::bypass::JoinerConfig;
use crate::direct::{self, Direct};
use crate::exchange::Resources;
use crate::shared_connection::Control;
use crate::snapshot::{Current, Live, View};
use crate::spool::{Medium, Spool};
use crate::tunnel::{self, Splicer};
use crate::upstream::{Connector, Dialer};
use sluice_core::http_challenges::HttpChallenges;

/// How long a connection that is to end may be idle: an active client sends its next request in the meantime, and its
/// response carries `Connection: close`.
const IDLE_GRACE: Duration = Duration::from_secs(1);

/// The maximum number of waiting connections that are woken in a tick to move.
const SHED_MAX: usize = 256;

/// The phase of a connection, for a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Waiting for a request.
    Idle,
    /// In an exchange or a tunnel.
    Busy,
}

/// What an idle connection waits for, and how the wait is ended.
pub(crate) enum Wait {
    /// Its next message.
    Own(Call),
    /// Its next stream.
    Shared(Rc<Control>),
    /// The same, on a connection of HTTP/3.
    Quic(Rc<Control>),
}

/// Calls a connection out of its wait for a message. Its socket is left as it is: a client whose bytes arrive meanwhile
/// is served, however late the connection looks at them.
#[derive(Default)]
pub(crate) struct Call {
    is_made: Cell<bool>,
    /// Whether the connection could move to another worker now.
    may_move: Cell<bool>,
    waiting: RefCell<Option<Waker>>,
}

impl Call {
    fn make(&self) {
        self.is_made.set(true);
        self.waiting.borrow().iter().for_each(Waker::wake_by_ref);
    }

    /// Makes a connection look whether it is to move. Returns false if it could not.
    fn ask_to_move(&self) -> bool {
        let asks = self.may_move.replace(false);
        if asks {
            self.waiting.borrow().iter().for_each(Waker::wake_by_ref);
        }
        asks
    }

    /// Ready while it is made; it can be made again.
    fn poll(&self, may_move: bool, cx: &Context<'_>) -> Poll<()> {
        self.may_move.set(may_move);
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waiting = Some(cx.waker().clone());
        }
        if self.is_made.get() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Wait {
    fn end(&self) {
        match self {
            Self::Own(call) => call.make(),
            Self::Shared(control) | Self::Quic(control) => control.end(),
        }
    }
}

/// A downstream connection, as registered with the worker.
struct Open {
    wait: Wait,
    phase: Phase,
    /// Start of the phase, or of the connection's shutdown if that is later.
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
    /// Whether connections are to move to other workers.
    sheds: Cell<bool>,
    splicer: Option<Splicer>,
    tracer: Option<Tracer>,
    schedule: Schedule,
    /// Pending ACME HTTP-01 challenges.
    pub(crate) challenges: Arc<HttpChallenges>,
}

/// Where bodies are buffered that are forwarded by `connector`.
fn medium_beside(connector: &Connector) -> Medium {
    match connector {
        Connector::Sockets => Medium::Disk,
        #[cfg(test)]
        Connector::Memory(_) => Medium::Memory,
    }
}

impl Worker {
    /// A worker without connections. `seat` contains the parameters for joining, if connections are joined.
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
            sheds: Cell::new(false),
            splicer: None,
            tracer: None,
            schedule: Schedule::default(),
            challenges: Arc::default(),
        }
    }

    /// Enables splicing of tunnels.
    pub fn with_splicer(self, splicer: Option<Splicer>) -> Self {
        Self { splicer, ..self }
    }

    /// Lets the worker be a batch thread only while that is useful; `is_batch` if it is one now. Call it on the
    /// worker's thread.
    pub fn with_pace(self, is_batch: bool) -> Self {
        let schedule = self.schedule.with_pace(is_batch, self.resources.dialer.metrics());
        Self { schedule, ..self }
    }

    /// Lets the worker stay on a core of its own while it is a busy batch thread; it is the one of that number among
    /// `workers`. The first one may also serve the connections of all. Call it on the worker's thread.
    pub fn with_place(self, worker: usize, workers: usize) -> Self {
        let schedule = self.schedule.with_place(worker, workers, self.resources.dialer.metrics());
        Self { schedule, ..self }
    }

    /// Enables direct return.
    pub fn with_direct(mut self, seat: Option<direct::DirectConfig>) -> Self {
        self.resources.dialer.set_direct(seat.map(Direct::new));
        self
    }

    /// Serves ACME HTTP-01 challenges.
    pub fn with_challenges(self, challenges: Arc<HttpChallenges>) -> Self {
        Self { challenges, ..self }
    }

    /// The current configuration. An exchange gets it once, and keeps it to its end.
    pub(crate) fn snapshot(&self) -> Current {
        self.view.current()
    }

    /// Where the current configuration is.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// The resources that exchanges need.
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

    /// Whether connections are to move to other workers between two requests.
    pub(crate) fn sheds(&self) -> bool {
        self.sheds.get()
    }

    /// See [`Self::sheds`]; a worker that drains keeps what it has. Some of those that wait are woken: if only busy
    /// connections moved, they would all be on the worker that has fewer idle ones.
    pub(crate) fn shed(&self, sheds: bool) {
        self.sheds.set(sheds && !self.is_draining());
        if self.sheds() {
            let open = self.connections.borrow();
            let waits = open.iter().filter_map(|(_, open)| match &open.wait {
                Wait::Own(call) => Some(call),
                _ => None,
            });
            waits.filter(|call| call.ask_to_move()).take(SHED_MAX).for_each(drop);
        }
    }

    /// Whether this worker is to serve all connections, as far as its last tick tells.
    pub(crate) fn gathers(&self) -> bool {
        self.schedule.gathers() && !self.is_draining()
    }

    /// Looks how late the worker wakes while it is busy, if that matters.
    pub(crate) async fn watch_schedule(&self) {
        self.schedule.watch().await;
    }

    /// Records whether the worker rests.
    pub(crate) fn rest(&self, rests: bool) {
        self.schedule.rest(rests, self.metrics());
    }

    /// Held by each connection that is being rejected because there are too many.
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
        if record.queue.is_some_and(|time| !time.is_zero()) {
            self.schedule.count_queued();
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

    /// Registers a connection for the drain.
    pub(crate) fn enrol(&self, wait: Wait, listener: Arc<ListenerState>) -> usize {
        self.connections.borrow_mut().insert(Open {
            wait,
            phase: Phase::Idle,
            since: Instant::now(),
            listener,
        })
    }

    /// Registers how an idle connection with streams is notified that it has to end.
    pub(crate) fn end_through(&self, slot: usize, control: Rc<Control>) {
        if let Some(open) = self.connections.borrow_mut().get_mut(slot) {
            open.wait = Wait::Shared(control);
        }
    }

    /// Removes a connection that has ended.
    pub(crate) fn strike_off(&self, slot: usize) {
        // It may hold the last descriptor, which must not be closed while the other connections are borrowed.
        let gone = self.connections.borrow_mut().remove(slot);
        drop(gone);
    }

    /// Records a connection's phase.
    pub(crate) fn set_phase(&self, slot: usize, phase: Phase) {
        if let Some(open) = self.connections.borrow_mut().get_mut(slot) {
            open.phase = phase;
            open.since = Instant::now();
            if let Wait::Own(call) = &open.wait {
                // Each wait has its own time.
                call.is_made.set(false);
                call.may_move.set(false);
            }
        }
    }

    /// Ready when a connection has to end its wait for a message, if it is still silent. If it `may_move`, it is also
    /// woken when the worker sheds connections.
    pub(crate) fn poll_call(&self, slot: usize, may_move: bool, cx: &Context<'_>) -> Poll<()> {
        match self.connections.borrow().get(slot).map(|open| &open.wait) {
            Some(Wait::Own(call)) => call.poll(may_move, cx),
            _ => Poll::Pending,
        }
    }

    /// From now on, each response ends its connection, and those with streams are told to end. More are accepted.
    pub(crate) fn announce_drain(&self) {
        if !self.resources.announce_drain() {
            return;
        }
        for (_, open) in self.connections.borrow().iter() {
            if matches!(open.wait, Wait::Shared(_) | Wait::Quic(_)) {
                open.wait.end();
            }
        }
    }

    /// Ends the waits of idle connections; a request that has just arrived is still served.
    pub(crate) fn drain(&self) {
        self.resources.drain();
        self.resources.dialer.pool.clear();
        // Bytes in flight in the kernel would be lost if the process ended before the tunnels.
        if let Some(splicer) = &self.splicer {
            splicer.return_all();
        }
        if let Some(direct) = self.direct() {
            direct.call_in(None);
        }
        // If another process serves, the next request of a connection in use must not meet a closed connection.
        match self.shares_sockets.get() {
            true => self.begin_to_end(),
            false => self.end_idle(Duration::ZERO),
        }
    }

    /// From now on, idle connections that have to end get some time.
    pub(crate) fn begin_to_end(&self) {
        let now = Instant::now();
        for (_, open) in self.connections.borrow_mut().iter_mut() {
            if self.is_draining() || open.listener.is_closed() {
                open.since = now;
            }
        }
    }

    /// Ends the connections of HTTP/3 on a listener, after what is under way.
    pub(crate) fn end_http3(&self, listener: &ListenerState) {
        for (_, open) in self.connections.borrow().iter() {
            if matches!(open.wait, Wait::Quic(_)) && open.listener.is_same(listener) {
                open.wait.end();
            }
        }
    }

    /// Ends the waits of connections that have to end and were idle for some time.
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
        self.schedule.tick(self.connections.borrow().len(), self.metrics());
        if let Some(direct) = self.direct() {
            direct.reap();
        }
        // An idle worker would otherwise keep an outdated configuration alive.
        let snapshot = self.snapshot();
        self.resources.dialer.pool.reap(&snapshot.clusters);
        if let Some(joiner) = self.resources.dialer.joiner() {
            joiner.tick();
        }
        // Also when nothing ends: an endpoint may have been added, become healthy or been given a higher limit.
        for cluster in snapshot.clusters.values() {
            cluster.serve_waiting();
        }
        self.resources.files.tick();
        self.end_idle(IDLE_GRACE);
        self.log.borrow_mut().flush();
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_draining() && self.connections.borrow().is_empty()
    }
}
