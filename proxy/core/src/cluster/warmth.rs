//! How much of its share an endpoint takes while it starts: a process that has just begun compiles, and fills its
//! caches.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A weight of 1 when warm. The share of a cold endpoint is a part of it.
const WARM: u32 = 100;
/// The share with which an endpoint starts: enough to warm up by, and little if it is slow.
const COLD: u32 = 10;
/// No start is under way.
const NONE: u64 = u64::MAX;

/// The start of an endpoint. Endpoints that start together have equal shares, as if none did.
pub(super) struct Warmth {
    /// How long a start takes; 0 is no time.
    time_ms: u64,
    /// When the last one began, or [`NONE`].
    began_ms: AtomicU64,
}

impl Warmth {
    /// An endpoint that starts now.
    pub(super) fn new(time_ms: u64, now_ms: u64) -> Self {
        Self { time_ms, began_ms: AtomicU64::new(if time_ms == 0 { NONE } else { now_ms }) }
    }

    /// A start begins, now or later.
    pub(super) fn begin(&self, at_ms: u64) {
        if self.time_ms > 0 {
            self.began_ms.store(at_ms, Relaxed);
        }
    }

    /// The weight, to compare with those of endpoints with the same time. Reads the clock only during a start.
    pub(super) fn of_weight(&self, weight: u32, now_ms: impl FnOnce() -> u64) -> u32 {
        if self.time_ms == 0 {
            return weight;
        }
        let began_ms = self.began_ms.load(Relaxed);
        if began_ms == NONE {
            return weight * WARM;
        }
        let past_ms = now_ms().saturating_sub(began_ms);
        if past_ms >= self.time_ms {
            // Another start may have begun in between.
            let _ = self.began_ms.compare_exchange(began_ms, NONE, Relaxed, Relaxed);
            return weight * WARM;
        }
        let more = u64::from(WARM - COLD) * past_ms / self.time_ms;
        weight * (COLD + more as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_grows_until_the_start_is_over() {
        let warmth = Warmth::new(1000, 5000);
        let shares = [5000, 5500, 5999, 6000, 0].map(|now| warmth.of_weight(2, || now));
        assert_eq!(shares, [20, 110, 198, 200, 200]);
        // Ejected until then, and after it.
        warmth.begin(8000);
        assert_eq!([7000, 8000, 8500, 9000].map(|now| warmth.of_weight(1, || now)), [10, 10, 55, 100]);
        assert_eq!(warmth.of_weight(1, || unreachable!("it is warm")), 100);
    }

    #[test]
    fn without_a_time_the_weight_is_the_weight() {
        let warmth = Warmth::new(0, 0);
        warmth.begin(0);
        assert_eq!(warmth.of_weight(3, || unreachable!("nothing starts")), 3);
    }
}
