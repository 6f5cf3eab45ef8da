//! Counts what a client sends in addition to requests.

use std::cell::Cell;
use std::time::{Duration, Instant};

use sluice_config::Http3Limits;
use sluice_core::metrics::Event;

/// What a connection may do in one interval, and what it did.
pub(super) struct Meter {
    interval: Duration,
    begun: Cell<Instant>,
    resets: Rate,
    control_frames: Rate,
    paths: Rate,
    unread: Rate,
    faults_max: u64,
    /// Over the life of the connection.
    faults: Cell<u64>,
    abuse: Cell<Option<Event>>,
}

/// One thing that is counted in each interval.
struct Rate {
    most: u64,
    count: Cell<u64>,
    /// What more than that is.
    abuse: Event,
}

impl Rate {
    fn new(most: u64, abuse: Event) -> Self {
        Self { most, count: Cell::new(0), abuse }
    }

    fn add(&self, count: u64) {
        self.count.set(self.count.get().saturating_add(count));
    }
}

impl Meter {
    pub(super) fn new(limits: &Http3Limits) -> Self {
        Self {
            interval: Duration::from_millis(limits.interval_ms),
            begun: Cell::new(Instant::now()),
            resets: Rate::new(limits.resets_max, Event::Http3Resets),
            control_frames: Rate::new(limits.control_frames_max, Event::Http3ControlFrames),
            paths: Rate::new(limits.paths_max, Event::Http3Paths),
            unread: Rate::new(limits.unread_frames_max, Event::Http3Unread),
            faults_max: limits.faults_max,
            faults: Cell::new(0),
            abuse: Cell::new(None),
        }
    }

    /// The client's abuse, if there is one.
    pub(super) fn abuse(&self) -> Option<Event> {
        self.abuse.get()
    }

    /// Counts a request that the client has cancelled.
    pub(super) fn count_reset(&self) {
        self.resets.add(1);
        self.judge();
    }

    /// Counts frames that are neither a head nor a body.
    pub(super) fn count_control_frames(&self, frames: u64) {
        self.control_frames.add(frames);
        self.judge();
    }

    /// Counts changes of the client's address, and probes of addresses.
    pub(super) fn count_paths(&self, paths: u64) {
        self.paths.add(paths);
        self.judge();
    }

    /// Counts parts of streams that have arrived, and pieces that were read.
    pub(super) fn count_parts(&self, arrived: u64, read: u64) {
        self.unread.add(arrived);
        self.unread.count.set(self.unread.count.get().saturating_sub(read));
        self.judge();
    }

    /// Counts a request that had to be reset for a fault of the client.
    pub(super) fn count_fault(&self) {
        self.faults.set(self.faults.get() + 1);
        if self.faults.get() > self.faults_max {
            self.abuse.set(Some(Event::Http3Faults));
        }
    }

    fn judge(&self) {
        let rates = [&self.resets, &self.control_frames, &self.paths, &self.unread];
        let Some(exceeded) = rates.iter().find(|rate| rate.count.get() > rate.most) else { return };
        // The clock is read only when a limit is reached.
        let now = Instant::now();
        if now.duration_since(self.begun.get()) >= self.interval {
            self.begun.set(now);
            rates.iter().for_each(|rate| rate.count.set(0));
        } else {
            self.abuse.set(Some(exceeded.abuse));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_its_bound_is_abuse() {
        let limits = Http3Limits {
            resets_max: 2,
            control_frames_max: 10,
            paths_max: 3,
            unread_frames_max: 1500,
            faults_max: 1,
            ..Http3Limits::default()
        };
        let meter = || Meter::new(&limits);
        let resets = meter();
        (0..2).for_each(|_| resets.count_reset());
        assert_eq!(resets.abuse(), None);
        resets.count_reset();
        assert_eq!(resets.abuse(), Some(Event::Http3Resets));
        let frames = meter();
        frames.count_control_frames(10);
        assert_eq!(frames.abuse(), None);
        frames.count_control_frames(1);
        assert_eq!(frames.abuse(), Some(Event::Http3ControlFrames));
        let paths = meter();
        paths.count_paths(4);
        assert_eq!(paths.abuse(), Some(Event::Http3Paths));
        let parts = meter();
        for _ in 0..10 {
            parts.count_parts(1500, 1400);
        }
        assert_eq!(parts.abuse(), None);
        parts.count_parts(1000, 0);
        assert_eq!(parts.abuse(), Some(Event::Http3Unread));
        let faults = meter();
        (0..2).for_each(|_| faults.count_fault());
        assert_eq!(faults.abuse(), Some(Event::Http3Faults));
    }

    #[test]
    fn counts_begin_again_after_the_interval() {
        let limits = Http3Limits { resets_max: 1, interval_ms: 100, ..Http3Limits::default() };
        let meter = Meter::new(&limits);
        let past = Instant::now().checked_sub(Duration::from_secs(1));
        past.into_iter().for_each(|past| meter.begun.set(past));
        (0..2).for_each(|_| meter.count_reset());
        assert_eq!(meter.abuse(), None);
    }
}
