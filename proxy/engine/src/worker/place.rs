//! On which cores a worker runs.
//!
//! The kernel puts a woken thread near the thread that woke it. If the applications and the workers belong to different
//! scheduling groups (setsid(2), units of systemd, containers), it may keep all of them on one core for 50 to 150 ms
//! while another core is idle; batch threads show it most, because each waits for its waker. So while many connections
//! keep all workers busy, each stays on its own core. With few connections, one core for everybody saves wake-ups and
//! is faster, so the kernel chooses again.
//!
//! If requests are queued and yet the cores have idle time, the application is held up by something else, often by a lock
//! that lets one thread run at a time (Ruby, Python). Its threads then hand that lock to each other most cheaply on one
//! core, and lose most of their time if they are woken from several. So the workers share one core meanwhile, if the
//! process needs less than half of it. Without idle time the application needs all cores, and the workers share none.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_kernel::scheduling::{self, Cores};

use super::idle::IdleShare;
use super::meeting::MeetingSeat;

/// The least number of open connections of a worker that stays on a core of its own.
const CONNECTIONS_MIN: u64 = 8;
/// The least number of exchanges in a tick (0.2 s) of a worker that stays on a core of its own, and of all workers if
/// they share one.
const EXCHANGES_MIN: u64 = 200;
/// How many ticks without a reason to stay end the stay: 1 s. A pause of the load is no reason to roam.
const QUIET_TICKS_MAX: u32 = 5;
/// The same for busy workers that share a core: 30 s. The queue may have ended because they do.
const SHARED_TICKS_MAX: u32 = 150;
/// How many ticks they do not try again after they had to stop for want of time: 30 s at first, then twice as long each
/// time, up to ten minutes.
const REST_TICKS: (u32, u32) = (150, 3000);
/// A tick that comes early, after a late one, says nothing: the thread ran throughout.
const SPAN_MIN: Duration = Duration::from_millis(100);
/// The share of a core that the process may need to begin to share one, and to go on.
const SHARED_BEGIN_MAX: f64 = 0.5;
const SHARED_MAX: f64 = 0.8;

/// The idle share of all cores from which on they share one, and below which they stop.
const IDLE_MIN: f64 = 0.2;
const IDLE_END: f64 = 0.05;

/// Where a worker runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Seat {
    /// Where the kernel puts it.
    #[default]
    Any,
    /// On its own core.
    Own,
    /// On the core that all workers share.
    Shared,
}

/// What a worker did in one tick.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// How many workers the process has.
    workers: u32,
    exchanges: u64,
    /// How many of them waited in the queue of a cluster.
    queued: u64,
    connections: usize,
    /// The time that all threads of the process ran, as a part of the tick.
    share: f64,
    /// The idle share of the cores, if it matters and is known.
    idle: Option<f64>,
    /// Whether the worker is a batch thread. An ordinary thread waited for long on a busy core, and must be free to
    /// leave it.
    is_batch: bool,
}

/// The decision. Pure: no clock, no kernel.
#[derive(Debug, Default)]
struct Judge {
    seat: Seat,
    /// The ticks since the last one with a reason for the seat.
    quiet: u32,
    /// The ticks since the workers were busy together.
    calm: u32,
    /// For how many more ticks the workers do not share a core, and how many there are in all.
    rest: (u32, u32),
}

impl Judge {
    /// Where the worker is to run from now on; `None` if nothing changes.
    fn judge(&mut self, load: Load) -> Option<Seat> {
        self.rest.0 = self.rest.0.saturating_sub(1);
        let wanted = self.wanted(load);
        self.quiet = if wanted == self.seat { 0 } else { self.quiet + 1 };
        self.calm = if self.is_busy_together(load) { 0 } else { self.calm.saturating_add(1) };
        let lacks_room = self.seat == Seat::Shared && !self.has_room(load);
        let is_due = match self.seat {
            Seat::Any => true,
            Seat::Own => wanted == Seat::Shared || self.quiet >= QUIET_TICKS_MAX,
            Seat::Shared => lacks_room || self.calm >= QUIET_TICKS_MAX || self.quiet >= SHARED_TICKS_MAX,
        };
        if self.quiet == 0 || load.is_batch && !is_due {
            return None;
        }
        if lacks_room {
            let ticks = (self.rest.1 * 2).clamp(REST_TICKS.0, REST_TICKS.1);
            self.rest = (ticks, ticks);
        }
        (self.seat, self.quiet) = (wanted, 0);
        Some(wanted)
    }

    fn wanted(&self, load: Load) -> Seat {
        if !load.is_batch {
            Seat::Any
        } else if self.rest.0 == 0
            && load.queued > 0
            && self.is_busy_together(load)
            && self.suffices(load.queued, load.exchanges / 2, Seat::Shared)
            && self.has_room(load)
        {
            Seat::Shared
        } else if self.suffices(load.exchanges, EXCHANGES_MIN, Seat::Own)
            && self.suffices(load.connections as u64, CONNECTIONS_MIN, Seat::Own)
        {
            Seat::Own
        } else {
            Seat::Any
        }
    }

    fn is_busy_together(&self, load: Load) -> bool {
        self.suffices(load.exchanges * u64::from(load.workers), EXCHANGES_MIN, Seat::Shared)
    }

    /// Whether `found` is a reason for a seat. To keep it, half of what it takes to get it suffices.
    fn suffices(&self, found: u64, least: u64, seat: Seat) -> bool {
        found >= if self.seat == seat { least / 2 } else { least }
    }

    /// Whether one core has room for all workers, and the application does not need it.
    fn has_room(&self, load: Load) -> bool {
        match self.seat {
            Seat::Shared => load.share < SHARED_MAX && load.idle.is_none_or(|idle| idle >= IDLE_END),
            _ => load.share < SHARED_BEGIN_MAX && load.idle.is_some_and(|idle| idle >= IDLE_MIN),
        }
    }
}

/// A worker's cores, and what it did since the last tick.
pub(crate) struct Place {
    own: Cores,
    /// The core to share if none is known to be idle: not the first one, which has the most interrupts.
    last_core: usize,
    /// Its part in a core that the workers share.
    meeting: RefCell<Option<MeetingSeat>>,
    all: Cores,
    workers: u32,
    idle: IdleShare,
    judge: RefCell<Judge>,
    /// Exchanges since the last tick that waited in a queue.
    queued: Cell<u64>,
    last: Cell<Count>,
    /// Whether the kernel has allowed every change, and nobody else has changed the cores.
    works: Cell<bool>,
    metrics: Rc<WorkerRecorder>,
}

/// The counts at a tick.
#[derive(Clone, Copy)]
struct Count {
    at: Instant,
    ran: Duration,
    exchanges: u64,
}

impl Count {
    fn now(metrics: &WorkerRecorder) -> io::Result<Self> {
        Ok(Self { at: Instant::now(), ran: scheduling::time_of_process()?, exchanges: metrics.exchanges() })
    }
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
        Some(Self {
            own: Cores::only(*numbers.get(worker)?).ok()?,
            last_core: *numbers.last()?,
            meeting: RefCell::default(),
            idle: IdleShare::of(all),
            all,
            workers: u32::try_from(workers).ok()?,
            judge: RefCell::default(),
            queued: Cell::new(0),
            last: Cell::new(Count::now(metrics).ok()?),
            works: Cell::new(true),
            metrics: Rc::clone(metrics),
        })
    }

    /// Counts an exchange that waited in the queue of a cluster.
    pub(super) fn count_queued(&self) {
        self.queued.set(self.queued.get() + 1);
    }

    /// Looks at the load since the last check and moves if needed. Call it on the worker's thread.
    pub(super) fn tick(&self, connections: usize, is_batch: bool) {
        let Ok(now) = Count::now(&self.metrics) else { return };
        let span = now.at.duration_since(self.last.get().at);
        if !self.works.get() || span < SPAN_MIN {
            return;
        }
        let (queued, last) = (self.queued.take(), self.last.replace(now));
        let share = now.ran.saturating_sub(last.ran).as_secs_f64() / span.as_secs_f64();
        let exchanges = now.exchanges.saturating_sub(last.exchanges);
        let before = self.judge.borrow().seat;
        // Asked only while it matters, because the kernel's answer is long.
        let idle = if queued > 0 || before == Seat::Shared { self.idle.get(now.at) } else { None };
        let workers = self.workers;
        let load = Load { workers, exchanges, queued, connections, share, idle, is_batch };
        if let Some(seat) = self.judge.borrow_mut().judge(load) {
            self.works.set(self.change(before, seat));
        }
    }

    fn cores(&self, seat: Seat) -> Cores {
        match seat {
            Seat::Any => self.all,
            Seat::Own => self.own,
            Seat::Shared => {
                let core = self.meeting.borrow().as_ref().map_or(self.last_core, |seat| seat.core);
                Cores::only(core).unwrap_or(self.all)
            }
        }
    }

    /// The application may be kept on a core: the workers share the one that it leaves idle.
    fn meet(&self) {
        let core = self.idle.idlest().unwrap_or(self.last_core);
        self.meeting.replace(Some(MeetingSeat::take(core)));
    }

    fn sit(&self, seat: Seat) -> io::Result<()> {
        match seat {
            Seat::Shared => self.meet(),
            Seat::Any | Seat::Own => drop(self.meeting.take()),
        }
        self.cores(seat).stay()
    }

    /// Whether that worked.
    fn change(&self, before: Seat, seat: Seat) -> bool {
        // Cores that somebody else has given this thread (taskset, a changed cpuset) are theirs to choose.
        let changed = if Cores::of_this_thread().is_ok_and(|cores| cores != self.cores(before)) {
            tracing::info!(
                "the cores of a worker were changed from outside; it no longer chooses one itself"
            );
            false
        } else if let Err(error) = self.sit(seat) {
            let hint = "allow sched_setaffinity, or write worker_placement: kernel";
            tracing::warn!(%error, hint, "cannot change the cores of a worker; it keeps those that it has");
            false
        } else {
            true
        };
        if !changed {
            // It moves no more, and the others need not follow it.
            drop(self.meeting.take());
        }
        let ended = match before {
            Seat::Any => None,
            Seat::Own => Some(Event::PlaceEnded),
            Seat::Shared => Some(Event::SharedPlaceEnded),
        };
        let begun = match seat {
            Seat::Any => None,
            Seat::Own => Some(Event::PlaceBegun),
            Seat::Shared => Some(Event::SharedPlaceBegun),
        };
        ended.into_iter().chain(begun.filter(|_| changed)).for_each(|event| self.metrics.count(event));
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUSY: Load = Load {
        workers: 2,
        exchanges: EXCHANGES_MIN,
        queued: 0,
        connections: CONNECTIONS_MIN as usize,
        share: 0.9,
        idle: None,
        is_batch: true,
    };
    const QUIET: Load = Load { exchanges: EXCHANGES_MIN / 2 - 1, ..BUSY };
    const QUEUED: Load =
        Load { exchanges: 100, queued: 50, connections: 1, share: 0.4, idle: Some(IDLE_MIN), ..BUSY };

    #[test]
    fn busy_worker_with_many_connections_stays() {
        let mut judge = Judge::default();
        assert_eq!(judge.judge(Load { exchanges: EXCHANGES_MIN - 1, ..BUSY }), None);
        assert_eq!(judge.judge(Load { connections: BUSY.connections - 1, ..BUSY }), None);
        assert_eq!(judge.judge(Load { is_batch: false, ..BUSY }), None);
        assert_eq!(judge.judge(BUSY), Some(Seat::Own));
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
        assert_eq!(judge.judge(QUIET), Some(Seat::Any));
        assert_eq!(judge.judge(QUIET), None);
        assert_eq!(judge.judge(BUSY), Some(Seat::Own), "one busy tick suffices");
    }

    #[test]
    fn worker_that_waited_for_its_core_leaves_at_once() {
        for (load, seat) in [(BUSY, Seat::Own), (QUEUED, Seat::Shared)] {
            let mut judge = Judge::default();
            assert_eq!(judge.judge(load), Some(seat));
            assert_eq!(judge.judge(Load { is_batch: false, ..load }), Some(Seat::Any));
            assert_eq!(judge.judge(Load { is_batch: false, ..load }), None);
            assert_eq!(judge.judge(load), Some(seat));
        }
    }

    #[test]
    fn workers_share_a_core_if_requests_are_queued_and_cores_are_idle() {
        for few in [
            Load { exchanges: EXCHANGES_MIN / 2 - 1, ..QUEUED },
            Load { queued: QUEUED.queued - 1, ..QUEUED },
            Load { share: SHARED_BEGIN_MAX, ..QUEUED },
            Load { idle: Some(IDLE_MIN - 0.01), ..QUEUED },
            Load { idle: None, ..QUEUED },
        ] {
            assert_eq!(Judge::default().judge(few), None, "{few:?}");
        }
        let mut judge = Judge::default();
        judge.judge(BUSY);
        let many = Load { exchanges: 1000, queued: 500, connections: 100, ..QUEUED };
        assert_eq!(judge.judge(many), Some(Seat::Shared), "a core of its own is no reason against it");
        let half = Load { queued: many.queued / 2, share: 0.79, idle: Some(IDLE_END), ..many };
        assert_eq!(judge.judge(half), None);
        assert_eq!(judge.judge(Load { idle: None, ..many }), None, "not known for a moment");
    }

    #[test]
    fn workers_that_lacked_room_try_again_later_and_later() {
        let mut judge = Judge::default();
        let full = Load { share: SHARED_MAX, ..QUEUED };
        for ticks in [REST_TICKS.0, REST_TICKS.0 * 2] {
            assert_eq!(judge.judge(QUEUED), Some(Seat::Shared));
            assert_eq!(judge.judge(full), Some(Seat::Any));
            for _ in 1..ticks {
                assert_eq!(judge.judge(QUEUED), None);
            }
        }
    }

    #[test]
    fn workers_stop_sharing_later_without_a_queue_and_at_once_for_want_of_room() {
        let sharing = || {
            let mut judge = Judge::default();
            judge.judge(QUEUED);
            judge
        };
        let without = Load { queued: 0, ..QUEUED };
        let few = Load { exchanges: QUEUED.exchanges / 2 - 1, ..without };
        for (load, ticks) in [(without, SHARED_TICKS_MAX), (few, QUIET_TICKS_MAX)] {
            let mut judge = sharing();
            for _ in 1..ticks {
                assert_eq!(judge.judge(load), None, "{load:?}");
            }
            assert_eq!(judge.judge(load), Some(Seat::Any), "{load:?}");
        }
        let mut judge = sharing();
        for tick in 1..SHARED_TICKS_MAX {
            let load = if tick % QUIET_TICKS_MAX == 0 { without } else { few };
            assert_eq!(judge.judge(load), None, "a pause, long after the queue");
        }
        let full = Load { exchanges: EXCHANGES_MIN, connections: 100, share: SHARED_MAX, ..QUEUED };
        assert_eq!(sharing().judge(full), Some(Seat::Own));
        for load in [QUEUED, without] {
            assert_eq!(sharing().judge(Load { idle: Some(0.04), ..load }), Some(Seat::Any));
        }
    }
}
