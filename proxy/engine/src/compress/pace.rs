//! How much of a worker's time encoding takes, and what follows from it.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::Instant;

/// How often the share is looked at: long enough for a few large responses, short enough that a burst does not starve
/// others for long.
const PERIOD: Duration = Duration::from_millis(200);

/// How hard further responses are worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Effort {
    /// As the route says.
    #[default]
    Full,
    /// At the lowest level.
    Little,
    /// Not at all.
    Nothing,
}

/// The time that a worker has spent on encoding.
pub(super) struct Pace {
    spent: Cell<Duration>,
    since: Cell<Instant>,
    effort: Cell<Effort>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { spent: Cell::default(), since: Cell::new(Instant::now()), effort: Cell::default() }
    }

    /// Counts time that was spent.
    pub(super) fn spend(&self, time: Duration) {
        self.spent.set(self.spent.get() + time);
    }

    /// The effort for the next response, with at most so many percent of the time for encoding.
    pub(super) fn effort(&self, percent_max: u64) -> Effort {
        let now = Instant::now();
        let elapsed = now.duration_since(self.since.get());
        if elapsed >= PERIOD {
            self.effort.set(next(self.effort.get(), percent(self.spent.get(), elapsed), percent_max));
            self.spent.set(Duration::ZERO);
            self.since.set(now);
        }
        self.effort.get()
    }
}

fn percent(spent: Duration, elapsed: Duration) -> u64 {
    let percent = spent.as_nanos() * 100 / elapsed.as_nanos().max(1);
    u64::try_from(percent).unwrap_or(u64::MAX)
}

/// One step at a time, and back only when there is room for the next one.
fn next(effort: Effort, percent: u64, percent_max: u64) -> Effort {
    let (is_over, has_room) = (percent > percent_max, percent * 2 <= percent_max.saturating_sub(1));
    match effort {
        Effort::Full if is_over => Effort::Little,
        Effort::Little if is_over => Effort::Nothing,
        Effort::Little if has_room => Effort::Full,
        Effort::Nothing if has_room => Effort::Little,
        same => same,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effort_falls_by_steps_and_comes_back_with_room() {
        use Effort::{Full, Little, Nothing};
        for (effort, percent, wanted) in [
            (Full, 50, Full),
            (Full, 51, Little),
            (Little, 60, Nothing),
            (Little, 40, Little),
            (Little, 24, Full),
            (Nothing, 0, Little),
            (Nothing, 30, Nothing),
        ] {
            assert_eq!(next(effort, percent, 50), wanted, "{effort:?} {percent}");
        }
        assert_eq!([next(Nothing, 0, 1), next(Little, 0, 1), next(Little, 1, 2)], [Little, Full, Little]);
        assert_eq!(percent(Duration::from_millis(50), Duration::from_millis(200)), 25);
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_counted_by_period() {
        let pace = Pace::new();
        pace.spend(Duration::from_millis(150));
        assert_eq!(pace.effort(50), Effort::Full);
        tokio::time::advance(PERIOD).await;
        assert_eq!(pace.effort(50), Effort::Little);
        tokio::time::advance(PERIOD).await;
        assert_eq!(pace.effort(50), Effort::Full);
    }
}
