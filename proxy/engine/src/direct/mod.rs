//! Direct return: the response of an application on this host goes straight to the client's socket while sluice sleeps.
//!
//! For each exchange over a joined connection, sluice writes the response's destination into the connection's slot
//! (`sluice_ebpf::slot`). The program on the application's socket sends the response there, or leaves the response or
//! its rest to sluice, which then copies as usual. Nothing wakes sluice at the end of a response: it checks when the
//! client's next request arrives, when another request needs what the exchange holds, and on the worker's tick. A head
//! that is sent separately from its body may be held in the slot until the body begins, so that both are sent together;
//! see [`hold`].

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

/// While up to this many exchanges of a worker wait for responses, small responses gain as well: each saves the worker a
/// wake-up. With more, one wake-up serves several responses, which saves less than the program's work for each costs.
/// Measured with 4 to 50 connections; see docs/guide/benchmarks.md.
const CALM_MAX: usize = 4;

/// One worker's part in direct return. Many fields: its settings, and its state beside them.
pub(crate) struct Direct {
    marker: RefCell<Marker>,
    body_bytes_min: u32,
    /// While up to this many exchanges wait for responses, small responses use it, too.
    calm_max: usize,
    /// Exchanges that wait for a response, or for the end of one that is returned directly. Those whose response is copied
    /// may go on for hours.
    waits: Cell<usize>,
    likely: Likely,
    body_bytes_max: u64,
    from_request: u64,
    adds_lines: bool,
    hold: Hold,
    /// Exchanges whose response may use direct return.
    entries: RefCell<Slab<Entry>>,
    /// When the last check for finished exchanges was made, in milliseconds.
    reaped_ms: Cell<u64>,
    workers: Arc<Vec<Notify>>,
    /// The index of this worker.
    index: usize,
}

/// What a worker needs for direct return; created on the control thread.
pub struct DirectConfig {
    pub(crate) marker: Marker,
    pub(crate) workers: Arc<Vec<Notify>>,
    pub(crate) index: usize,
    pub(crate) kernel: KernelAssists,
    /// Whether the program can add a line to a head.
    pub(crate) adds_lines: bool,
}

/// One exchange in the count of those that wait for a response; dropping it takes it out.
pub(crate) struct WaitCount<'a>(&'a Direct);

impl Drop for WaitCount<'_> {
    fn drop(&mut self) {
        self.0.waits.set(self.0.waits.get() - 1);
    }
}

struct Entry {
    lease: Arc<Lease>,
    cluster: Arc<Cluster>,
    waker: Option<Waker>,
    /// Whether its end is awaited.
    wanted: bool,
    /// Whether its head may be held.
    holds: bool,
    /// The state of its slot one turn ago, if its head may be held: see `hold`.
    seen: Option<(Phase, u64)>,
}

impl Entry {
    /// Takes the response, or its rest, over from the program. Returns true if the whole response is already on its
    /// way.
    fn call_in(&mut self) -> bool {
        self.wanted = true;
        let phase = self.lease.slot().take_over();
        // A response left to sluice arrives by itself, except for a held head.
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
        let DirectConfig { marker, workers, index, kernel, adds_lines } = seat;
        Self {
            marker: RefCell::new(marker),
            body_bytes_min: kernel.direct_return_bytes_min,
            waits: Cell::new(0),
            calm_max: kernel.direct_return_calm_max.map_or(CALM_MAX, |most| most as usize),
            likely: Likely::default(),
            body_bytes_max: kernel.direct_return_bytes_max,
            from_request: kernel.direct_return_from_request,
            adds_lines,
            hold: Hold::new(kernel.direct_return_hold_ms, kernel.direct_return_hold_after),
            entries: RefCell::default(),
            reaped_ms: Cell::default(),
            workers,
            index,
        }
    }

    /// Whether a response can be returned directly if sluice adds a line to its head.
    pub(crate) fn adds_lines(&self) -> bool {
        self.adds_lines
    }

    /// See [`Marker::add_client`].
    fn add_client(&self, socket: BorrowedFd<'_>) -> Result<Option<ClientSocket>, ProgramError> {
        self.marker.borrow_mut().add_client(socket)
    }

    /// The entry that records whether responses for this path of a cluster can use direct return.
    pub(crate) fn place(&self, cluster: &Arc<Cluster>, path: &[u8]) -> PathIndex {
        self.likely.place(Arc::as_ptr(cluster) as usize, path)
    }

    /// Whether the next response should use direct return. Call it once per request.
    pub(crate) fn is_likely(&self, place: PathIndex) -> bool {
        self.likely.may(place)
    }

    fn remove_client(&self, cookie: u64) {
        self.marker.borrow_mut().remove_client(cookie);
    }

    /// Wakes the exchanges whose responses have been sent. Returns true if there were any: what they hold is free once
    /// their tasks have run.
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

    /// As [`Self::reap`], but at most once per millisecond: there may be many exchanges, and balancing by load needs no
    /// more precision.
    pub(crate) fn reap_at_times(&self) -> bool {
        let now_ms = clock::now_ms();
        self.reaped_ms.replace(now_ms) != now_ms && self.reap()
    }

    /// Takes over the responses of one cluster's endpoints, or of all: their ends are awaited. Returns true as
    /// [`Direct::reap`] does.
    pub(crate) fn call_in(&self, cluster: Option<&Arc<Cluster>>) -> bool {
        let mut any = false;
        for (_, entry) in &mut *self.entries.borrow_mut() {
            if cluster.is_none_or(|cluster| Arc::ptr_eq(cluster, &entry.cluster)) {
                any |= entry.call_in();
            }
        }
        any
    }

    /// The same for all clusters with queued requests.
    pub(crate) fn call_in_waited_for(&self) {
        for (_, entry) in &mut *self.entries.borrow_mut() {
            if entry.cluster.is_waited_for() {
                entry.call_in();
            }
        }
    }

    /// The smallest body that may use direct return now, for an exchange that is not counted yet.
    fn body_bytes_min(&self) -> u32 {
        if self.waits.get() < self.calm_max {
            return 0;
        }
        // Responses that have been sent are not waited for any more, and their clients may rest.
        self.reap_at_times();
        self.body_bytes_min
    }

    /// Counts an exchange among those that wait for a response.
    pub(crate) fn count_wait(&self) -> WaitCount<'_> {
        self.waits.set(self.waits.get() + 1);
        WaitCount(self)
    }

    /// Makes the other workers take over their responses.
    pub(crate) fn call_others(&self) {
        for (index, worker) in self.workers.iter().enumerate() {
            if index != self.index {
                worker.notify_one();
            }
        }
    }

    /// Resolves when another worker requests it.
    pub(crate) async fn called(&self) {
        match self.workers.get(self.index) {
            Some(worker) => worker.notified().await,
            None => std::future::pending().await,
        }
    }
}
