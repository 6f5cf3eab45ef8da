//! Shared by the program that chooses a worker for each new connection and sluice.
//!
//! The programs' compiler has no atomics for its processor, so what the program writes may lose a change without harm,
//! and it only reads the rest.

#[cfg(not(target_arch = "bpf"))]
use core::sync::atomic::{AtomicU32, Ordering};

/// Names of the object's programs and maps.
pub mod names {
    /// Filter of a group of listening sockets: returns the index of the socket that gets a connection.
    pub const CHOOSE: &str = "accept_choose";
    /// Array of [`Load`](super::Load) that sluice maps into its memory: one for each worker, in the order of the
    /// sockets.
    pub const LOADS: &str = "LOADS";
}

/// Maximum number of workers: as many as `workers` may be.
pub const WORKERS_MAX: u32 = 256;

/// What a worker has to do, in connections; on a separate cache line.
#[cfg(not(target_arch = "bpf"))]
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Load {
    /// Connections that the program has given to the worker's sockets; it wraps. Two processors that count at once may
    /// count one.
    given: AtomicU32,
    /// Those of them that the worker has accepted or no longer waits for; it wraps. Only the worker writes it.
    taken: AtomicU32,
    /// Connections that the worker has open.
    open: AtomicU32,
}

/// The same in the program.
#[cfg(target_arch = "bpf")]
#[repr(C, align(64))]
pub struct Load {
    /// See above; the program adds to it.
    pub given: u32,
    /// See above.
    pub taken: u32,
    /// See above.
    pub open: u32,
}

/// The connections that a worker has, those on their way included.
#[inline(always)]
#[must_use]
pub fn weight(given: u32, taken: u32, open: u32) -> u32 {
    open.wrapping_add(on_their_way(given, taken))
}

/// None if a count was lost.
#[inline(always)]
fn on_their_way(given: u32, taken: u32) -> u32 {
    let difference = given.wrapping_sub(taken);
    if difference > u32::MAX / 2 { 0 } else { difference }
}

#[cfg(not(target_arch = "bpf"))]
impl Load {
    /// See [`weight`].
    pub fn weight(&self) -> u32 {
        let [given, taken, open] = [&self.given, &self.taken, &self.open].map(|n| n.load(Ordering::Relaxed));
        weight(given, taken, open)
    }

    /// Counts one more open connection.
    pub fn add(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one less.
    pub fn subtract(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// The worker has accepted a connection that the program gave it. Only the worker calls it.
    pub fn take(&self) {
        self.give_up(|on_their_way| on_their_way.min(1));
    }

    /// Forgets half of the connections that are on their way: a client may never finish its handshake. Only the worker
    /// calls it, now and then.
    pub fn forget_half(&self) {
        self.give_up(|on_their_way| on_their_way.div_ceil(2));
    }

    fn give_up(&self, count: impl FnOnce(u32) -> u32) {
        let (given, taken) = (self.given.load(Ordering::Relaxed), self.taken.load(Ordering::Relaxed));
        let waiting = on_their_way(given, taken);
        // If more were taken than given, a count was lost, and the two begin anew.
        let base = if waiting == 0 { given } else { taken };
        self.taken.store(base.wrapping_add(count(waiting)), Ordering::Relaxed);
    }

    /// From now on the worker weighs more than any that does not rest, so that it gets no connections.
    pub fn begin_to_rest(&self) {
        self.open.fetch_add(REST, Ordering::Relaxed);
    }

    /// Ends the rest.
    pub fn end_rest(&self) {
        self.open.fetch_sub(REST, Ordering::Relaxed);
    }

    /// What the program does; for tests.
    pub fn give(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }
}

/// More connections than a worker can have.
#[cfg(not(target_arch = "bpf"))]
const REST: u32 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_rests_weighs_more_than_any_other() {
        let (resting, busy) = (Load::default(), Load::default());
        resting.begin_to_rest();
        (0..1_000_000).for_each(|_| busy.add());
        assert!(resting.weight() > busy.weight());
        resting.add();
        resting.end_rest();
        assert_eq!(resting.weight(), 1);
    }

    #[test]
    fn connections_on_their_way_count_until_they_are_taken() {
        let load = Load::default();
        load.add();
        (0..5).for_each(|_| load.give());
        assert_eq!(load.weight(), 6);
        load.take();
        load.add();
        assert_eq!(load.weight(), 6);
        load.subtract();
        assert_eq!(load.weight(), 5);
    }

    #[test]
    fn those_that_never_come_are_forgotten() {
        let load = Load::default();
        (0..100).for_each(|_| load.give());
        (0..6).for_each(|_| load.forget_half());
        assert_eq!(load.weight(), 1);
        load.forget_half();
        assert_eq!(load.weight(), 0);
    }

    #[test]
    fn a_lost_count_does_not_last() {
        let load = Load::default();
        load.take();
        load.take();
        load.give();
        assert_eq!(load.weight(), 1, "two were taken of which nothing was known");
        load.take();
        assert_eq!(load.weight(), 0);
        assert_eq!(weight(3, 5, 2), 2);
        assert_eq!(weight(1, u32::MAX, 0), 2, "the counts wrap");
    }
}
