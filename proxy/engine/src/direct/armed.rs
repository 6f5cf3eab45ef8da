//! One exchange whose response may use direct return.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluice_core::clock;
use sluice_core::cluster::Cluster;
use sluice_core::metrics::{Missed, Unarmed};
use sluice_ebpf::slot::{Line, Miss, Order, Phase, Slot};
use sluice_kernel::program::{ClientSocket, Lease};
use sluice_net::deadline::Deadline;
use tokio::time::{Sleep, sleep};

use super::hold::Holding;
use super::{Direct, Entry, PathIndex};

/// When to check again an exchange whose end is awaited and whose response the program was sending.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Holds the slot of a connection for one exchange. After it is dropped, the program sends nothing more to the client,
/// except for a send in progress.
pub(crate) struct Armed<'a> {
    direct: &'a Direct,
    lease: Arc<Lease>,
    key: usize,
    place: PathIndex,
    /// The time of the last sent part, as of the last check.
    seen_ns: Cell<u64>,
    /// Whether a response has arrived for a request that the program has not seen.
    unseen: Cell<bool>,
    look_again: RefCell<Option<Pin<Box<Sleep>>>>,
    /// While it exists, held heads are checked periodically.
    _holding: Option<Holding<'a>>,
}

/// A response that was sent to the client completely, or is being sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectAnswer {
    pub(crate) status: u16,
    /// Including the head.
    pub(crate) bytes: u64,
    pub(crate) first_byte_at: Instant,
    pub(crate) ended_at: Instant,
}

/// The rest of a response whose beginning was sent to the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) status: u16,
    pub(crate) first_byte_at: Instant,
    /// Bytes that were sent, including the head.
    pub(crate) sent: u64,
    /// Remaining bytes of the body.
    pub(crate) remaining: u64,
}

/// What the bytes from an upstream connection are.
pub(crate) enum Claimed {
    /// The response, from its start.
    Bytes,
    /// The response after this head, which was held and had arrived at this time. Nothing of it was sent to the client.
    Head(Vec<u8>, Instant),
    /// The rest of a response.
    Rest(Rest),
}

impl<'a> Armed<'a> {
    /// Directs the next response on a connection to `client`, after the `sent` bytes that the client was sent so far.
    /// The connection has received `received` bytes so far, modulo 2^32. `line` is added to the response's head.
    #[expect(clippy::too_many_arguments, reason = "the fields of a map entry that the kernel shares")]
    pub(crate) fn new(
        direct: &'a Direct,
        lease: &Arc<Lease>,
        cluster: &Arc<Cluster>,
        place: PathIndex,
        client: ClientSocket,
        sent: u64,
        received: u32,
        line: Line,
    ) -> Self {
        direct.likely.begin(place);
        let holding = direct.hold.begin(direct.likely.at_once(place));
        let key = direct.entries.borrow_mut().insert(Entry {
            lease: Arc::clone(lease),
            cluster: Arc::clone(cluster),
            waker: None,
            wanted: false,
            holds: holding.is_some(),
            seen: None,
        });
        lease.slot().prepare(&Order {
            client: client.cookie,
            client_socket: client.address,
            // Sequence numbers are the count of bytes, modulo 2^32.
            sequence: client.sent_next.wrapping_add(sent as u32),
            received,
            body_bytes_min: direct.body_bytes_min(),
            body_bytes_max: direct.body_bytes_max,
            hold: holding.is_some(),
            slack: client.slack,
            line,
        });
        let lease = Arc::clone(lease);
        Self {
            direct,
            lease,
            key,
            place,
            seen_ns: Cell::new(0),
            unseen: Cell::new(false),
            look_again: RefCell::default(),
            _holding: holding,
        }
    }

    fn slot(&self) -> &Slot {
        self.lease.slot()
    }

    /// Ready once the whole response was sent. Each part that was sent counts as activity on `deadline`, which then
    /// allows `idle_ms` of silence.
    pub(crate) fn poll(&self, cx: &mut Context<'_>, deadline: &Deadline, idle_ms: u64) -> Poll<DirectAnswer> {
        let wanted = self.note_waker(cx);
        let slot = self.slot();
        let mut phase = slot.phase();
        if wanted && phase != Phase::Done {
            phase = slot.take_over();
        }
        match phase {
            Phase::Done => return Poll::Ready(self.answered()),
            Phase::Busy if wanted => self.look_again(cx),
            _ => {}
        }
        let last_ns = slot.last_ns.get();
        if self.seen_ns.replace(last_ns) != last_ns {
            deadline.set_from(idle_ms, clock::instant_of(last_ns));
        }
        Poll::Pending
    }

    /// Stores the waker; returns whether the end is awaited.
    fn note_waker(&self, cx: &Context<'_>) -> bool {
        let mut entries = self.direct.entries.borrow_mut();
        let Some(entry) = entries.get_mut(self.key) else {
            return false;
        };
        if !entry.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            entry.waker = Some(cx.waker().clone());
        }
        entry.wanted
    }

    fn look_again(&self, cx: &mut Context<'_>) {
        let mut timer = self.look_again.borrow_mut();
        while timer.get_or_insert_with(|| Box::pin(sleep(LOOK_AGAIN))).as_mut().poll(cx).is_ready() {
            *timer = None;
        }
    }

    /// Takes the response over from the program, because its end is awaited.
    pub(crate) fn want(&self) {
        if let Some(entry) = self.direct.entries.borrow_mut().get_mut(self.key) {
            entry.call_in();
        }
    }

    /// Whether a part of the response was sent to the client, or may be being sent.
    pub(crate) fn has_begun(&self) -> bool {
        let slot = self.slot();
        slot.take_over() == Phase::Busy || slot.sent.get() > 0
    }

    /// What the bytes from the application are; `None` as long as the program handles the response. After that, all
    /// following bytes are sluice's, too.
    pub(crate) fn claim(&self) -> Option<Claimed> {
        let slot = self.slot();
        if slot.phase() == Phase::Prepared {
            self.unseen.set(true);
        }
        if slot.take_over() != Phase::Left {
            return None;
        }
        Some(match (slot.held.get(), slot.sent.get()) {
            (0, 0) => Claimed::Bytes,
            (0, _) => Claimed::Rest(self.rest()),
            (held, _) => Claimed::Head(slot.text.bytes(held), clock::instant_of(slot.first_ns.get())),
        })
    }

    /// Takes over a held head because its time is over; returns whether there was one.
    pub(crate) fn take_head(&self) -> bool {
        self.slot().let_head_go()
    }

    /// Whether a held head was left to sluice.
    pub(crate) fn has_left_head(&self) -> bool {
        self.slot().held.get() != 0 && self.slot().phase() == Phase::Left
    }

    fn rest(&self) -> Rest {
        let slot = self.slot();
        let sent = slot.sent.get();
        Rest {
            status: slot.status.get() as u16,
            first_byte_at: clock::instant_of(slot.first_ns.get()),
            sent,
            remaining: slot.total.get().saturating_sub(sent),
        }
    }

    /// The part that was sent of an incomplete response; only if [`Armed::has_begun`].
    pub(crate) fn partial(&self) -> Rest {
        self.rest()
    }

    fn answered(&self) -> DirectAnswer {
        let slot = self.slot();
        DirectAnswer {
            status: slot.status.get() as u16,
            bytes: slot.sent.get(),
            first_byte_at: clock::instant_of(slot.first_ns.get()),
            ended_at: clock::instant_of(slot.last_ns.get()),
        }
    }

    /// Records whether responses for its path can use direct return, and whether their bodies follow at once.
    pub(crate) fn note(&self, could: bool) {
        self.direct.likely.note(self.place, could);
        let slot = self.slot();
        let gap_ns = slot.gap_ns.get();
        let late = slot.reason.get() == Miss::Late as u64;
        if gap_ns != 0 || late {
            let at_once = !late && self.direct.hold.is_in_time(Duration::from_nanos(gap_ns));
            self.direct.likely.note_body(self.place, at_once);
        }
    }

    /// Memory of the client's send queue that TCP does not account for.
    pub(crate) fn slack(&self) -> u64 {
        self.slot().slack.get()
    }

    /// Why the response, or its rest, did not use direct return.
    pub(crate) fn missed(&self) -> Option<Missed> {
        if self.unseen.get() {
            return Some(Unarmed::Tcp.into());
        }
        Missed::noted(self.slot().reason.get())
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.direct.entries.borrow_mut().try_remove(self.key);
        self.slot().take_over();
    }
}
