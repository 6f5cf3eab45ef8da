//! One worker's hand in it: marks connections, sees that they are joined, and watches whether what went over them
//! is read.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sluice_ebpf::Wish;

use super::place;
use crate::clock::now_ms;
use crate::cluster::{Endpoint, Place};
use crate::config::KernelAssists;
use crate::kernel::program::{Lease, Marker, Slots};
use crate::metrics::{Event, WorkerRecorder};
use crate::stream::Stream;

/// How often, a millisecond apart, a connection is looked at before it counts as not joined. Nearly always the
/// other end is in the map before connect returns; with packets steered to another core it is there shortly after.
const LOOKS: u32 = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What a worker needs to join connections; made on the control thread.
pub(crate) struct Seat {
    pub(super) marker: Marker,
    pub(super) stopped: Arc<AtomicBool>,
    pub(super) bounds: Bounds,
    /// For answers that go past sluice, if they do.
    pub(super) slots: Option<Arc<Slots>>,
}

/// What holds for every connection.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// A larger request is not joined: two of this size fit into the budget, and an application that has answered
    /// leaves at most the body of the last request unread before the next.
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

/// A connection that is to be joined.
pub(crate) struct Marked {
    lease: Option<Arc<Lease>>,
}

/// Joins the upstream connections of one worker.
pub(crate) struct Joiner {
    marker: RefCell<Marker>,
    stopped: Arc<AtomicBool>,
    bounds: Bounds,
    slots: Option<Arc<Slots>>,
    /// Connections that are joined; those that have ended are removed on the tick.
    watched: RefCell<Vec<Weak<Joined>>>,
    metrics: Rc<WorkerRecorder>,
}

/// A joined connection, as long as it is open here.
pub(crate) struct Joined {
    stream: Stream,
    endpoint: Arc<Endpoint>,
    /// Its slot, for answers that go past sluice.
    lease: Option<Arc<Lease>>,
    /// Since when an answer is waited for.
    waiting: Cell<Option<Instant>>,
}

impl Joined {
    /// A request has been sent.
    pub(crate) fn sent(&self, at: Instant) {
        self.waiting.set(Some(at));
    }

    /// Its slot, if it has one.
    pub(crate) fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref()
    }

    /// Something has come back.
    pub(crate) fn answered(&self) {
        self.waiting.set(None);
    }
}

impl Joiner {
    pub(crate) fn new(seat: Seat, metrics: Rc<WorkerRecorder>) -> Self {
        let Seat { marker, stopped, bounds, slots } = seat;
        Self { marker: RefCell::new(marker), stopped, bounds, slots, watched: RefCell::default(), metrics }
    }

    /// Whether a request that is whole in memory may go over a joined connection.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        bytes <= self.bounds.request_bytes_max
    }

    /// What to ask for when connecting to `endpoint`, if it may be joined now.
    pub(crate) fn wish(&self, endpoint: &Endpoint) -> Option<Wish> {
        if self.stopped.load(Relaxed) {
            return None;
        }
        match endpoint.joinable.place(now_ms(), || place::of(&endpoint.address))? {
            Place::SameHost => Some(Wish::SameNamespace),
            Place::Neighbour => Some(Wish::AnyNamespace),
            Place::Elsewhere => None,
        }
    }

    /// Asks for a socket that is not connected yet. `None` if that cannot be, and it is an ordinary one then: a
    /// miss, or each request would open another in search of a joined one.
    pub(crate) fn mark(&self, socket: BorrowedFd<'_>, wish: Wish, endpoint: &Endpoint) -> Option<Marked> {
        // Without a slot it is joined all the same.
        let lease = self.slots.as_ref().and_then(|slots| slots.lease(socket)).map(Arc::new);
        let slot = lease.as_ref().map_or(0, |lease| lease.index());
        let marked = self.marker.borrow_mut().mark(socket, wish, slot);
        if let Err(error) = marked {
            tracing::debug!(%error, "a connection cannot be marked");
            self.metrics.count(Event::BypassUnmarked);
            endpoint.joinable.note(false, now_ms());
            return None;
        }
        Some(Marked { lease })
    }

    /// Whether a marked connection that has just been made is joined; if so it is watched. If not it must not be
    /// used: its other end may come into the map later, between two bytes.
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
                    return Some(self.watch(stream, marked.lease, endpoint));
                }
                Some(Ok(false)) if look < LOOKS => tokio::time::sleep(LOOK_AGAIN).await,
                Some(Ok(false)) | None => break,
                Some(Err(error)) => {
                    tracing::debug!(%error, "a connection cannot be asked whether it is joined");
                    break;
                }
            }
        }
        endpoint.joinable.note(false, now_ms());
        self.metrics.count(Event::BypassIncomplete);
        None
    }

    /// Whether a connection is in the map, joined or not: what is sent to it may go past TCP.
    pub(crate) fn holds(&self, stream: &Stream) -> bool {
        stream.fd().is_some_and(|fd| self.marker.borrow().holds(fd).unwrap_or(true))
    }

    /// Watches a connection that is joined.
    pub(crate) fn watch(
        &self,
        stream: &Stream,
        lease: Option<Arc<Lease>>,
        endpoint: &Arc<Endpoint>,
    ) -> Rc<Joined> {
        let (stream, endpoint) = (stream.clone(), Arc::clone(endpoint));
        let joined = Rc::new(Joined { stream, endpoint, lease, waiting: Cell::new(None) });
        self.watched.borrow_mut().push(Rc::downgrade(&joined));
        joined
    }

    /// Looks for applications that do not read what they were sent.
    pub(crate) fn tick(&self) {
        self.watched.borrow_mut().retain(|watched| {
            let joined = watched.upgrade();
            if let Some(joined) = &joined {
                self.look_at(joined);
            }
            joined.is_some()
        });
    }

    fn look_at(&self, joined: &Joined) {
        let stall = self.bounds.stall;
        if joined.waiting.get().is_none_or(|since| since.elapsed() < stall) {
            return;
        }
        let unread = joined.stream.fd().and_then(|fd| self.marker.borrow().unread(fd).ok());
        let Some(bytes) = unread.filter(|bytes| *bytes > 0) else {
            return;
        };
        joined.answered();
        self.metrics.count(Event::BypassStalled);
        if joined.endpoint.joinable.bar() {
            tracing::warn!(
                endpoint = joined.endpoint.label,
                bytes,
                stall_ms = stall.as_millis(),
                "joined bytes stay unread; this endpoint is joined no more"
            );
        }
    }
}
