//! The generic cell rate algorithm (ITU-T I.371, appendix I): one time for each client, at which it would have used up
//! nothing. Pure: no clock, no table.

use super::judge::PaceRules;

/// How far a client is put later at most, in nanoseconds: as long as the longest ban, whatever a report says.
const DEBT_MAX_NS: u64 = 30 * 86_400 * 1_000_000_000;

/// Times, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// Between two requests at the rate.
    interval: u64,
    /// How far a client may be ahead of its time, and still be served.
    tolerance: u64,
    /// Whether those that are ahead wait.
    delays: bool,
}

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It is served; from then on, the client's time is this.
    Serve { next: u64 },
    /// The same after a wait.
    Wait { next: u64, wait: u64 },
    /// It is refused; one more is possible after this time.
    Refuse { after: u64 },
}

impl Pace {
    /// A rate of some requests in a period, and a burst, each at least 1. With `delays`, the burst waits.
    pub(super) fn new(requests: u64, period_ns: u64, burst: u64, delays: bool) -> Self {
        let interval = (period_ns / requests.max(1)).max(1);
        // The first of a burst is on time, or does not wait.
        let ahead = if delays { burst } else { burst.saturating_sub(1) };
        Self { interval, tolerance: interval.saturating_mul(ahead), delays }
    }

    /// The same for another process.
    pub(super) fn rules(self) -> PaceRules {
        PaceRules { interval_ns: self.interval, tolerance_ns: self.tolerance, delays: self.delays }
    }

    /// The time of a client who is refused for so long from now on.
    pub(super) fn refused_for(self, after: u64, now: u64) -> u64 {
        now.saturating_add(after.saturating_add(self.tolerance).min(DEBT_MAX_NS))
    }

    /// The time of a client after further requests, which were served elsewhere.
    pub(super) fn advanced(self, next: u64, requests: u64, now: u64) -> u64 {
        let next = next.max(now).saturating_add(self.interval.saturating_mul(requests));
        next.min(now.saturating_add(DEBT_MAX_NS))
    }

    /// The step for a request now, of a client whose time is `next`.
    pub(super) fn step(self, next: u64, now: u64) -> Step {
        let due = next.max(now);
        let ahead = due - now;
        let next = due.saturating_add(self.interval);
        match ahead {
            _ if ahead > self.tolerance => Step::Refuse { after: ahead - self.tolerance },
            1.. if self.delays => Step::Wait { next, wait: ahead },
            _ => Step::Serve { next },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_burst_is_served_and_then_the_rate() {
        let pace = Pace::new(2, SECOND, 3, false);
        let (mut next, mut served) = (0, Vec::new());
        for tenth in 0..30 {
            match pace.step(next, SECOND + tenth * SECOND / 10) {
                Step::Serve { next: then } => {
                    next = then;
                    served.push(tenth);
                }
                Step::Refuse { after } => assert!(after <= SECOND / 2),
                Step::Wait { .. } => panic!("waits"),
            }
        }
        assert_eq!(served, [0, 1, 2, 5, 10, 15, 20, 25]);
    }

    #[test]
    fn requests_that_wait_come_out_at_the_rate() {
        let pace = Pace::new(10, SECOND, 2, true);
        let (first, tenth) = (Step::Serve { next: SECOND + SECOND / 10 }, SECOND / 10);
        assert_eq!(pace.step(0, SECOND), first);
        assert_eq!(pace.step(SECOND + tenth, SECOND), Step::Wait { next: SECOND + 2 * tenth, wait: tenth });
        assert_eq!(
            pace.step(SECOND + 2 * tenth, SECOND),
            Step::Wait { next: SECOND + 3 * tenth, wait: 2 * tenth }
        );
        assert_eq!(pace.step(SECOND + 3 * tenth, SECOND), Step::Refuse { after: tenth });
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_burst_and_rate(
            requests in 1..20_u64, burst in 1..20_u64, gaps in prop::collection::vec(0..SECOND, 1..200),
        ) {
            let pace = Pace::new(requests, 10 * SECOND, burst, false);
            let (mut now, mut next, mut served) = (SECOND, 0, Vec::new());
            for gap in gaps {
                now += gap;
                if let Step::Serve { next: then } = pace.step(next, now) {
                    next = then;
                    served.push(now);
                }
            }
            for (index, start) in served.iter().enumerate() {
                for (count, end) in served[index..].iter().enumerate() {
                    let most = burst + (end - start) / (10 * SECOND / requests);
                    prop_assert!((count as u64) < most, "{} in {} ns", count + 1, end - start);
                }
            }
        }
    }
}
