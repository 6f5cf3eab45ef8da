//! One worker's part in joining: marks connections, checks that they are joined, and watches whether joined bytes are
//! read.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sluice_config::KernelAssists;
use sluice_core::clock::now_ms;
use sluice_core::cluster::{Admission, Endpoint, Locality};
use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_ebpf::Wish;
use sluice_kernel::program::{Lease, Marker, Slots};
use sluice_net::stream::Stream;

use super::place;

/// How often, a millisecond apart, a connection is checked before it counts as not joined. Nearly always the other end
/// is in the map before connect returns; if packets are steered to another core, it follows shortly after.
const LOOKS: u32 = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How many consecutive checks have to find a trial request unread, and the interval between them: an application that
/// is only busy nearly always reads within that time.
const TRIAL_LOOKS: u32 = 4;
const TRIAL_LOOK: Duration = Duration::from_millis(50);

/// What a worker needs to join connections; created on the control thread.
pub struct JoinerConfig {
    pub(super) marker: Marker,
    pub(super) stopped: Arc<AtomicBool>,
    pub(super) bounds: Bounds,
    /// For direct return, if it is used.
    pub(super) slots: Option<Arc<Slots>>,
}

/// Limits that apply to every connection.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// A larger request is not joined: two of this size fit into the budget, and an application that has responded
    /// leaves at most the last request's body unread before the next one.
    request_bytes_max: usize,
    stall: Duration,
}

impl Bounds {
    pub(super) fn of(kernel: KernelAssists) -> Self {
        Self {
            request_bytes_max: kernel.bypass_budget_bytes as usize / 2,
            stall: Duration::from_millis(kernel.bypass_stall_ms),
        }
    }
}

/// How a new connection is to be joined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    wish: Wish,
    /// The endpoint may not read joined bytes.
    pub(crate) is_trial: bool,
}

/// A request that is completely in memory, so that it may use a joined connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Size of the request in bytes.
    pub(crate) bytes: usize,
    /// Whether it may be sent twice.
    pub(crate) repeatable: bool,
}

/// A connection that was marked for joining.
pub(crate) struct Marked {
    lease: Option<Arc<Lease>>,
}

/// Joins the upstream connections of one worker.
pub(crate) struct Joiner {
    marker: RefCell<Marker>,
    stopped: Arc<AtomicBool>,
    bounds: Bounds,
    slots: Option<Arc<Slots>>,
    /// Joined connections; ended ones are removed on the tick.
    watched: RefCell<Vec<Weak<Joined>>>,
    metrics: Rc<WorkerRecorder>,
}

/// A joined connection, as long as it is open in this worker.
pub(crate) struct Joined {
    stream: Stream,
    endpoint: Arc<Endpoint>,
    /// Its slot for direct return.
    lease: Option<Arc<Lease>>,
    /// Since when a response is awaited.
    waiting: Cell<Option<Instant>>,
    /// The next response proves that the endpoint reads joined bytes.
    proves: Cell<bool>,
    trial: Cell<Trial>,
}

/// Whether the request under way may stay unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    None,
    UnderWay,
    Failed,
}

impl Joined {
    /// Records that a request was sent.
    pub(crate) fn sent(&self, at: Instant) {
        self.waiting.set(Some(at));
    }

    /// Its slot, if it has one.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref()
    }

    /// Records that something was received.
    pub(crate) fn answered(&self) {
        self.waiting.set(None);
        if self.proves.replace(false) {
            self.trial.set(Trial::None);
            self.endpoint.joinable.prove(now_ms());
        }
    }

    /// The next request is a trial.
    pub(crate) fn begin_trial(&self) {
        self.proves.set(true);
        self.trial.set(Trial::UnderWay);
    }

    /// Whether the request under way is a trial.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.trial.get() == Trial::UnderWay
    }

    /// Whether the endpoint did not read the request.
    pub(crate) fn is_unread(&self) -> bool {
        self.trial.get() == Trial::Failed
    }
}

impl Joiner {
    pub(crate) fn new(seat: JoinerConfig, metrics: Rc<WorkerRecorder>) -> Self {
        let JoinerConfig { marker, stopped, bounds, slots } = seat;
        Self { marker: RefCell::new(marker), stopped, bounds, slots, watched: RefCell::default(), metrics }
    }

    /// How to mark a connection to `endpoint`, if the request may use a joined connection now.
    pub(crate) fn plan(&self, endpoint: &Endpoint, candidate: Candidate) -> Option<Plan> {
        if self.stopped.load(Relaxed) || candidate.bytes > self.bounds.request_bytes_max {
            return None;
        }
        let now_ms = now_ms();
        let wish = match endpoint.joinable.place(now_ms, || place::of(&endpoint.address))? {
            Locality::SameHost => Wish::SameNamespace,
            Locality::Neighbour => Wish::AnyNamespace,
            Locality::Elsewhere => return None,
        };
        match endpoint.joinable.admit(now_ms, candidate.repeatable) {
            Admission::Known => Some(Plan { wish, is_trial: false }),
            Admission::Trial => Some(Plan { wish, is_trial: true }),
            Admission::Refused => None,
        }
    }

    /// Marks a socket that is not connected yet. Returns `None` if marking fails and the socket stays an ordinary one.
    /// This counts as a miss; otherwise each request would open another connection to get a joined one.
    pub(crate) fn mark(&self, socket: BorrowedFd<'_>, plan: Plan, endpoint: &Endpoint) -> Option<Marked> {
        // Without a slot it is still joined.
        let lease = self.slots.as_ref().and_then(|slots| slots.lease(socket)).map(Arc::new);
        let slot = lease.as_ref().map_or(0, |lease| lease.index());
        let marked = self.marker.borrow_mut().mark(socket, plan.wish, slot);
        if let Err(error) = marked {
            tracing::debug!(%error, "cannot mark a connection");
            self.metrics.count(Event::BypassUnmarked);
            endpoint.joinable.note(false, now_ms());
            return None;
        }
        Some(Marked { lease })
    }

    /// Whether a marked connection that was just opened is joined; if so, it is watched. If not, it must not be used:
    /// its other end may be added to the map later, between two bytes.
    pub(crate) async fn confirm(
        &self,
        stream: &Stream,
        marked: Marked,
        endpoint: &Arc<Endpoint>,
    ) -> Option<Rc<Joined>> {
        for look in 1..=LOOKS {
            match stream.fd().map(|fd| self.marker.borrow().is_joined(fd)) {
                Some(Ok(true)) => {
                    endpoint.joinable.note(true, now_ms());
                    let joined = self.watch(stream, marked.lease, endpoint);
                    joined.proves.set(true);
                    return Some(joined);
                }
                Some(Ok(false)) if look < LOOKS => tokio::time::sleep(LOOK_AGAIN).await,
                Some(Ok(false)) | None => break,
                Some(Err(error)) => {
                    tracing::debug!(%error, "cannot find out whether a connection is joined");
                    break;
                }
            }
        }
        endpoint.joinable.note(false, now_ms());
        self.metrics.count(Event::BypassIncomplete);
        None
    }

    /// Whether a connection is in the map, joined or not: bytes sent to it may bypass TCP.
    pub(crate) fn holds(&self, stream: &Stream) -> bool {
        stream.fd().is_some_and(|fd| self.marker.borrow().holds(fd).unwrap_or(true))
    }

    /// Watches a joined connection.
    pub(crate) fn watch(
        &self,
        stream: &Stream,
        lease: Option<Arc<Lease>>,
        endpoint: &Arc<Endpoint>,
    ) -> Rc<Joined> {
        let (stream, endpoint) = (stream.clone(), Arc::clone(endpoint));
        let (waiting, proves, trial) = (Cell::new(None), Cell::new(false), Cell::new(Trial::None));
        let joined = Rc::new(Joined { stream, endpoint, lease, waiting, proves, trial });
        self.watched.borrow_mut().push(Rc::downgrade(&joined));
        joined
    }

    /// Checks for applications that do not read what they were sent.
    pub(crate) fn tick(&self) {
        self.watched.borrow_mut().retain(|watched| {
            let joined = watched.upgrade();
            if let Some(joined) = &joined {
                self.look_at(joined);
            }
            joined.is_some()
        });
    }

    /// Resolves once it is clear that the endpoint does not read the trial request; the request may then be sent by
    /// TCP. Never resolves for other requests, nor while the connection is not accepted: the application is then only
    /// late.
    pub(crate) async fn unread(&self, joined: &Joined) {
        let mut seen = 0;
        while joined.is_on_trial() {
            tokio::time::sleep(TRIAL_LOOK).await;
            seen = if self.unread_bytes(joined).is_some() { seen + 1 } else { 0 };
            if seen == TRIAL_LOOKS && joined.is_on_trial() {
                joined.trial.set(Trial::Failed);
                self.give_up(joined);
                return;
            }
        }
        std::future::pending().await
    }

    /// The bytes that the endpoint has accepted and not read, if any.
    fn unread_bytes(&self, joined: &Joined) -> Option<u32> {
        let unread = joined.stream.fd().and_then(|fd| self.marker.borrow().unread(fd).ok());
        unread.filter(|bytes| *bytes > 0)
    }

    fn look_at(&self, joined: &Joined) {
        if joined.waiting.get().is_none_or(|since| since.elapsed() < self.bounds.stall) {
            return;
        }
        if self.unread_bytes(joined).is_some() {
            joined.waiting.set(None);
            self.give_up(joined);
        }
    }

    fn give_up(&self, joined: &Joined) {
        self.metrics.count(Event::BypassStalled);
        if let Some(pause) = joined.endpoint.joinable.pause(now_ms()) {
            tracing::warn!(
                endpoint = joined.endpoint.label,
                pause_s = pause.as_secs(),
                "this endpoint does not read bytes that bypass loopback TCP; its requests use TCP for a while"
            );
        }
    }
}
