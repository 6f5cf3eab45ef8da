//! How long nearly all requests wait for their first byte: the time after which `retry.hedge` asks a second endpoint.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The share of requests that is faster.
const QUANTILE: f64 = 0.95;
/// How far one request moves the estimate, as a share of it. Some hundred requests halve an error.
const STEP: f64 = 0.05;
/// Requests before the estimate is used.
const LEARNT: u32 = 100;
/// Below this, a second request would cost more than it saves.
const LEAST: Duration = Duration::from_millis(1);

/// An estimate of a quantile that needs no memory of the samples: a slower request raises it by 19 times as much as a
/// faster one lowers it, so it rests where one in twenty is slower. Workers that race lose a step, which the next one
/// makes up for.
#[derive(Debug, Default)]
pub(super) struct Slowness {
    nanoseconds: AtomicU64,
    samples: AtomicU32,
}

impl Slowness {
    /// Counts a request.
    pub(super) fn note(&self, sample: Duration) {
        let sample = sample.as_nanos().min(u128::from(u64::MAX)) as u64;
        let before = self.nanoseconds.load(Relaxed);
        let after = match before {
            0 => sample.max(1) as f64 * 2.0,
            before if sample > before => before as f64 * (1.0 + STEP * QUANTILE),
            before => before as f64 * (1.0 - STEP * (1.0 - QUANTILE)),
        };
        self.nanoseconds.store((after as u64).max(1), Relaxed);
        let samples = self.samples.load(Relaxed);
        if samples < LEARNT {
            self.samples.store(samples + 1, Relaxed);
        }
    }

    /// The estimate; `None` until there were enough requests.
    pub(super) fn estimate(&self) -> Option<Duration> {
        let is_learnt = self.samples.load(Relaxed) >= LEARNT;
        is_learnt.then(|| Duration::from_nanos(self.nanoseconds.load(Relaxed)).max(LEAST))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_rests_where_one_in_twenty_is_slower() {
        let (slowness, mut random) = (Slowness::default(), fastrand::Rng::with_seed(7));
        assert_eq!(slowness.estimate(), None);
        let mut total = 0.0;
        for number in 0..40_000 {
            // Even between 0 and 100 ms.
            slowness.note(Duration::from_micros(random.u64(0..100_000)));
            if number >= 20_000 {
                total += slowness.estimate().unwrap().as_secs_f64();
            }
        }
        let mean_ms = total / 20_000.0 * 1000.0;
        assert!((90.0..98.0).contains(&mean_ms), "{mean_ms}");
        for _ in 0..5000 {
            slowness.note(Duration::from_micros(100));
        }
        assert_eq!(slowness.estimate(), Some(LEAST));
    }
}
