//! The history of one endpoint, one cluster, or all: counts of ten seconds, points of two minutes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use sluice_core::metrics::Counts;
use sluice_core::record::BodyPath;

use super::document::{Classes, History, Latency, Paths, Rates};

/// Seconds of history.
pub(super) const SECONDS: usize = 120;
/// Length of the longer window, in samples, which are a second apart.
const WINDOW: usize = 10;

/// One history.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Times and counts of the last [`WINDOW`] samples and the one before.
    recent: VecDeque<(Instant, Counts)>,
    points: Past<Point>,
    rates: Rates,
}

/// The last values of something, one for each second of history.
#[derive(Debug)]
pub(super) struct Past<T>(VecDeque<T>);

impl<T> Default for Past<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T: Copy> Past<T> {
    /// Adds the newest.
    pub(super) fn push(&mut self, value: T) {
        self.0.push_back(value);
        if self.0.len() > SECONDS {
            self.0.pop_front();
        }
    }

    /// What `pick` takes from each, the oldest first.
    pub(super) fn list<U>(&self, pick: impl Fn(T) -> U) -> Vec<U> {
        self.0.iter().copied().map(pick).collect()
    }
}

/// The counts by some key of the last [`WINDOW`] samples and the one before.
#[derive(Debug)]
pub(super) struct CountTrack<K>(VecDeque<(Instant, BTreeMap<K, u64>)>);

impl<K> Default for CountTrack<K> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<K: Ord + Copy> CountTrack<K> {
    /// Adds the counts of `now`.
    pub(super) fn push(&mut self, now: Instant, counts: BTreeMap<K, u64>) {
        self.0.push_back((now, counts));
        if self.0.len() > WINDOW + 1 {
            self.0.pop_front();
        }
    }

    /// Every key that occurred, with its count and its rate per second.
    pub(super) fn rates(&self) -> Vec<(K, u64, f64)> {
        let (Some((then, first)), Some((now, last))) = (self.0.front(), self.0.back()) else {
            return Vec::new();
        };
        let seconds = now.saturating_duration_since(*then).as_secs_f64().max(0.001);
        let rate = |(key, count): (&K, &u64)| {
            let before = first.get(key).copied().unwrap_or(0);
            (*key, *count, rounded(count.saturating_sub(before) as f64 / seconds))
        };
        last.iter().map(rate).collect()
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    requests: f32,
    failures: f32,
    p50_ms: Option<f32>,
    p99_ms: Option<f32>,
    in_flight: u32,
}

impl Track {
    /// Adds the counts of `now`, and returns whether there was a point in time to compare them with: the first ones are
    /// only the baseline.
    pub(super) fn push(&mut self, now: Instant, counts: Counts, in_flight: u64) -> bool {
        let has_before = !self.recent.is_empty();
        if let (Some((then, before)), Some((_, first))) = (self.recent.back(), self.recent.front()) {
            let seconds = now.saturating_duration_since(*then).as_secs_f64().max(0.001);
            self.rates = rates(&counts.since(before), seconds, &counts.since(first));
            let latency = self.rates.latency;
            self.points.push(Point {
                requests: self.rates.requests as f32,
                failures: self.rates.failures as f32,
                p50_ms: latency.map(|latency| latency.p50_ms as f32),
                p99_ms: latency.map(|latency| latency.p99_ms as f32),
                in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            });
        }
        self.recent.push_back((now, counts));
        if self.recent.len() > WINDOW + 1 {
            self.recent.pop_front();
        }
        has_before
    }

    /// Rates over the last second and the last ten seconds.
    pub(super) fn rates(&self) -> Rates {
        self.rates.clone()
    }

    /// The last two minutes.
    pub(super) fn history(&self) -> History {
        History {
            requests: self.points.list(|point| point.requests),
            failures: self.points.list(|point| point.failures),
            p50_ms: self.points.list(|point| point.p50_ms),
            p99_ms: self.points.list(|point| point.p99_ms),
            in_flight: self.points.list(|point| point.in_flight),
            ..History::default()
        }
    }
}

fn rates(last: &Counts, seconds: f64, window: &Counts) -> Rates {
    let per_second = |n: u64| rounded(n as f64 / seconds);
    let mut paths = Paths::default();
    for (path, n) in BodyPath::ALL.into_iter().zip(last.paths) {
        let rate = match path {
            BodyPath::Copy => &mut paths.copy,
            BodyPath::Bypass => &mut paths.bypass,
            BodyPath::Direct => &mut paths.direct,
            BodyPath::Splice => &mut paths.splice,
        };
        *rate = per_second(n);
    }
    let all = window.requests();
    Rates {
        requests: per_second(last.requests()),
        failures: per_second(last.failed),
        error_share_10s: (all > 0).then(|| window.failed.min(all) as f64 / all as f64),
        bytes_in: per_second(last.bytes_in),
        bytes_out: per_second(last.bytes_out),
        classes: Classes::from(last.by_class().map(per_second)),
        paths,
        latency: latency(last),
        latency_10s: latency(window),
    }
}

fn latency(counts: &Counts) -> Option<Latency> {
    let at = |share| counts.percentile_ms(share).map(rounded);
    Some(Latency { p50_ms: at(0.5)?, p90_ms: at(0.9)?, p99_ms: at(0.99)? })
}

/// The buckets are no more precise than two decimals, and this keeps the document small.
fn rounded(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}
