//! Direct return: the answer of an application on this host goes straight out of the client's socket, and sluice
//! sleeps meanwhile.
//!
//! For each exchange over a joined connection sluice says in the connection's slot where the answer goes
//! (`sluice_ebpf::slot`); the program on the application's socket sends it there, or leaves it, or its rest, to
//! sluice, which then goes on as ever. Nothing wakes sluice at the end: it looks when the client's next request
//! comes, when somebody else needs what the exchange holds, and on the worker's tick. A head that comes apart from its
//! body may be kept in the slot until that begins, so that both leave as one; see [`hold`].

mod armed;
mod client;
mod hold;
mod likely;

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;
use sluice_config::KernelAssists;
use sluice_core::clock;
use sluice_core::cluster::Cluster;
use sluice_ebpf::slot::Phase;
use sluice_kernel::program::{ClientSocket, Lease, Marker, ProgramError};
use tokio::sync::Notify;

pub(crate) use armed::{Armed, Claimed, DirectAnswer, Rest};
pub(crate) use client::Client;
use hold::Hold;
use likely::Likely;
pub(crate) use likely::PathIndex;

/// Exchanges under way up to which small answers gain, too, for a worker that preempts others. At 50 connections 1 KB
/// had 0.85 of bypass' requests.
const CALM_MAX: usize = 4;

/// One worker's part in it.
pub(crate) struct Direct {
    marker: RefCell<Marker>,
    body_bytes_min: u32,
    /// Exchanges under way up to which smaller ones go past it, too.
    calm_max: Cell<usize>,
    /// As configured; `None` goes by how the worker is scheduled.
    calm_configured: Option<usize>,
    likely: Likely,
    body_bytes_max: u64,
    from_request: u64,
    hold: Hold,
    /// Exchanges whose answer may go past sluice.
    entries: RefCell<Slab<Entry>>,
    /// When it was last looked which of them have ended, in milliseconds.
    reaped_ms: Cell<u64>,
    workers: Arc<Vec<Notify>>,
    /// Which of them this is.
    index: usize,
}

/// What a worker needs for it; made on the control thread.
pub struct DirectConfig {
    pub(crate) marker: Marker,
    pub(crate) workers: Arc<Vec<Notify>>,
    pub(crate) index: usize,
    pub(crate) kernel: KernelAssists,
    /// Whether the worker preempts nobody when it is woken.
    pub(crate) is_batch: bool,
}

struct Entry {
    lease: Arc<Lease>,
    cluster: Arc<Cluster>,
    waker: Option<Waker>,
    /// Whether somebody waits for its end.
    wanted: bool,
    /// Whether its head may be kept.
    holds: bool,
    /// What its slot was like a turn ago, if its head may be kept: see `hold`.
    seen: Option<(Phase, u64)>,
}

impl Entry {
    /// Has the answer, or the rest of it, come to sluice. True if the whole of it is on its way already.
    fn call_in(&mut self) -> bool {
        self.wanted = true;
        let phase = self.lease.slot().take_over();
        // What was left comes by itself, but for a head that was kept.
        if matches!(phase, Phase::Done | Phase::Busy) || self.lease.slot().held.get() != 0 {
            self.wake();
        }
        phase == Phase::Done
    }

    fn wake(&self) {
        if let Some(waker) = &self.waker {
            waker.wake_by_ref();
        }
    }
}

impl Direct {
    pub(crate) fn new(seat: DirectConfig) -> Self {
        let DirectConfig { marker, workers, index, kernel, is_batch } = seat;
        let direct = Self {
            marker: RefCell::new(marker),
            body_bytes_min: kernel.direct_return_bytes_min,
            calm_max: Cell::default(),
            calm_configured: kernel.direct_return_calm_max.map(|most| most as usize),
            likely: Likely::default(),
            body_bytes_max: kernel.direct_return_bytes_max,
            from_request: kernel.direct_return_from_request,
            hold: Hold::new(kernel.direct_return_hold_ms, kernel.direct_return_hold_after),
            entries: RefCell::default(),
            reaped_ms: Cell::default(),
            workers,
            index,
        };
        direct.schedule(is_batch);
        direct
    }

    /// Takes into account whether the worker preempts nobody when it is woken.
    pub(crate) fn schedule(&self, is_batch: bool) {
        let by_itself = if is_batch { usize::MAX } else { CALM_MAX };
        self.calm_max.set(self.calm_configured.unwrap_or(by_itself));
    }

    /// See [`Marker::add_client`].
    fn add_client(&self, socket: BorrowedFd<'_>) -> Result<Option<ClientSocket>, ProgramError> {
        self.marker.borrow_mut().add_client(socket)
    }

    /// Where it is noted whether answers for this path of a cluster can go past sluice.
    pub(crate) fn place(&self, cluster: &Arc<Cluster>, path: &[u8]) -> PathIndex {
        self.likely.place(Arc::as_ptr(cluster) as usize, path)
    }

    /// Whether to ask for the next one. To be called once a request.
    pub(crate) fn is_likely(&self, place: PathIndex) -> bool {
        self.likely.may(place)
    }

    fn remove_client(&self, cookie: u64) {
        self.marker.borrow_mut().remove_client(cookie);
    }

    /// Wakes the exchanges whose answers have been sent. True if there were any: what they hold is free once their
    /// tasks have run.
    pub(crate) fn reap(&self) -> bool {
        let mut any = false;
        for (_, entry) in &*self.entries.borrow() {
            if entry.lease.slot().phase() == Phase::Done {
                entry.wake();
                any = true;
            }
        }
        any
    }

    /// The same at most once a millisecond: there may be many, and who weighs loads needs them no nearer.
    pub(crate) fn reap_at_times(&self) -> bool {
        let now_ms = clock::now_ms();
        self.reaped_ms.replace(now_ms) != now_ms && self.reap()
    }

    /// Has what answers of one cluster's endpoints come to sluice, or of all: somebody waits for their ends. True as
    /// for [`Direct::reap`].
    pub(crate) fn call_in(&self, cluster: Option<&Arc<Cluster>>) -> bool {
        let mut any = false;
        for (_, entry) in &mut *self.entries.borrow_mut() {
            if cluster.is_none_or(|cluster| Arc::ptr_eq(cluster, &entry.cluster)) {
                any |= entry.call_in();
            }
        }
        any
    }

    /// The same for all clusters that requests wait in line for.
    pub(crate) fn call_in_waited_for(&self) {
        for (_, entry) in &mut *self.entries.borrow_mut() {
            if entry.cluster.is_waited_for() {
                entry.call_in();
            }
        }
    }

    /// The smallest body that is to go past sluice now. A worker that preempts others answers several of many small ones
    /// at once; of few it would only be one more to be woken.
    fn body_bytes_min(&self) -> u32 {
        if self.entries.borrow().len() <= self.calm_max.get() { 0 } else { self.body_bytes_min }
    }

    /// Asks the other workers to do that.
    pub(crate) fn call_others(&self) {
        for (index, worker) in self.workers.iter().enumerate() {
            if index != self.index {
                worker.notify_one();
            }
        }
    }

    /// Resolves when another worker asks.
    pub(crate) async fn called(&self) {
        match self.workers.get(self.index) {
            Some(worker) => worker.notified().await,
            None => std::future::pending().await,
        }
    }
}
