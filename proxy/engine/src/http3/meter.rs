//! Counts what a client sends in addition to requests.

use std::cell::Cell;
use std::time::{Duration, Instant};

use sluice_config::Http3Limits;
use sluice_core::metrics::Event;

/// What a connection may do in one interval, and what it did.
pub(super) struct Meter {
    interval: Duration,
    resets_max: u64,
    control_frames_max: u64,
    paths_max: u64,
    faults_max: u64,
    begun: Cell<Instant>,
    resets: Cell<u64>,
    control_frames: Cell<u64>,
    paths: Cell<u64>,
    /// Over the life of the connection.
    faults: Cell<u64>,
    abuse: Cell<Option<Event>>,
}

impl Meter {
    pub(super) fn new(limits: &Http3Limits) -> Self {
        Self {
            interval: Duration::from_millis(limits.interval_ms),
            resets_max: limits.resets_max,
            control_frames_max: limits.control_frames_max,
            paths_max: limits.paths_max,
            faults_max: limits.faults_max,
            begun: Cell::new(Instant::now()),
            resets: Cell::new(0),
            control_frames: Cell::new(0),
            paths: Cell::new(0),
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
        self.resets.set(self.resets.get() + 1);
        self.judge();
    }

    /// Counts frames that are neither a head nor a body.
    pub(super) fn count_control_frames(&self, frames: u64) {
        self.control_frames.set(self.control_frames.get() + frames);
        self.judge();
    }

    /// Counts changes of the client's address, and probes of addresses.
    pub(super) fn count_paths(&self, paths: u64) {
        if paths > 0 {
            self.paths.set(self.paths.get() + paths);
            self.judge();
        }
    }

    /// Counts a request that had to be reset for a fault of the client.
    pub(super) fn count_fault(&self) {
        self.faults.set(self.faults.get() + 1);
        if self.faults.get() > self.faults_max {
            self.abuse.set(Some(Event::Http3Faults));
        }
    }

    fn judge(&self) {
        let counts = [
            (&self.resets, self.resets_max, Event::Http3Resets),
            (&self.control_frames, self.control_frames_max, Event::Http3ControlFrames),
            (&self.paths, self.paths_max, Event::Http3Paths),
        ];
        let Some((_, _, abuse)) = counts.iter().find(|(count, most, _)| count.get() > *most) else { return };
        // The clock is read only when a limit is reached.
        let now = Instant::now();
        if now.duration_since(self.begun.get()) >= self.interval {
            self.begun.set(now);
            counts.iter().for_each(|(count, ..)| count.set(0));
        } else {
            self.abuse.set(Some(*abuse));
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
