//! How long the cores were idle of late.

use std::cell::Cell;
use std::time::{Duration, Instant};

use sluice_kernel::scheduling::{CoreTimes, Cores};

/// The time between two looks: the kernel counts in steps of 10 ms, and writes a line for every interrupt as well.
const SPAN_MIN: Duration = Duration::from_secs(1);
/// The mean of a longer time says little about now.
const SPAN_MAX: Duration = Duration::from_secs(2);

/// The share of their time in which some cores are idle, as long as somebody asks for it.
pub(super) struct IdleShare {
    cores: Cores,
    last: Cell<Option<(Instant, CoreTimes)>>,
    share: Cell<Option<f64>>,
}

impl IdleShare {
    pub(super) fn of(cores: Cores) -> Self {
        Self { cores, last: Cell::default(), share: Cell::default() }
    }

    /// The share in the last one or two seconds. `None` if the kernel does not say, or if nobody has asked for so long.
    pub(super) fn get(&self, now: Instant) -> Option<f64> {
        let span = self.last.get().map_or(Duration::MAX, |(at, _)| now.saturating_duration_since(at));
        if span >= SPAN_MIN {
            let times = self.cores.times().ok();
            let before = self.last.replace(times.map(|times| (now, times)));
            let pair = times.zip(before).filter(|_| span < SPAN_MAX);
            self.share.set(pair.and_then(|(times, (_, before))| times.idle_since(&before)));
        }
        self.share.get()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn share_is_known_only_from_the_second_look_on() {
        let begun = Instant::now();
        let share = IdleShare::of(Cores::of_this_thread().unwrap());
        assert_eq!(share.get(begun), None);
        assert_eq!(share.get(begun + SPAN_MIN / 2), None);
        // Kernel time has hardly passed, whatever this clock says.
        share.last.set(Some((begun, CoreTimes::default())));
        let found = share.get(begun + SPAN_MIN).unwrap();
        assert!((0.0..=1.0).contains(&found), "{found}");
        assert_eq!(share.get(begun + SPAN_MIN * 3 / 2), Some(found));
        assert_eq!(share.get(begun + SPAN_MIN + SPAN_MAX), None, "asked too late");
    }
}
