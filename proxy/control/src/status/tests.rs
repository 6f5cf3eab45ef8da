//! The document from simulated counters.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config as config;
use sluice_core::cluster::{Cluster, EndpointAddress, Seed};
use sluice_core::error::Reason;
use sluice_core::metrics::{Metrics, WorkerRecorder};
use sluice_core::record::ExchangeRecord;

use super::document::{Document, Fixed};
use super::history::SECONDS;
use super::live::{Live, Sources};
use super::sampler::{Sample, Sampler};

const LABEL: &str = "127.0.0.1:3000";

/// A cluster named `puma`.
pub(crate) fn cluster() -> Arc<Cluster> {
    let seed = Seed {
        address: EndpointAddress::Ip(LABEL.parse().unwrap()),
        host: LABEL.to_owned(),
        weight: 3,
        max_in_flight: None,
        bypass: None,
        is_backup: false,
    };
    Arc::new(Cluster::new("puma", config::Cluster::default(), vec![seed]))
}

/// A document of that cluster.
pub(crate) fn live(metrics: Arc<Metrics>) -> Arc<Live> {
    let cluster = cluster();
    Live::new(Sources {
        metrics,
        draining: Arc::default(),
        clusters: Box::new(move || vec![Arc::clone(&cluster)]),
        fleet: None,
        fixed: Box::new(|| Fixed { version: "1".to_owned(), ..Fixed::default() }),
    })
}

struct Rig {
    metrics: Arc<Metrics>,
    worker: WorkerRecorder,
    cluster: Arc<Cluster>,
    sampler: Sampler,
    begun: Instant,
    seconds: u64,
}

impl Rig {
    fn new() -> Self {
        let metrics = Metrics::new();
        let begun = Instant::now();
        let (worker, sampler) = (metrics.add_worker(), Sampler::new(begun));
        let mut rig = Self { metrics, worker, cluster: cluster(), sampler, begun, seconds: 0 };
        rig.second();
        rig
    }

    fn serve(&self, n: usize, status: u16, ms: u64, reason: Option<Reason>) {
        for _ in 0..n {
            let duration = Duration::from_millis(ms);
            self.worker.record(&ExchangeRecord { status, duration, reason, ..ExchangeRecord::sample() });
        }
    }

    /// Simulates one second.
    fn second(&mut self) -> Document {
        self.seconds += 1;
        self.sampler.take(Sample {
            now: self.begun + Duration::from_secs(self.seconds),
            now_ms: 0,
            time_ms: self.seconds * 1000,
            draining: false,
            tally: self.metrics.tally(),
            errors: self.metrics.recent_errors(),
            fleet: None,
            clusters: vec![Arc::clone(&self.cluster)],
        });
        self.sampler.whole(Fixed::default())
    }
}

#[test]
fn rates_cover_the_last_second() {
    let mut rig = Rig::new();
    rig.serve(40, 200, 3, None);
    rig.serve(10, 502, 80, Some(Reason::ConnectRefused));
    let document = rig.second();
    let endpoint = &document.clusters[0].endpoints[0];
    assert_eq!((endpoint.rates.requests, endpoint.rates.failures), (50.0, 10.0));
    assert_eq!(endpoint.rates.error_share_10s, Some(0.2));
    assert_eq!((endpoint.rates.paths.copy, endpoint.rates.paths.direct), (50.0, 0.0));
    assert_eq!(endpoint.rates.bytes_out, 50.0 * 512.0);
    let latency = endpoint.rates.latency.unwrap();
    assert!((2.5..=5.0).contains(&latency.p50_ms) && (50.0..=100.0).contains(&latency.p99_ms));
    assert_eq!((endpoint.label.as_str(), endpoint.weight, endpoint.limit), (LABEL, 3, None));
    assert_eq!(document.clusters[0].rates, endpoint.rates);
    assert_eq!((document.totals.requests, &document.totals.rates), (50, &endpoint.rates));
    let error = &document.errors[0];
    assert_eq!((error.reason.as_deref(), error.endpoint.as_deref()), (Some("connect_refused"), Some(LABEL)));

    let document = rig.second();
    let rates = &document.clusters[0].endpoints[0].rates;
    assert_eq!((rates.requests, rates.latency), (0.0, None), "a quiet second");
    assert_eq!(rates.latency_10s, Some(latency), "the longer window still contains them");
    for _ in 0..10 {
        rig.second();
    }
    assert_eq!(rig.second().totals.rates.error_share_10s, None, "they have left the window");
}

#[test]
fn exchanges_without_endpoint_count_for_the_cluster() {
    let mut rig = Rig::new();
    let reason = Some(Reason::QueueFull);
    rig.worker.record(&ExchangeRecord { endpoint: None, status: 503, reason, ..ExchangeRecord::sample() });
    let (cluster, endpoint) = (None, None);
    rig.worker.record(&ExchangeRecord { cluster, endpoint, status: 404, ..ExchangeRecord::sample() });
    let document = rig.second();
    let cluster = &document.clusters[0];
    assert_eq!((cluster.endpoints[0].rates.requests, cluster.rates.requests), (0.0, 1.0));
    assert_eq!(document.totals.rates.requests, 2.0);
}

#[test]
fn codes_and_classes_are_counted() {
    let mut rig = Rig::new();
    rig.serve(30, 200, 1, None);
    rig.serve(2, 404, 1, None);
    let document = rig.second();
    let classes = document.totals.rates.classes.clone();
    assert_eq!((classes.success, classes.client_error, classes.server_error), (30.0, 2.0, 0.0));
    rig.serve(10, 503, 1, None);
    rig.second();
    let document = rig.second();
    let codes: Vec<_> = document.totals.codes.iter().map(|code| (code.code, code.count)).collect();
    assert_eq!(codes, [(200, 30), (404, 2), (503, 10)]);
    let protocols = &document.totals.protocols;
    assert_eq!((protocols.len(), &*protocols[0].protocol, protocols[0].count), (1, "HTTP/1.1", 42));
    assert_eq!(document.totals.codes[0].rate_10s, 10.0, "over the three seconds since the first sample");
    let history = document.totals.history.unwrap();
    let classes = history.classes.unwrap();
    assert_eq!((classes.success, classes.server_error), (vec![30.0, 0.0, 0.0], vec![0.0, 10.0, 0.0]));
    assert_eq!((history.queued.len(), history.requests.len()), (3, 3));
    let cluster = &document.clusters[0];
    assert_eq!(cluster.history.as_ref().unwrap().queued, [0, 0, 0]);
    assert_eq!(cluster.endpoints[0].history.as_ref().unwrap().queued, [] as [u32; 0]);
}

#[test]
fn history_is_limited_and_ends_with_its_endpoint() {
    let mut rig = Rig::new();
    for _ in 0..SECONDS + 20 {
        rig.serve(2, 200, 1, None);
        rig.second();
    }
    let document = rig.second();
    let history = document.clusters[0].endpoints[0].history.clone().unwrap();
    assert_eq!((history.requests.len(), history.p99_ms.len()), (SECONDS, SECONDS));
    assert_eq!((history.requests[0], *history.requests.last().unwrap()), (2.0, 0.0));
    assert_eq!(*history.p50_ms.last().unwrap(), None);

    rig.cluster.replace_endpoints(Vec::new());
    assert!(rig.second().clusters[0].endpoints.is_empty());
    rig.cluster = cluster();
    let document = rig.second();
    assert_eq!(document.clusters[0].endpoints[0].history.as_ref().unwrap().requests.len(), 0);
}

#[test]
fn a_change_omits_what_readers_have() {
    let mut rig = Rig::new();
    let whole = rig.second();
    let changed = serde_json::to_value(rig.sampler.changed()).unwrap();
    assert!(changed.get("fixed").is_none() && changed["totals"].get("history").is_none());
    let read: Document = serde_json::from_value(serde_json::to_value(&whole).unwrap()).unwrap();
    assert_eq!(read, whole, "what is written can be read");
}
