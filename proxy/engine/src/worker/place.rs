//! On which cores a worker runs.
//!
//! The kernel puts a woken thread near the thread that woke it. If the applications and the workers belong to different
//! scheduling groups (setsid(2), units of systemd, containers), it may keep all of them on one core for 50 to 150 ms
//! while another core is idle; batch threads show it most, because each waits for its waker. So while many connections
//! keep all workers busy, each stays on its own core. With few connections, one core for everybody saves wake-ups and
//! is faster, so the kernel chooses again. It also chooses while one worker serves all connections (see `gather`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_kernel::scheduling::Cores;

/// The least number of open connections of a worker that stays on a core of its own.
const CONNECTIONS_MIN: u64 = 8;
/// The least number of its exchanges in a tick (0.2 s).
const EXCHANGES_MIN: u64 = 200;
/// How many ticks without a reason to stay end the stay: 1 s. A pause of the load is no reason to roam.
const QUIET_TICKS_MAX: u32 = 5;

/// What a worker did in one tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) exchanges: u64,
    pub(super) connections: usize,
    /// Whether the worker may stay. An ordinary thread waited for long on a busy core, and must be free to leave it.
    pub(super) may_stay: bool,
}

/// The decision. Pure: no clock, no kernel.
#[derive(Debug, Default)]
struct Judge {
    /// Whether the worker stays on a core of its own.
    stays: bool,
    /// The ticks since the last one with a reason to stay.
    quiet: u32,
}

impl Judge {
    /// Whether the worker is to stay from now on; `None` if nothing changes.
    fn judge(&mut self, load: Load) -> Option<bool> {
        let wanted = load.may_stay
            && self.suffices(load.exchanges, EXCHANGES_MIN)
            && self.suffices(load.connections as u64, CONNECTIONS_MIN);
        self.quiet = if wanted == self.stays { 0 } else { self.quiet + 1 };
        let is_due = !self.stays || !load.may_stay || self.quiet >= QUIET_TICKS_MAX;
        if self.quiet == 0 || !is_due {
            return None;
        }
        (self.stays, self.quiet) = (wanted, 0);
        Some(wanted)
    }

    /// Whether `found` is a reason to stay. To go on, half of what it takes to begin suffices.
    fn suffices(&self, found: u64, least: u64) -> bool {
        found >= if self.stays { least / 2 } else { least }
    }
}

/// The cores of a worker, which may stay on its own.
pub(crate) struct Place {
    own: Cores,
    all: Cores,
    judge: RefCell<Judge>,
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
        let metrics = Rc::clone(metrics);
        Some(Self { own, all, judge: RefCell::default(), works: Cell::new(true), metrics })
    }

    /// Looks at the load since the last check and moves if needed. Call it on the worker's thread.
    pub(super) fn tick(&self, load: Load) {
        if !self.works.get() {
            return;
        }
        if let Some(stays) = self.judge.borrow_mut().judge(load) {
            self.works.set(self.change(stays));
        }
    }

    fn cores(&self, stays: bool) -> Cores {
        if stays { self.own } else { self.all }
    }

    /// Whether that worked.
    fn change(&self, stays: bool) -> bool {
        // Cores that somebody else has given this thread (taskset, a changed cpuset) are theirs to choose.
        let changed = if Cores::of_this_thread().is_ok_and(|cores| cores != self.cores(!stays)) {
            tracing::info!(
                "the cores of a worker were changed from outside; it no longer chooses one itself"
            );
            false
        } else if let Err(error) = self.cores(stays).stay() {
            let hint = "allow sched_setaffinity, or write worker_placement: kernel";
            tracing::warn!(%error, hint, "cannot change the cores of a worker; it keeps those that it has");
            false
        } else {
            true
        };
        match stays {
            true if changed => self.metrics.count(Event::PlaceBegun),
            true => {}
            false => self.metrics.count(Event::PlaceEnded),
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Load =
        Load { exchanges: EXCHANGES_MIN, connections: CONNECTIONS_MIN as usize, may_stay: true };
    const QUIET: Load = Load { exchanges: EXCHANGES_MIN / 2 - 1, ..BUSY };

    #[test]
    fn busy_worker_with_many_connections_stays() {
        let mut judge = Judge::default();
        assert_eq!(judge.judge(Load { exchanges: EXCHANGES_MIN - 1, ..BUSY }), None);
        assert_eq!(judge.judge(Load { connections: BUSY.connections - 1, ..BUSY }), None);
        assert_eq!(judge.judge(Load { may_stay: false, ..BUSY }), None);
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
            let half = Load { exchanges: EXCHANGES_MIN / 2, connections: BUSY.connections / 2, ..BUSY };
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
    fn worker_that_may_not_stay_leaves_at_once() {
        let mut judge = Judge::default();
        assert_eq!(judge.judge(BUSY), Some(true));
        assert_eq!(judge.judge(Load { may_stay: false, ..BUSY }), Some(false));
        assert_eq!(judge.judge(Load { may_stay: false, ..BUSY }), None);
        assert_eq!(judge.judge(BUSY), Some(true));
    }
}
