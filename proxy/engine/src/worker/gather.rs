//! Whether one worker serves all connections.
//!
//! If most requests wait in the queue of a cluster, the application is the bottleneck, and one worker suffices. It takes
//! less processor time than several: it finds more to do each time it wakes, and the application, whose threads often
//! hand a lock to each other (Ruby, Python), is woken from one core only.

use std::cell::{Cell, RefCell};
use std::io;
use std::time::{Duration, Instant};

use sluice_core::metrics::WorkerRecorder;
use sluice_kernel::scheduling;

/// The least number of exchanges of all workers in a tick (0.2 s).
const EXCHANGES_MIN: u64 = 40;
/// The share of a core that the process may need to begin, and to go on. One worker needs less than several did.
const SHARE_BEGIN_MAX: f64 = 0.7;
const SHARE_MAX: f64 = 0.9;
/// How many ticks with fewer exchanges end it: 1 s.
const QUIET_TICKS_MAX: u32 = 5;
/// How many ticks without a queue end it: 30 s. The queue may have ended because one worker serves.
const UNQUEUED_TICKS_MAX: u32 = 150;
/// How many ticks it is not tried again after one worker was too few: 30 s at first, then twice as long each time, up
/// to ten minutes.
const PAUSE_TICKS: (u32, u32) = (150, 3000);

/// A tick that comes early, after a late one, says nothing: the thread ran throughout.
const SPAN_MIN: Duration = Duration::from_millis(100);

/// What the first worker did in one tick.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// How many workers the process has.
    workers: u32,
    exchanges: u64,
    /// How many of them waited in the queue of a cluster.
    queued: u64,
    /// The time that all threads of the process ran, as a part of the tick.
    share: f64,
    /// Whether the worker is a batch thread. An ordinary thread waited for long on a busy core.
    is_batch: bool,
}

/// The decision, made by the first worker for all. Pure: no clock, no kernel.
#[derive(Debug, Default)]
struct Judge {
    gathers: bool,
    /// The ticks since the last one with a queue.
    unqueued: u32,
    /// The ticks since the last one with enough exchanges.
    quiet: u32,
    /// For how many more ticks it is not tried, and how many there were in all.
    pause: (u32, u32),
}

impl Judge {
    fn judge(&mut self, load: Load) {
        self.pause.0 = self.pause.0.saturating_sub(1);
        if !self.gathers {
            self.gathers = self.pause.0 == 0
                && load.is_batch
                && load.share < SHARE_BEGIN_MAX
                && load.exchanges * u64::from(load.workers) >= EXCHANGES_MIN
                && is_queued(load);
            (self.unqueued, self.quiet) = (0, 0);
            return;
        }
        self.unqueued = if is_queued(load) { 0 } else { self.unqueued + 1 };
        // Those of the others are not known; they may still have some connections.
        let is_busy = load.exchanges * u64::from(load.workers) >= EXCHANGES_MIN / 2;
        self.quiet = if is_busy { 0 } else { self.quiet + 1 };
        let is_full = load.share >= SHARE_MAX || !load.is_batch;
        if is_full {
            let ticks = (self.pause.1 * 2).clamp(PAUSE_TICKS.0, PAUSE_TICKS.1);
            self.pause = (ticks, ticks);
        }
        self.gathers = !is_full && self.unqueued < UNQUEUED_TICKS_MAX && self.quiet < QUIET_TICKS_MAX;
    }
}

/// What the first worker has counted for it.
pub(crate) struct Gather {
    workers: u32,
    judge: RefCell<Judge>,
    /// Exchanges since the last tick that waited in a queue.
    queued: Cell<u64>,
    last: Cell<Count>,
}

/// The counts at a tick.
#[derive(Clone, Copy)]
struct Count {
    at: Instant,
    /// How long the threads of the process ran.
    ran: Duration,
    exchanges: u64,
}

impl Count {
    fn now(metrics: &WorkerRecorder) -> io::Result<Self> {
        Ok(Self { at: Instant::now(), ran: scheduling::time_of_process()?, exchanges: metrics.exchanges() })
    }
}

impl Gather {
    /// For the first of so many workers. `None` if the kernel does not say how long the process ran.
    pub(super) fn of(workers: usize, metrics: &WorkerRecorder) -> Option<Self> {
        let last = Cell::new(Count::now(metrics).ok()?);
        let workers = u32::try_from(workers).ok()?;
        Some(Self { workers, judge: RefCell::default(), queued: Cell::new(0), last })
    }

    /// Counts an exchange that waited in the queue of a cluster.
    pub(super) fn count_queued(&self) {
        self.queued.set(self.queued.get() + 1);
    }

    /// Whether this worker is to serve all connections, as far as the last tick tells.
    pub(super) fn is_on(&self) -> bool {
        self.judge.borrow().gathers
    }

    /// Looks at the load since the last check.
    pub(super) fn tick(&self, metrics: &WorkerRecorder, is_batch: bool) {
        let Ok(now) = Count::now(metrics) else { return };
        let span = now.at.duration_since(self.last.get().at);
        if span < SPAN_MIN {
            return;
        }
        let last = self.last.replace(now);
        self.judge.borrow_mut().judge(Load {
            workers: self.workers,
            exchanges: now.exchanges.saturating_sub(last.exchanges),
            queued: self.queued.take(),
            share: now.ran.saturating_sub(last.ran).as_secs_f64() / span.as_secs_f64(),
            is_batch,
        });
    }
}

fn is_queued(load: Load) -> bool {
    load.queued > 0 && load.queued >= load.exchanges / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUED: Load = Load { workers: 2, exchanges: 20, queued: 10, share: 0.5, is_batch: true };

    fn gathering() -> Judge {
        let mut judge = Judge::default();
        judge.judge(QUEUED);
        assert!(judge.gathers);
        judge
    }

    #[test]
    fn begins_if_most_requests_are_queued_and_one_worker_suffices() {
        gathering();
        for load in [
            Load { exchanges: 19, ..QUEUED },
            Load { queued: 9, ..QUEUED },
            Load { share: SHARE_BEGIN_MAX, ..QUEUED },
            Load { is_batch: false, ..QUEUED },
        ] {
            let mut judge = Judge::default();
            judge.judge(load);
            assert!(!judge.gathers, "{load:?}");
        }
    }

    #[test]
    fn ends_a_while_after_the_queue_or_the_load() {
        let without = Load { queued: 0, ..QUEUED };
        let few = Load { exchanges: 9, ..without };
        for (load, ticks) in [(without, UNQUEUED_TICKS_MAX), (few, QUIET_TICKS_MAX)] {
            let mut judge = gathering();
            for _ in 1..ticks {
                judge.judge(load);
                assert!(judge.gathers, "{load:?}");
            }
            judge.judge(load);
            assert!(!judge.gathers, "{load:?}");
            judge.judge(QUEUED);
            assert!(judge.gathers, "it may begin again at once");
        }
    }

    #[test]
    fn ends_at_once_if_one_worker_is_too_few_and_tries_again_later_and_later() {
        let full = Load { share: SHARE_MAX, ..QUEUED };
        let starved = Load { is_batch: false, ..QUEUED };
        let mut judge = gathering();
        for (load, ticks) in [(full, PAUSE_TICKS.0), (starved, PAUSE_TICKS.0 * 2), (full, PAUSE_TICKS.0 * 4)]
        {
            judge.judge(load);
            for _ in 1..ticks {
                assert!(!judge.gathers);
                judge.judge(QUEUED);
            }
            judge.judge(QUEUED);
            assert!(judge.gathers);
        }
    }
}
