//! Whether a worker is a batch thread, decided by how long it waits for its core.
//!
//! A woken batch thread (`SCHED_BATCH`) does not preempt the running thread: it waits until that thread blocks or has
//! used up its time slice. If all threads run briefly, this benefits all of them. Next to a thread that computes, it
//! costs milliseconds per request. The kernel reports how long and how often a thread has waited
//! (/proc/thread-self/schedstat), so a worker that waits for long becomes an ordinary thread, and tries again later.
//!
//! The mean wait shows only the worst of this: next to a thread that computes, one wait in ten is long, and with many
//! connections all waits are as long as that mean. So a busy worker also looks how late single timers wake it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_kernel::scheduling;

use super::lateness::Lateness;
use super::waits::{Waits, WaitsFile};

/// The mean wait beyond which batching costs more than it gains: threads that wait for each other run for some tens of
/// microseconds, one that computes has the core for two milliseconds or more.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// The least number of waits that are averaged.
const WAITS_MIN: u64 = 20;
/// The least number of ticks with exchanges over which they are averaged: 0.6 s. On busy cores, a neighbour that
/// computes only now and then starves a worker for most of one tick, in which the worker then has few waits.
const TICKS_MIN: u32 = 3;
/// In how many of the ticks of an average a timer must have been late (see [`Lateness`]).
const LATE_TICKS_MIN: u32 = 2;
/// The least number of exchanges in a tick that make a worker busy. With fewer, its timers would cost too much.
const BUSY_MIN: u64 = 40;
/// How long a worker is an ordinary thread before it tries again: the first time, and at most. A trial lasts one tick,
/// so it affects less than one request in a hundred.
const REST_MIN: Duration = Duration::from_secs(30);
const REST_MAX: Duration = Duration::from_secs(600);

/// A change of a worker's scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Normal,
    Batch,
}

/// The decision. Pure: no clock, no kernel.
#[derive(Debug)]
struct Judge {
    /// The counts at the start of the current average.
    since: Waits,
    /// The counts at the last check.
    last: Waits,
    /// Ticks with exchanges in the current average.
    ticks: u32,
    /// How many it needs.
    ticks_min: u32,
    /// How many of them had a late timer.
    late_ticks: u32,
    /// When an ordinary thread tries again; `None` while it is a batch thread.
    again_at: Option<Instant>,
    rest: Duration,
}

impl Judge {
    fn new(waits: Waits) -> Self {
        Self {
            since: waits,
            last: waits,
            ticks: 0,
            ticks_min: TICKS_MIN,
            late_ticks: 0,
            again_at: None,
            rest: REST_MIN,
        }
    }

    /// Ignores what was counted since the last check: an idle worker waits as well, but delays no request.
    fn pass_over(&mut self, waits: Waits) {
        self.since.waited_ns += waits.waited_ns.saturating_sub(self.last.waited_ns);
        self.since.count += waits.count.saturating_sub(self.last.count);
        self.last = waits;
    }

    /// `is_late`: whether a timer was late since the last check.
    fn judge(&mut self, waits: Waits, is_late: bool, now: Instant) -> Option<Change> {
        self.ticks += u32::from(waits != self.last);
        self.late_ticks += u32::from(is_late);
        self.last = waits;
        if let Some(again_at) = self.again_at {
            if now < again_at {
                return None;
            }
            self.again_at = None;
            self.begin(waits, 1);
            return Some(Change::Batch);
        }
        let count = waits.count.saturating_sub(self.since.count);
        if count < WAITS_MIN || self.ticks < self.ticks_min {
            return None;
        }
        let mean = waits.waited_since(self.since) / u32::try_from(count).unwrap_or(u32::MAX);
        let is_starved = mean >= WAIT_MAX || self.late_ticks >= LATE_TICKS_MIN.min(self.ticks_min);
        self.begin(waits, TICKS_MIN);
        if !is_starved {
            return None;
        }
        self.again_at = Some(now + self.rest);
        self.rest = (self.rest * 2).min(REST_MAX);
        Some(Change::Normal)
    }

    /// Begins an average.
    fn begin(&mut self, waits: Waits, ticks_min: u32) {
        (self.since, self.ticks, self.ticks_min, self.late_ticks) = (waits, 0, ticks_min, 0);
    }
}

/// The scheduling of a worker that may be a batch thread.
pub(crate) struct Pace {
    judge: RefCell<Judge>,
    waits: WaitsFile,
    /// The number of exchanges at the last check.
    exchanges: Cell<u64>,
    /// Whether the kernel has allowed every change so far.
    works: Cell<bool>,
    lateness: Lateness,
    metrics: Rc<WorkerRecorder>,
}

impl Pace {
    /// For the calling thread, which is a batch thread now; `None` if the kernel does not count waits.
    pub(super) fn begin(metrics: &Rc<WorkerRecorder>) -> Option<Self> {
        metrics.count(Event::BatchBegun);
        let waits = WaitsFile::of_this_thread()?;
        let judge = RefCell::new(Judge::new(waits.read()?));
        let (exchanges, works) = (Cell::new(metrics.exchanges()), Cell::new(true));
        Some(Self {
            judge,
            waits,
            exchanges,
            works,
            lateness: Lateness::default(),
            metrics: Rc::clone(metrics),
        })
    }

    /// Whether the worker is a batch thread now, as far as is known: not after the kernel has refused a change.
    pub(super) fn is_batch(&self) -> bool {
        self.works.get() && self.judge.borrow().again_at.is_none()
    }

    /// Looks how late the worker wakes while it is busy.
    pub(super) async fn watch(&self) {
        self.lateness.watch(&self.waits).await;
    }

    /// Checks the counts and changes the scheduling if needed. While one worker serves all connections (`gathers`), the
    /// application that is overloaded computes, and its queue hides what late timers cost.
    pub(super) fn tick(&self, gathers: bool) {
        let Some(waits) = self.waits.read().filter(|_| self.works.get()) else {
            return;
        };
        let exchanges = self.metrics.exchanges();
        let done = exchanges.saturating_sub(self.exchanges.replace(exchanges));
        if done == 0 && !self.metrics.has_tunnels() {
            self.judge.borrow_mut().pass_over(waits);
        }
        let is_late = self.lateness.take() && !gathers;
        let change = self.judge.borrow_mut().judge(waits, is_late, Instant::now());
        if let Some(change) = change {
            self.change(change);
        }
        if done >= BUSY_MIN && !gathers && self.is_batch() {
            self.lateness.look();
        }
    }

    fn change(&self, change: Change) {
        let batch = change == Change::Batch;
        if let Err(error) = scheduling::choose(batch) {
            self.works.set(false);
            tracing::warn!(%error, "cannot change a worker's scheduling; it stays as it is");
            return;
        }
        self.metrics.count(if batch { Event::BatchBegun } else { Event::BatchEnded });
        tracing::debug!(batch, "changed the worker's scheduling because of its waits for its core");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(count: u64, mean_us: u64, before: Waits) -> Waits {
        Waits { waited_ns: before.waited_ns + count * mean_us * 1000, count: before.count + count }
    }

    /// The decision after as many ticks as an average needs, each with `count` waits of `mean_us`.
    fn average(judge: &mut Judge, count: u64, mean_us: u64, now: Instant) -> Option<Change> {
        let decisions = (0..TICKS_MIN).map(|_| judge.judge(after(count, mean_us, judge.last), false, now));
        decisions.last().flatten()
    }

    #[test]
    fn waits_of_an_idle_worker_are_ignored() {
        let begun = Instant::now();
        let mut judge = Judge::new(Waits::default());
        judge.pass_over(after(1000, 5000, Waits::default()));
        assert_eq!(judge.judge(judge.last, false, begun), None);
        assert_eq!(average(&mut judge, WAITS_MIN / 4, 2000, begun), None);
        judge.pass_over(after(1000, 5000, judge.last));
        assert_eq!(judge.judge(judge.last, false, begun), None, "earlier counts are kept");
        assert_eq!(judge.judge(after(WAITS_MIN, 2000, judge.last), false, begun), Some(Change::Normal));
    }

    #[test]
    fn one_starved_tick_is_no_reason() {
        let begun = Instant::now();
        let mut judge = Judge::new(Waits::default());
        for mean_us in [3256, 50, 37] {
            let count = if mean_us > 1000 { 52 } else { 1300 };
            assert_eq!(judge.judge(after(count, mean_us, judge.last), false, begun), None);
        }
    }

    #[test]
    fn late_timers_in_two_of_three_ticks_suffice() {
        let begun = Instant::now();
        let judge = |late: [bool; 3]| {
            let mut judge = Judge::new(Waits::default());
            let judged = late.map(|is_late| judge.judge(after(1000, 80, judge.last), is_late, begun));
            assert_eq!(judged[..2], [None, None]);
            judged[2]
        };
        assert_eq!(judge([true, false, true]), Some(Change::Normal));
        assert_eq!(judge([false, true, false]), None, "a neighbour that computes only now and then");
        let mut judge = Judge::new(Waits::default());
        for is_late in [false, true, false, false, true, false] {
            assert_eq!(judge.judge(after(1000, 80, judge.last), is_late, begun), None);
        }
    }

    #[test]
    fn a_worker_with_long_waits_is_an_ordinary_thread_until_it_retries() {
        let begun = Instant::now();
        let mut judge = Judge::new(Waits::default());
        assert_eq!(average(&mut judge, 1000, 80, begun), None);
        assert_eq!(
            average(&mut judge, WAITS_MIN / 4, 2000, begun),
            None,
            "one neighbour may have caused that"
        );
        assert_eq!(judge.judge(after(WAITS_MIN, 2000, judge.last), false, begun), Some(Change::Normal));
        let later = after(1000, 10, judge.last);
        assert_eq!(judge.judge(later, false, begun + REST_MIN / 2), None);
        assert_eq!(judge.judge(later, false, begun + REST_MIN), Some(Change::Batch));
        let still = after(WAITS_MIN, 2000, later);
        assert_eq!(
            judge.judge(still, false, begun + REST_MIN),
            Some(Change::Normal),
            "a trial lasts one tick"
        );
        assert_eq!(judge.judge(still, false, begun + REST_MIN * 2), None, "the pause has doubled");
        assert_eq!(judge.judge(still, false, begun + REST_MIN * 3), Some(Change::Batch));
        assert_eq!(judge.judge(after(WAITS_MIN, 50, still), false, begun + REST_MIN * 4), None);
        assert_eq!(
            judge.judge(after(WAITS_MIN, 2000, judge.last), false, begun),
            None,
            "the trial has passed"
        );
    }
}
