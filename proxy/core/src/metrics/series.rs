//! The numbers of one (route, cluster, endpoint): requests by class, bytes, and durations.
//!
//! A `Series` belongs to one worker, and only that worker writes it; scrapes only read. A count is therefore a plain
//! load and store: no locked instruction, and no cache line shared by two writing cores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::recent::is_failure;
use crate::record::{BodyPath, ExchangeRecord};

/// Upper bounds of the histogram buckets, in microseconds; one more bucket counts larger values.
pub(super) const BOUNDS_US: [u64; 15] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000,
];

/// Status classes in the order of their counters. The last counts a status outside these classes.
pub(super) const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];

/// Adds to a counter that only the calling thread writes.
pub(super) fn bump(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// The labels that identify a series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Labels {
    pub(super) route: String,
    pub(super) cluster: String,
    pub(super) endpoint: String,
}

impl Labels {
    /// The labels of an exchange; `-` for what it did not reach.
    pub(super) fn of(record: &ExchangeRecord<'_>) -> Self {
        let (route, cluster, endpoint) = names(record);
        Self { route: route.into(), cluster: cluster.into(), endpoint: endpoint.into() }
    }

    /// The labels of everything beyond the limit of series.
    pub(super) fn other() -> Self {
        Self { route: "other".into(), cluster: "other".into(), endpoint: "other".into() }
    }

    /// Whether an exchange has these labels.
    pub(super) fn are_of(&self, record: &ExchangeRecord<'_>) -> bool {
        (self.route.as_str(), self.cluster.as_str(), self.endpoint.as_str()) == names(record)
    }
}

fn names<'a>(record: &ExchangeRecord<'a>) -> (&'a str, &'a str, &'a str) {
    (record.route.map_or("-", |r| r.1), record.cluster.unwrap_or("-"), record.endpoint.map_or("-", |e| e.1))
}

/// A histogram of durations.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    fn observe(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| bound.saturating_mul(1_000) < ns);
        bump(&self.buckets[bucket], 1);
        bump(&self.sum_ns, ns);
    }

    fn observe_some(&self, duration: Option<Duration>) {
        if let Some(duration) = duration {
            self.observe(duration);
        }
    }
}

/// One worker's numbers for one set of labels.
#[derive(Debug)]
pub(super) struct Series {
    pub(super) labels: Arc<Labels>,
    retired: AtomicBool,
    requests: [AtomicU64; CLASSES.len()],
    failed: AtomicU64,
    paths: [AtomicU64; BodyPath::ALL.len()],
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    duration: Histogram,
    queue: Histogram,
    connect: Histogram,
    upstream: Histogram,
    transfer: Histogram,
}

impl Series {
    pub(super) fn new(labels: Arc<Labels>) -> Self {
        Self {
            labels,
            retired: AtomicBool::new(false),
            requests: Default::default(),
            failed: AtomicU64::new(0),
            paths: Default::default(),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            duration: Histogram::default(),
            queue: Histogram::default(),
            connect: Histogram::default(),
            upstream: Histogram::default(),
            transfer: Histogram::default(),
        }
    }

    /// Marks the series as removed.
    pub(super) fn retire(&self) {
        self.retired.store(true, Relaxed);
    }

    /// Whether nothing more may be counted in it.
    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }

    /// Counts an exchange.
    pub(super) fn record(&self, record: &ExchangeRecord<'_>) {
        if let Some(path) = record.path {
            bump(&self.paths[path as usize], 1);
        }
        if is_failure(record) {
            bump(&self.failed, 1);
        }
        let class = match record.status {
            100..=599 => usize::from(record.status / 100) - 1,
            _ => CLASSES.len() - 1,
        };
        bump(&self.requests[class], 1);
        bump(&self.bytes_in, record.bytes_in);
        bump(&self.bytes_out, record.bytes_out);
        self.duration.observe(record.duration);
        self.queue.observe_some(record.queue);
        self.connect.observe_some(record.connect);
        self.upstream.observe_some(record.upstream);
        self.transfer.observe_some(record.transfer);
    }
}

/// A histogram summed over workers.
#[derive(Debug, Default)]
pub(super) struct HistogramTotal {
    buckets: [u64; BOUNDS_US.len() + 1],
    sum_ns: u64,
}

impl HistogramTotal {
    fn add(&mut self, histogram: &Histogram) {
        for (total, bucket) in self.buckets.iter_mut().zip(&histogram.buckets) {
            *total += bucket.load(Relaxed);
        }
        self.sum_ns = self.sum_ns.wrapping_add(histogram.sum_ns.load(Relaxed));
    }

    /// Sum in seconds.
    pub(super) fn sum(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// Number of observations: the sum of the buckets, so that count and `+Inf` agree in every scrape.
    pub(super) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The count of every bucket, not cumulative.
    pub(super) fn counts(&self) -> [u64; BOUNDS_US.len() + 1] {
        self.buckets
    }

    /// The upper bound in seconds and the count of every bucket, not cumulative.
    pub(super) fn buckets(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::INFINITY]);
        bounds.zip(self.buckets).collect()
    }
}

/// A series summed over workers.
#[derive(Debug, Default)]
pub(super) struct Total {
    pub(super) requests: [u64; CLASSES.len()],
    pub(super) failed: u64,
    pub(super) paths: [u64; BodyPath::ALL.len()],
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) duration: HistogramTotal,
    pub(super) queue: HistogramTotal,
    pub(super) connect: HistogramTotal,
    pub(super) upstream: HistogramTotal,
    pub(super) transfer: HistogramTotal,
}

impl Total {
    pub(super) fn add(&mut self, series: &Series) {
        for (total, counter) in self.requests.iter_mut().zip(&series.requests) {
            *total += counter.load(Relaxed);
        }
        for (total, counter) in self.paths.iter_mut().zip(&series.paths) {
            *total += counter.load(Relaxed);
        }
        self.failed = self.failed.wrapping_add(series.failed.load(Relaxed));
        self.bytes_in = self.bytes_in.wrapping_add(series.bytes_in.load(Relaxed));
        self.bytes_out = self.bytes_out.wrapping_add(series.bytes_out.load(Relaxed));
        self.duration.add(&series.duration);
        self.queue.add(&series.queue);
        self.connect.add(&series.connect);
        self.upstream.add(&series.upstream);
        self.transfer.add(&series.transfer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket_of(duration: Duration) -> f64 {
        let histogram = Histogram::default();
        histogram.observe(duration);
        let mut total = HistogramTotal::default();
        total.add(&histogram);
        assert_eq!(total.count(), 1);
        total.buckets().iter().find(|(_, n)| *n == 1).expect("one bucket counts the observation").0
    }

    #[test]
    fn a_bound_is_counted_in_its_own_bucket() {
        assert_eq!(bucket_of(Duration::ZERO), 0.0005);
        assert_eq!(bucket_of(Duration::from_micros(500)), 0.0005);
        assert_eq!(bucket_of(Duration::from_nanos(500_001)), 0.001);
        assert_eq!(bucket_of(Duration::from_secs(30)), 30.0);
        assert_eq!(bucket_of(Duration::from_secs(31)), f64::INFINITY);
        assert_eq!(bucket_of(Duration::MAX), f64::INFINITY);
    }

    #[test]
    fn every_status_has_a_class() {
        let series = Series::new(Arc::new(Labels::other()));
        for status in [0, 99, 100, 204, 301, 499, 599, 600, u16::MAX] {
            series.record(&ExchangeRecord { status, ..ExchangeRecord::sample() });
        }
        let mut total = Total::default();
        total.add(&series);
        assert_eq!(total.requests, [1, 1, 1, 1, 1, 4]);
    }
}
