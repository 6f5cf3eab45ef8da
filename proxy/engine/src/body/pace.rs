//! How fast a sender must be. A client that sends a byte now and then never exceeds an idle timeout, and keeps a place
//! at the application all the while.

use std::time::Duration;

use tokio::time::Instant;

/// How long a sender may take before its rate counts: connections start slowly, and phones pause.
const GRACE: Duration = Duration::from_secs(10);

/// The time that was spent waiting for one sender. Time in which the receiver made it wait does not count.
pub(super) struct Pace {
    /// Bytes a second.
    least: u64,
    waited: Duration,
}

impl Pace {
    /// `None` for no minimum.
    pub(super) fn of(least: u64) -> Option<Self> {
        (least > 0).then_some(Self { least, waited: Duration::ZERO })
    }

    /// Counts the time since it was asked.
    pub(super) fn waited_since(&mut self, asked: Instant) {
        self.waited += asked.elapsed();
    }

    /// Whether it has sent enough for all the waiting.
    pub(super) fn keeps_up(&self, bytes: u64) -> bool {
        let counted = self.waited.saturating_sub(GRACE);
        bytes as f64 >= self.least as f64 * counted.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_after_the_grace_counts() {
        let after =
            |waited_s: u64, bytes| Pace { least: 100, waited: Duration::from_secs(waited_s) }.keeps_up(bytes);
        assert!(after(10, 1) && after(11, 101) && after(20, 1001));
        assert!(!after(11, 99) && !after(20, 999));
        assert!(Pace::of(0).is_none());
    }
}
