//! How long the cores were idle of late.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use sluice_kernel::scheduling::{CoreTimes, Cores};

/// The time between two looks: the kernel counts in steps of 10 ms, and writes a line for every interrupt as well.
const SPAN_MIN: Duration = Duration::from_secs(1);
/// The mean of a longer time says little about now.
const SPAN_MAX: Duration = Duration::from_secs(2);

/// What each core has spent, by its number.
type ByCore = Vec<(usize, CoreTimes)>;

/// The share of their time in which some cores are idle, as long as somebody asks for it.
pub(super) struct IdleShare {
    cores: Cores,
    last: RefCell<Option<(Instant, ByCore)>>,
    share: Cell<Option<f64>>,
    idlest: Cell<Option<usize>>,
}

impl IdleShare {
    pub(super) fn of(cores: Cores) -> Self {
        Self { cores, last: RefCell::default(), share: Cell::default(), idlest: Cell::default() }
    }

    /// The share in the last one or two seconds. `None` if the kernel does not say, or if nobody has asked for so long.
    pub(super) fn get(&self, now: Instant) -> Option<f64> {
        let span =
            self.last.borrow().as_ref().map_or(Duration::MAX, |(at, _)| now.saturating_duration_since(*at));
        if span >= SPAN_MIN {
            let times = self.cores.times().ok();
            let before = self.last.replace(times.clone().map(|times| (now, times)));
            let pair =
                times.zip(before).filter(|_| span < SPAN_MAX).map(|(times, (_, before))| (times, before));
            self.share.set(
                pair.as_ref()
                    .and_then(|(times, before)| CoreTimes::sum(times).idle_since(&CoreTimes::sum(before))),
            );
            self.idlest.set(pair.and_then(|(times, before)| idlest(&times, &before)));
        }
        self.share.get()
    }

    /// The core that was idle for longest in that time.
    pub(super) fn idlest(&self) -> Option<usize> {
        self.idlest.get()
    }
}

/// Of several, the one with the highest number: the first ones have the most interrupts.
fn idlest(times: &[(usize, CoreTimes)], before: &[(usize, CoreTimes)]) -> Option<usize> {
    let share = |(core, times): &(usize, CoreTimes)| {
        let (_, before) = before.iter().find(|(known, _)| known == core)?;
        Some((times.idle_since(before)?, *core))
    };
    times
        .iter()
        .filter_map(share)
        .max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
        .map(|(_, core)| core)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn share_is_known_only_from_the_second_look_on() {
        let begun = Instant::now();
        let cores = Cores::of_this_thread().unwrap();
        let share = IdleShare::of(cores);
        assert_eq!((share.get(begun), share.idlest()), (None, None));
        assert_eq!(share.get(begun + SPAN_MIN / 2), None);
        // Kernel time has hardly passed, whatever this clock says.
        let start = cores.numbers().into_iter().map(|core| (core, CoreTimes::default())).collect();
        share.last.replace(Some((begun, start)));
        let found = share.get(begun + SPAN_MIN).unwrap();
        assert!((0.0..=1.0).contains(&found), "{found}");
        assert!(cores.numbers().contains(&share.idlest().unwrap()));
        assert_eq!(share.get(begun + SPAN_MIN * 3 / 2), Some(found));
        assert_eq!(share.get(begun + SPAN_MIN + SPAN_MAX), None, "asked too late");
    }
}
