//! What goes through this process, for the other members of its fleet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_core::metrics::{Counts, Metrics};
use sluice_engine::snapshot::Live;

use super::history::Track;
use crate::fleet::{Fleet, Traffic};

/// Between two reports: each is a write in the store.
const PERIOD: Duration = Duration::from_secs(5);

/// Counts what goes through.
pub(crate) struct TrafficTrack {
    metrics: Arc<Metrics>,
    live: Live,
}

impl TrafficTrack {
    /// Of these counters and clusters.
    pub(crate) fn new(metrics: Arc<Metrics>, live: Live) -> Self {
        Self { metrics, live }
    }

    /// Reports without end.
    pub(crate) async fn run(self, fleet: &Fleet) {
        let mut track = Track::default();
        loop {
            let in_flight = self.in_flight();
            let mut counts = Counts::default();
            let tally = self.metrics.tally();
            tally.clusters.values().flat_map(|endpoints| endpoints.values()).for_each(|one| counts.add(one));
            track.push(Instant::now(), counts, in_flight);
            let rates = track.rates();
            let p99_ms = rates.latency.map(|latency| latency.p99_ms);
            let traffic = Traffic { requests: rates.requests, failures: rates.failures, in_flight, p99_ms };
            fleet.say(|report| report.traffic = traffic);
            tokio::time::sleep(PERIOD).await;
        }
    }

    fn in_flight(&self) -> u64 {
        let live = self.live.load();
        let endpoints = live.clusters.values().flat_map(|cluster| cluster.endpoints().to_vec());
        endpoints.map(|endpoint| u64::from(endpoint.in_flight())).sum()
    }
}
