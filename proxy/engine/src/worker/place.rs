//! Whether a worker stays on a core of its own.
//!
//! The kernel puts a woken thread near the thread that woke it. If the applications and the workers belong to different
//! scheduling groups (setsid(2), units of systemd, containers), it may keep all of them on one core for 50 to 150 ms
//! while another core is idle; batch threads show it most, because each waits for its waker. So while many connections
//! keep all workers busy, each stays on its own core. With few connections, one core for everybody saves wake-ups and
//! is faster, so the kernel chooses again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_kernel::scheduling::Cores;

/// The least number of open connections of a worker that stays.
const CONNECTIONS_MIN: usize = 8;
/// The least number of exchanges in a tick (0.2 s) of a worker that stays.
const EXCHANGES_MIN: u64 = 200;
/// How many ticks with less than half of that end the stay: 1 s. A pause of the load is no reason to roam.
const QUIET_TICKS_MAX: u32 = 5;

/// What a worker did in one tick.
#[derive(Clone, Copy, Debug)]
struct Load {
    exchanges: u64,
    connections: usize,
    /// Whether the worker is a batch thread. An ordinary thread waited for long on a busy core, and must be free to
    /// leave it.
    is_batch: bool,
}

/// The decision. Pure: no clock, no kernel.
#[derive(Debug, Default)]
struct Judge {
    stays: bool,
    /// The quiet ticks since the last busy one.
    quiet: u32,
}

impl Judge {
    /// Whether the worker is to stay on its core; `None` if nothing changes.
    fn judge(&mut self, load: Load) -> Option<bool> {
        let least = if self.stays { 2 } else { 1 };
        let is_busy =
            load.exchanges >= EXCHANGES_MIN / least && load.connections >= CONNECTIONS_MIN / least as usize;
        self.quiet = if is_busy { 0 } else { (self.quiet + 1).min(QUIET_TICKS_MAX) };
        let stays = load.is_batch && (is_busy || self.stays && self.quiet < QUIET_TICKS_MAX);
        let changes = stays != self.stays;
        self.stays = stays;
        changes.then_some(stays)
    }
}

/// A worker's own core, and the cores it had.
pub(crate) struct Place {
    own: Cores,
    all: Cores,
    judge: RefCell<Judge>,
    /// The number of exchanges at the last check.
    exchanges: Cell<u64>,
    /// Whether the kernel has allowed every change, and nobody else has changed the cores.
    works: Cell<bool>,
    metrics: Rc<WorkerRecorder>,
}

impl Place {
    /// For the calling thread, the worker of that number of so many. `None` unless there are several and each can have
    /// a core of its own: with fewer workers, the other cores belong to the application.
    pub(super) fn of(worker: usize, workers: usize, metrics: &Rc<WorkerRecorder>) -> Option<Self> {
        let all = Cores::of_this_thread().ok()?;
        let numbers = all.numbers();
        if workers < 2 || numbers.len() != workers {
            return None;
        }
        let own = Cores::only(*numbers.get(worker)?).ok()?;
        let exchanges = Cell::new(metrics.exchanges());
        Some(Self {
            own,
            all,
            judge: RefCell::default(),
            exchanges,
            works: Cell::new(true),
            metrics: Rc::clone(metrics),
        })
    }

    /// Looks at the load since the last check and stays or leaves if needed. Call it on the worker's thread.
    pub(super) fn tick(&self, connections: usize, is_batch: bool) {
        if !self.works.get() {
            return;
        }
        let before = self.exchanges.replace(self.metrics.exchanges());
        let load = Load { exchanges: self.exchanges.get().saturating_sub(before), connections, is_batch };
        let Some(stays) = self.judge.borrow_mut().judge(load) else { return };
        let (had, wanted) = if stays { (&self.all, &self.own) } else { (&self.own, &self.all) };
        // Cores that somebody else has given this thread (taskset, a changed cpuset) are theirs to choose.
        let changed = if Cores::of_this_thread().is_ok_and(|cores| cores != *had) {
            tracing::info!(
                "the cores of a worker were changed from outside; it no longer chooses one itself"
            );
            false
        } else if let Err(error) = wanted.stay() {
            let hint = "allow sched_setaffinity, or write worker_placement: kernel";
            tracing::warn!(%error, hint, "cannot change the cores of a worker; it keeps those that it has");
            false
        } else {
            true
        };
        self.works.set(changed);
        if changed || !stays {
            self.metrics.count(if stays { Event::PlaceBegun } else { Event::PlaceEnded });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Load = Load { exchanges: EXCHANGES_MIN, connections: CONNECTIONS_MIN, is_batch: true };
    const QUIET: Load = Load { exchanges: EXCHANGES_MIN / 2 - 1, ..BUSY };

    #[test]
    fn busy_worker_with_many_connections_stays() {
        let mut judge = Judge::default();
        assert_eq!(judge.judge(Load { exchanges: EXCHANGES_MIN - 1, ..BUSY }), None);
        assert_eq!(judge.judge(Load { connections: CONNECTIONS_MIN - 1, ..BUSY }), None);
        assert_eq!(judge.judge(Load { is_batch: false, ..BUSY }), None);
        assert_eq!(judge.judge(BUSY), Some(true));
        assert_eq!(judge.judge(BUSY), None);
    }

    #[test]
    fn worker_that_stays_leaves_after_a_second_of_less_than_half() {
        let mut judge = Judge::default();
        judge.judge(BUSY);
        for _ in 0..3 {
            for _ in 1..QUIET_TICKS_MAX {
                assert_eq!(judge.judge(QUIET), None, "a pause");
            }
            let half =
                Load { exchanges: EXCHANGES_MIN / 2, connections: CONNECTIONS_MIN / 2, is_batch: true };
            assert_eq!(judge.judge(half), None);
        }
        for _ in 1..QUIET_TICKS_MAX {
            assert_eq!(judge.judge(Load { connections: 3, ..BUSY }), None);
        }
        assert_eq!(judge.judge(QUIET), Some(false));
        assert_eq!(judge.judge(QUIET), None);
        assert_eq!(judge.judge(BUSY), Some(true), "one busy tick suffices");
    }

    #[test]
    fn worker_that_waited_for_its_core_leaves_at_once() {
        let mut judge = Judge::default();
        judge.judge(BUSY);
        assert_eq!(judge.judge(Load { is_batch: false, ..BUSY }), Some(false));
        assert_eq!(judge.judge(Load { is_batch: false, ..BUSY }), None);
        assert_eq!(judge.judge(BUSY), Some(true));
    }
}
