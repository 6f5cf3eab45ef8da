//! Which lists of a source are believed. A source that fails often says nothing, or too little, before it fails.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sluice_config::{Discovery, Endpoint};
use tokio::time::Instant;

/// Judges lists by what is in use.
pub(super) struct Judge<'c> {
    config: &'c Discovery,
    in_use: Vec<Endpoint>,
    /// The most that were in use in the last while, and until when: a source may lose them one by one.
    most: (usize, Instant),
    /// Since when lists are too short.
    short_since: Option<Instant>,
}

/// The first of equal addresses counts.
pub(super) fn remove_duplicates(list: &mut Vec<Endpoint>) {
    let mut seen = HashSet::new();
    list.retain(|one| seen.insert(one.address.clone()));
}

/// What becomes of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is used.
    Use,
    /// It is not believed before this time, unless it changes.
    Hold(String, Instant),
    /// It is not used.
    Refuse(String),
}

impl<'c> Judge<'c> {
    /// With what is in use.
    pub(super) fn new(config: &'c Discovery, in_use: Vec<Endpoint>) -> Self {
        Self { config, in_use, most: (0, Instant::now()), short_since: None }
    }

    /// What is in use.
    pub(super) fn in_use(&self) -> &[Endpoint] {
        &self.in_use
    }

    /// Whether a list may be used now.
    pub(super) fn judge(&mut self, list: &[Endpoint], now: Instant) -> Verdict {
        let Discovery { keep_last, endpoints_max, min_percent, hold_time_ms, .. } = *self.config;
        if list.is_empty() && keep_last {
            self.short_since = None;
            return Verdict::Refuse("it is empty".to_owned());
        }
        if list.len() > endpoints_max {
            self.short_since = None;
            return Verdict::Refuse(format!("it has {} endpoints, more than endpoints_max", list.len()));
        }
        let hold_time = Duration::from_millis(hold_time_ms);
        let before = self.most_of_late(now);
        let needed = (before as u64 * u64::from(min_percent)).div_ceil(100);
        if list.len() as u64 >= needed {
            self.short_since = None;
            return Verdict::Use;
        }
        let until = *self.short_since.get_or_insert(now) + hold_time;
        if now >= until {
            self.short_since = None;
            return Verdict::Use;
        }
        let count = list.len();
        Verdict::Hold(format!("it has {count} endpoints of {before}, less than min_percent"), until)
    }

    /// The most that were in use within the time for which a short list is held.
    fn most_of_late(&self, now: Instant) -> usize {
        let hold_time = Duration::from_millis(self.config.hold_time_ms);
        let is_recent = now.saturating_duration_since(self.most.1) < hold_time;
        if is_recent { self.most.0.max(self.in_use.len()) } else { self.in_use.len() }
    }

    /// Remembers that a list is used. Returns whether it differs from the last one, apart from its order.
    pub(super) fn adopt(&mut self, list: &[Endpoint], now: Instant) -> bool {
        let known: HashMap<_, _> = self.in_use.iter().map(|one| (&one.address, one)).collect();
        let is_known = |one: &Endpoint| known.get(&one.address).is_some_and(|known| **known == *one);
        let is_same = known.len() == list.len() && list.iter().all(is_known);
        if list.len() < self.in_use.len() {
            let most = self.most_of_late(now);
            if self.in_use.len() == most {
                self.most = (most, now);
            }
        }
        self.in_use = list.to_vec();
        !is_same
    }

    /// The source has failed: what it says next must be said as long as anything else.
    pub(super) fn forget_doubt(&mut self) {
        self.short_since = None;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn list(count: usize) -> Vec<Endpoint> {
        let text: Vec<_> = (0..count).map(|port| format!("192.0.2.1:{}", port + 1)).collect();
        text.iter().map(|text| sluice_config::parse_endpoint("test", text).unwrap()).collect()
    }

    #[test]
    fn a_list_that_shrinks_suddenly_is_believed_after_a_while() {
        let config = Discovery { min_percent: 50, hold_time_ms: 10_000, ..Discovery::default() };
        let mut judge = Judge::new(&config, list(10));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(judge.judge(&list(5), at(0)), Verdict::Use);
        let Verdict::Hold(why, until) = judge.judge(&list(4), at(1)) else { panic!("it is used") };
        assert_eq!((why.as_str(), until), ("it has 4 endpoints of 10, less than min_percent", at(11)));
        assert!(matches!(judge.judge(&list(3), at(5)), Verdict::Hold(_, until) if until == at(11)));
        assert_eq!(judge.judge(&list(3), at(11)), Verdict::Use);
        assert!(judge.adopt(&list(3), at(11)));
        // One that is long enough in between ends the doubt.
        let mut judge = Judge::new(&config, list(10));
        assert!(matches!(judge.judge(&list(1), at(0)), Verdict::Hold(..)));
        assert_eq!(judge.judge(&list(9), at(9)), Verdict::Use);
        assert!(matches!(judge.judge(&list(1), at(11)), Verdict::Hold(_, until) if until == at(21)));
    }

    #[test]
    fn endpoints_that_leave_one_by_one_are_missed_as_well() {
        let config = Discovery { min_percent: 50, hold_time_ms: 10_000, ..Discovery::default() };
        let mut judge = Judge::new(&config, list(8));
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        for (count, second) in [(7, 1), (6, 2), (5, 3), (4, 4)] {
            assert_eq!(judge.judge(&list(count), at(second)), Verdict::Use, "{count}");
            judge.adopt(&list(count), at(second));
        }
        assert!(matches!(judge.judge(&list(3), at(5)), Verdict::Hold(_, until) if until == at(15)));
        // A failure in between makes nothing more credible.
        judge.forget_doubt();
        assert!(matches!(judge.judge(&list(3), at(9)), Verdict::Hold(_, until) if until == at(19)));
        // Ten seconds after there were eight, four are the measure.
        assert_eq!(judge.judge(&list(3), at(12)), Verdict::Use);
    }

    #[test]
    fn empty_and_endless_lists_are_refused() {
        let config = Discovery { endpoints_max: 20, ..Discovery::default() };
        let mut judge = Judge::new(&config, list(2));
        let now = Instant::now();
        assert_eq!(judge.judge(&[], now), Verdict::Refuse("it is empty".to_owned()));
        assert!(matches!(judge.judge(&list(21), now), Verdict::Refuse(why) if why.starts_with("it has 21 ")));
        let config = Discovery { keep_last: false, min_percent: 0, ..Discovery::default() };
        assert_eq!(Judge::new(&config, list(2)).judge(&[], now), Verdict::Use);
    }

    #[test]
    fn the_same_list_in_another_order_is_no_change() {
        let config = Discovery::default();
        let mut judge = Judge::new(&config, list(3));
        let mut turned = list(3);
        turned.reverse();
        assert!(!judge.adopt(&turned, Instant::now()));
        turned[0].weight = 7;
        assert!(judge.adopt(&turned, Instant::now()));
        assert!(judge.adopt(&list(2), Instant::now()));
    }
}
