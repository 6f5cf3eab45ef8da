//! One exchange whose answer may go past sluice.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sluice_core::clock;
use sluice_core::cluster::Cluster;
use sluice_core::metrics::{Missed, Unarmed};
use sluice_ebpf::slot::{Miss, Order, Phase, Slot};
use sluice_kernel::program::{ClientSocket, Lease};
use sluice_net::deadline::Deadline;
use tokio::time::{Sleep, sleep};

use super::hold::Holding;
use super::{Direct, Entry, PathIndex};

/// When an exchange is looked at again that the program had while somebody waited for its end.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Holds the slot of a connection for one exchange. Dropped, the program sends nothing more to the client, unless it
/// does at this moment.
pub(crate) struct Armed<'a> {
    direct: &'a Direct,
    lease: Arc<Lease>,
    key: usize,
    place: PathIndex,
    /// When any of it had last been sent, as it was last looked at.
    seen_ns: Cell<u64>,
    /// Whether an answer has come to a request that the program has not seen.
    unseen: Cell<bool>,
    look_again: RefCell<Option<Pin<Box<Sleep>>>>,
    /// While there is one somebody looks after heads that are kept.
    _holding: Option<Holding<'a>>,
}

/// An answer that has gone to the client whole, or is on its way there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectAnswer {
    pub(crate) status: u16,
    /// With the head.
    pub(crate) bytes: u64,
    pub(crate) first_byte_at: Instant,
    pub(crate) ended_at: Instant,
}

/// What is left of an answer whose begin has gone to the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    pub(crate) status: u16,
    pub(crate) first_byte_at: Instant,
    /// Bytes that have gone, with the head.
    pub(crate) sent: u64,
    /// Bytes of the body to come.
    pub(crate) remaining: u64,
}

/// What the bytes are that an upstream connection brings.
pub(crate) enum Claimed {
    /// The answer, from its start on.
    Bytes,
    /// The answer behind this head, which was kept and had come at that time. Nothing of it has gone to the client.
    Head(Vec<u8>, Instant),
    /// What is left of it.
    Rest(Rest),
}

impl<'a> Armed<'a> {
    /// Says that the next answer on a connection goes to `client`, whose `sent` bytes so far are before it. On the
    /// connection `received` bytes have been received so far, modulo 2^32.
    #[expect(
        clippy::too_many_arguments,
        reason = "the entry of a map that the kernel shares, field by field"
    )]
    pub(crate) fn new(
        direct: &'a Direct,
        lease: &Arc<Lease>,
        cluster: &Arc<Cluster>,
        place: PathIndex,
        client: ClientSocket,
        sent: u64,
        received: u32,
    ) -> Self {
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

    /// Ready once the whole answer has gone. Each part of it that has counts as activity on `deadline`, which then
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

    /// Remembers whom to wake; whether somebody waits for the end.
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

    /// Has the answer come to sluice: somebody waits for its end.
    pub(crate) fn want(&self) {
        if let Some(entry) = self.direct.entries.borrow_mut().get_mut(self.key) {
            entry.call_in();
        }
    }

    /// Whether any of the answer has gone to the client, or may be going.
    pub(crate) fn has_begun(&self) -> bool {
        let slot = self.slot();
        slot.take_over() == Phase::Busy || slot.sent.get() > 0
    }

    /// Whose the bytes are that have come from the application; `None` as long as the program has the answer. From
    /// then on all that follow are sluice's, too.
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

    /// Takes a head that is kept, for its time is over; whether there was one.
    pub(crate) fn take_head(&self) -> bool {
        self.slot().let_head_go()
    }

    /// Whether a head that was kept is sluice's now.
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

    /// What has gone of an answer that was not whole; only if [`Armed::has_begun`].
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

    /// Notes whether answers for its path can go past sluice, and whether their bodies come at once.
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

    /// Memory behind the client's send queue that TCP does not count.
    pub(crate) fn slack(&self) -> u64 {
        self.slot().slack.get()
    }

    /// Why the answer, or its rest, did not go past sluice.
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
