//! How late timers wake a busy worker.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::waits::WaitsFile;

/// A timer is set this often: for most of each tick (0.2 s).
const LOOK_EACH: Duration = Duration::from_millis(10);
const LOOKS_PER_TICK: u32 = 17;
/// A timer that is this late found a thread that computes on the worker's core, if the worker waited for the core for
/// most of that time. Measured: on a full machine none was that late with up to 200 connections, and beside a busy loop
/// on each core one in fourteen. tokio's timers alone are up to a millisecond late.
const LATE_MIN: Duration = Duration::from_millis(3);

/// Whether a timer was late.
#[derive(Default)]
pub(super) struct Lateness {
    wanted: Notify,
    is_late: Cell<bool>,
}

impl Lateness {
    /// Has timers set until the next tick.
    pub(super) fn look(&self) {
        self.wanted.notify_one();
    }

    /// Whether a timer has been late since this was last asked.
    pub(super) fn take(&self) -> bool {
        self.is_late.take()
    }

    /// Sets the timers, on the worker's thread.
    pub(super) async fn watch(&self, waits: &WaitsFile) {
        loop {
            self.wanted.notified().await;
            let mut before = waits.read().unwrap_or_default();
            for _ in 0..LOOKS_PER_TICK {
                let due = Instant::now() + LOOK_EACH;
                sleep_until(due.into()).await;
                let late = due.elapsed();
                let Some(now) = waits.read() else { return };
                if late >= LATE_MIN && now.waited_since(before) >= late / 2 {
                    self.is_late.set(true);
                }
                before = now;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::rc::Rc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::{hint, thread};

    use sluice_kernel::scheduling::{self, Cores};
    use tokio::runtime::Builder;
    use tokio::task::{LocalSet, spawn_local};

    use super::*;

    /// Waits until a timer of this thread has been late.
    async fn look_until_late(waits: WaitsFile) {
        let lateness = Rc::new(Lateness::default());
        let watched = Rc::clone(&lateness);
        let watching = spawn_local(async move { watched.watch(&waits).await });
        while !lateness.take() {
            lateness.look();
            tokio::time::sleep(LOOK_EACH).await;
        }
        watching.abort();
    }

    #[test]
    fn timers_of_a_batch_thread_are_late_beside_threads_that_compute() {
        let core = Cores::only(*Cores::of_this_thread().unwrap().numbers().first().unwrap()).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // Several, because some kernels give each of them less than LATE_MIN at a time.
            for _ in 0..8 {
                scope.spawn(|| {
                    core.stay().unwrap();
                    while !is_over.load(Ordering::Relaxed) {
                        hint::spin_loop();
                    }
                });
            }
            let worker = scope.spawn(|| {
                core.stay().unwrap();
                let Some(waits) = WaitsFile::of_this_thread() else { return };
                if scheduling::choose(true).is_ok() {
                    let runtime = Builder::new_current_thread().enable_time().build().unwrap();
                    LocalSet::new().block_on(&runtime, look_until_late(waits));
                }
            });
            worker.join().unwrap();
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
