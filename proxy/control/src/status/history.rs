//! The history of one endpoint, one cluster, or all: counts of ten seconds, points of two minutes.

use std::collections::VecDeque;
use std::time::Instant;

use sluice_core::metrics::Counts;
use sluice_core::record::BodyPath;

use super::document::{History, Latency, Paths, Rates};

/// Seconds of history.
pub(super) const SECONDS: usize = 120;
/// Length of the longer window, in samples, which are a second apart.
const WINDOW: usize = 10;

/// One history.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Times and counts of the last [`WINDOW`] samples and the one before.
    recent: VecDeque<(Instant, Counts)>,
    points: VecDeque<Point>,
    rates: Rates,
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
    /// Adds the counts of `now`; the first ones are only the baseline.
    pub(super) fn push(&mut self, now: Instant, counts: Counts, in_flight: u64) {
        if let (Some((then, before)), Some((_, first))) = (self.recent.back(), self.recent.front()) {
            let seconds = now.saturating_duration_since(*then).as_secs_f64().max(0.001);
            self.rates = rates(&counts.since(before), seconds, &counts.since(first));
            let latency = self.rates.latency;
            self.points.push_back(Point {
                requests: self.rates.requests as f32,
                failures: self.rates.failures as f32,
                p50_ms: latency.map(|latency| latency.p50_ms as f32),
                p99_ms: latency.map(|latency| latency.p99_ms as f32),
                in_flight: u32::try_from(in_flight).unwrap_or(u32::MAX),
            });
        }
        if self.points.len() > SECONDS {
            self.points.pop_front();
        }
        self.recent.push_back((now, counts));
        if self.recent.len() > WINDOW + 1 {
            self.recent.pop_front();
        }
    }

    /// Rates over the last second and the last ten seconds.
    pub(super) fn rates(&self) -> Rates {
        self.rates.clone()
    }

    /// The last two minutes.
    pub(super) fn history(&self) -> History {
        History {
            requests: self.points.iter().map(|point| point.requests).collect(),
            failures: self.points.iter().map(|point| point.failures).collect(),
            p50_ms: self.points.iter().map(|point| point.p50_ms).collect(),
            p99_ms: self.points.iter().map(|point| point.p99_ms).collect(),
            in_flight: self.points.iter().map(|point| point.in_flight).collect(),
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
