//! Whether an endpoint's answers are worth asking for to go past sluice: what workers have found out about it.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// After so many answers in a row that could not go past sluice for what they are like, some are not asked for;
/// after each further one twice as many.
const MISSES_MAX: u32 = 8;
const DOUBLINGS_MAX: u32 = 7;
/// How many at first.
const PAUSE: u32 = 8;

/// What is known; workers share it, and what they count may be off by a few.
#[derive(Debug, Default)]
pub(crate) struct Returnable {
    misses: AtomicU32,
    skip: AtomicU32,
}

impl Returnable {
    /// Whether to ask for the next one.
    pub(crate) fn may(&self) -> bool {
        let skip = self.skip.load(Relaxed);
        if skip > 0 {
            self.skip.store(skip - 1, Relaxed);
        }
        skip == 0
    }

    /// Notes whether one that was asked for could.
    pub(crate) fn note(&self, could: bool) {
        let misses = self.misses.load(Relaxed);
        if could {
            if misses != 0 {
                self.misses.store(0, Relaxed);
            }
            return;
        }
        self.misses.store(misses.saturating_add(1), Relaxed);
        if misses + 1 >= MISSES_MAX {
            let doublings = (misses + 1 - MISSES_MAX).min(DOUBLINGS_MAX);
            self.skip.store(PAUSE << doublings, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_of(returnable: &Returnable, requests: u32) -> u32 {
        let ask = |_: &u32| {
            let may = returnable.may();
            if may {
                returnable.note(false);
            }
            may
        };
        (0..requests).filter(ask).count() as u32
    }

    #[test]
    fn an_endpoint_whose_answers_never_can_is_hardly_asked() {
        let returnable = Returnable::default();
        assert_eq!(asked_of(&returnable, MISSES_MAX), MISSES_MAX);
        assert_eq!(asked_of(&returnable, PAUSE + 1), 1);
        assert_eq!(asked_of(&returnable, 2 * PAUSE + 1), 1);
        assert!(asked_of(&returnable, 100_000) < 120, "about one in a thousand in the end");
    }

    #[test]
    fn one_that_could_begins_anew() {
        let returnable = Returnable::default();
        for _ in 1..MISSES_MAX {
            returnable.note(false);
        }
        returnable.note(true);
        returnable.note(false);
        assert!(returnable.may());
    }
}
