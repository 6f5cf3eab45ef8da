//! The counters as plain numbers at one moment, to display their change: the status page.
//!
//! Summed over routes; separate by cluster and endpoint.

use std::collections::BTreeMap;

use super::series::{BOUNDS_US, CLASSES, Total};
use super::{Event, Metrics};
use crate::record::BodyPath;

/// Buckets of a latency histogram; the last counts values above every bound.
const BUCKETS: usize = BOUNDS_US.len() + 1;

/// All counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// By cluster, then by endpoint; either is `-` if an exchange did not reach one.
    pub clusters: BTreeMap<String, BTreeMap<String, Counts>>,
    /// Downstream connections open.
    pub downstream_open: u64,
    /// Upstream connections open, including idle ones.
    pub upstream_open: u64,
    /// Tunnels open.
    pub tunnels_open: u64,
    /// Workers that are batch threads now.
    pub batch_workers: u64,
    /// Exchanges ended since the start.
    pub requests: u64,
    /// The same by status code; codes that did not occur are absent.
    pub codes: BTreeMap<u16, u64>,
    /// Exchanges ended since the start by the client's version of HTTP; versions that did not occur are absent.
    pub protocols: BTreeMap<&'static str, u64>,
    /// Attempts beyond the first since the start.
    pub retries: u64,
    /// Panics since the start.
    pub panics: u64,
}

/// Counts of exchanges that only grow. The difference of two values is what happened in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Exchanges ended, by status class in the order of `CLASSES`.
    pub(crate) classes: [u64; CLASSES.len()],
    /// Exchanges that failed through the origin's or sluice's fault, or got a 5xx response.
    pub failed: u64,
    /// Body bytes read from clients.
    pub bytes_in: u64,
    /// Bytes written to clients.
    pub bytes_out: u64,
    /// Exchanges by the path of their bytes, in the order of [`BodyPath::ALL`].
    pub paths: [u64; BodyPath::ALL.len()],
    /// Exchanges by duration.
    buckets: [u64; BUCKETS],
}

impl Counts {
    /// Number of exchanges.
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// Exchanges by status class, from 1xx to 5xx.
    pub fn by_class(&self) -> [u64; 5] {
        std::array::from_fn(|class| self.classes[class])
    }

    /// Adds the counts of another.
    pub fn add(&mut self, other: &Self) {
        self.combine(other, u64::wrapping_add);
    }

    /// The increase since `earlier`. Never below zero: a worker may count while it is read.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut difference = self.clone();
        difference.combine(earlier, u64::saturating_sub);
        difference
    }

    fn combine(&mut self, other: &Self, with: fn(u64, u64) -> u64) {
        let each = |mine: &mut [u64], theirs: &[u64]| {
            mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| *mine = with(*mine, *theirs));
        };
        each(&mut self.classes, &other.classes);
        each(&mut self.paths, &other.paths);
        each(&mut self.buckets, &other.buckets);
        self.failed = with(self.failed, other.failed);
        self.bytes_in = with(self.bytes_in, other.bytes_in);
        self.bytes_out = with(self.bytes_out, other.bytes_out);
    }

    /// An upper bound in milliseconds for the duration of `share` (0 to 1) of the exchanges; `None` without exchanges.
    /// It is an estimate that assumes an even distribution within a bucket. Above the last bound it is that bound.
    pub fn percentile_ms(&self, share: f64) -> Option<f64> {
        let all: u64 = self.buckets.iter().sum();
        if all == 0 {
            return None;
        }
        let wanted = (all as f64 * share).max(1.0);
        let mut below = 0.0;
        let mut low = 0.0;
        for (index, n) in self.buckets.iter().enumerate() {
            let Some(high) = BOUNDS_US.get(index).map(|us| *us as f64 / 1e3) else { break };
            let n = *n as f64;
            if below + n >= wanted {
                return Some(low + (high - low) * (wanted - below) / n);
            }
            below += n;
            low = high;
        }
        Some(low)
    }

    pub(super) fn of(total: &Total) -> Self {
        Self {
            classes: total.requests,
            failed: total.failed,
            bytes_in: total.bytes_in,
            bytes_out: total.bytes_out,
            paths: total.paths,
            buckets: total.duration.counts(),
        }
    }
}

impl Metrics {
    /// The current counters, summed over workers.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally {
            downstream_open: self.state.sum_open(Event::DownstreamAccepted, Event::DownstreamClosed),
            upstream_open: self.state.sum_open(Event::UpstreamOpened, Event::UpstreamClosed),
            tunnels_open: self.state.sum_open(Event::TunnelOpened, Event::TunnelClosed),
            batch_workers: self.state.sum_open(Event::BatchBegun, Event::BatchEnded),
            codes: self.state.sum_codes(),
            protocols: self.state.sum_protocols(),
            retries: self.state.sum_retries(),
            panics: self.panics(),
            ..Tally::default()
        };
        self.state.retire();
        for (labels, total) in self.state.sum_series() {
            let counts = Counts::of(&total);
            tally.requests += counts.requests();
            let cluster = tally.clusters.entry(labels.cluster.clone()).or_default();
            cluster.entry(labels.endpoint.clone()).or_default().add(&counts);
        }
        self.state.add_retired(&mut tally);
        tally
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::Reason;
    use crate::record::ExchangeRecord;
    use std::time::Duration;

    #[test]
    fn routes_and_workers_are_summed_and_failures_are_counted() {
        let metrics = Metrics::new();
        for worker in [metrics.add_worker(), metrics.add_worker()] {
            for (route, status, reason) in [
                ((0, "a"), 200, None),
                ((1, "b"), 502, Some(Reason::ConnectRefused)),
                ((1, "b"), 200, Some(Reason::ResponseTruncated)),
                ((1, "b"), 499, Some(Reason::ClientGone)),
            ] {
                let route = Some(route);
                worker.record(&ExchangeRecord { route, status, reason, ..ExchangeRecord::sample() });
            }
        }
        let tally = metrics.tally();
        let counts = &tally.clusters["puma"]["127.0.0.1:3000"];
        assert_eq!((counts.requests(), counts.failed), (8, 4), "a client that disconnects is not a failure");
        assert_eq!(counts.paths, [8, 0, 0, 0]);
        assert_eq!(tally.requests, 8);
        assert_eq!(tally.codes, BTreeMap::from([(200, 4), (499, 2), (502, 2)]));
        assert_eq!(counts.since(counts), Counts::default());
        assert_eq!(Counts::default().since(counts), Counts::default(), "never below zero");
    }

    #[test]
    fn percentiles_lie_within_their_bucket() {
        let metrics = Metrics::new();
        let worker = metrics.add_worker();
        for ms in [3, 3, 3, 3, 3, 3, 3, 3, 3, 80] {
            let duration = Duration::from_millis(ms);
            worker.record(&ExchangeRecord { duration, ..ExchangeRecord::sample() });
        }
        let tally = metrics.tally();
        let counts = &tally.clusters["puma"]["127.0.0.1:3000"];
        let at = |share| counts.percentile_ms(share).unwrap();
        assert!((2.5..=5.0).contains(&at(0.5)), "{}", at(0.5));
        assert!((50.0..=100.0).contains(&at(0.99)), "{}", at(0.99));
        assert_eq!(Counts::default().percentile_ms(0.5), None);
        let duration = Duration::from_secs(99);
        worker.record(&ExchangeRecord { duration, ..ExchangeRecord::sample() });
        let tally = metrics.tally();
        assert_eq!(tally.clusters["puma"]["127.0.0.1:3000"].percentile_ms(1.0), Some(30_000.0));
    }
}
