//! Which responses should use direct return, and whose heads may be held: what a worker has learned about each path.

use std::cell::Cell;

use twox_hash::XxHash64;

/// Number of entries, indexed by a hash of the path; paths with the same entry share its state. 6 KB per worker.
const PLACES: usize = 1024;
/// After this many consecutive responses whose kind prevented direct return, some requests are skipped; after each
/// further one, twice as many.
const MISSES_MAX: u8 = 8;
const DOUBLINGS_MAX: u8 = 7;
/// How many are skipped at first.
const PAUSE: u16 = 8;

/// The state of all paths.
#[derive(Debug)]
pub(super) struct Likely(Box<[Cell<Known>; PLACES]>);

/// The state of one entry.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// Consecutive responses that could not use direct return.
    misses: u8,
    /// Requests that are still to be skipped.
    skip: u16,
    /// Consecutive bodies that followed at once after a separate head.
    at_once: u8,
}

impl Known {
    /// How many requests to skip before the next is tried.
    fn pause(self) -> u16 {
        self.misses.checked_sub(MISSES_MAX).map_or(0, |further| PAUSE << further.min(DOUBLINGS_MAX))
    }
}

/// Index of the entry that a path hashes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathIndex(usize);

impl Default for Likely {
    fn default() -> Self {
        Self(Box::new([const { Cell::new(Known { misses: 0, skip: 0, at_once: 0 }) }; PLACES]))
    }
}

impl Likely {
    /// The entry of a path (without its query) at a cluster, identified by the cluster's address.
    pub(super) fn place(&self, cluster: usize, path: &[u8]) -> PathIndex {
        PathIndex(XxHash64::oneshot(cluster as u64, path) as usize % PLACES)
    }

    /// Whether the next request should use direct return.
    pub(super) fn may(&self, place: PathIndex) -> bool {
        let cell = &self.0[place.0];
        let known = cell.get();
        cell.set(Known { skip: known.skip.saturating_sub(1), ..known });
        known.skip == 0
    }

    /// Records that a request is tried. After a pause, the others wait for its outcome: with a thousand connections, a
    /// thousand would be tried in vain.
    pub(super) fn begin(&self, place: PathIndex) {
        let cell = &self.0[place.0];
        let known = cell.get();
        cell.set(Known { skip: known.pause(), ..known });
    }

    /// Records whether a response could use direct return.
    pub(super) fn note(&self, place: PathIndex, could: bool) {
        let cell = &self.0[place.0];
        let known = cell.get();
        if could {
            cell.set(Known { misses: 0, skip: 0, ..known });
            return;
        }
        let known = Known { misses: known.misses.saturating_add(1), ..known };
        cell.set(Known { skip: known.pause(), ..known });
    }

    /// How many consecutive bodies followed their heads at once, at most 255.
    pub(super) fn at_once(&self, place: PathIndex) -> u8 {
        self.0[place.0].get().at_once
    }

    /// Records whether the body began at once after a separate head.
    pub(super) fn note_body(&self, place: PathIndex, at_once: bool) {
        let cell = &self.0[place.0];
        let known = cell.get();
        cell.set(Known { at_once: if at_once { known.at_once.saturating_add(1) } else { 0 }, ..known });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_of(likely: &Likely, place: PathIndex, requests: u32) -> u32 {
        let ask = |_: &u32| {
            let may = likely.may(place);
            if may {
                likely.begin(place);
                likely.note(place, false);
            }
            may
        };
        (0..requests).filter(ask).count() as u32
    }

    #[test]
    fn a_path_that_always_misses_is_rarely_tried() {
        let likely = Likely::default();
        let place = likely.place(1, b"/small");
        assert_eq!(asked_of(&likely, place, 8), 8);
        assert_eq!(asked_of(&likely, place, 9), 1);
        assert_eq!(asked_of(&likely, place, 17), 1);
        assert!(asked_of(&likely, place, 100_000) < 120, "about one in a thousand after a while");
        let other = likely.place(1, b"/large");
        assert_eq!(asked_of(&likely, other, 1), 1, "another path is not affected");
    }

    #[test]
    fn one_of_many_concurrent_requests_is_tried_after_a_pause() {
        let likely = Likely::default();
        let place = likely.place(1, b"/small");
        assert_eq!(asked_of(&likely, place, 16), 8);
        assert!(likely.may(place) && likely.may(place), "the first could not be tried after all");
        likely.begin(place);
        assert!(!(0..8).any(|_| likely.may(place)), "before the outcome is known");
        likely.note(place, true);
        assert!(likely.may(place) && likely.may(place), "after it could");
    }

    #[test]
    fn a_success_resets_the_pause() {
        let likely = Likely::default();
        let place = likely.place(1, b"/");
        for _ in 1..MISSES_MAX {
            likely.note(place, false);
        }
        likely.note(place, true);
        likely.note(place, false);
        assert!(likely.may(place));
    }

    #[test]
    fn bodies_that_follow_their_heads_at_once_are_counted() {
        let likely = Likely::default();
        let place = likely.place(1, b"/");
        (0..300).for_each(|_| likely.note_body(place, true));
        likely.note(place, true);
        assert_eq!(likely.at_once(place), 255);
        likely.note_body(place, false);
        assert_eq!(likely.at_once(place), 0, "after a late body");
        likely.note_body(place, true);
        assert_eq!(likely.at_once(place), 1);
    }

    #[test]
    fn clusters_have_separate_entries() {
        let likely = Likely::default();
        assert_ne!(likely.place(1, b"/").0, likely.place(2, b"/").0);
    }
}
