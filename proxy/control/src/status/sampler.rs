//! Computes the document from the counters of each second. Time and counters are passed in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sluice_core::cluster::{self, balance_word};
use sluice_core::metrics::{Counts, Tally};

use super::document::{
    Classes, Cluster, Code, Document, Endpoint, Fixed, History, ProtocolShare, Queue, RecentError, SCHEMA,
    Totals,
};
use super::history::{CountTrack, Past, Track};
use crate::fleet::FleetView;

/// Maximum number of tracked endpoints over all clusters; about 5 KB each.
const ENDPOINTS_MAX: usize = 1000;

/// One sample.
pub(crate) struct Sample {
    /// When.
    pub(crate) now: Instant,
    /// The same on the process's clock, which ejections use.
    pub(crate) now_ms: u64,
    /// The same in milliseconds of Unix time.
    pub(crate) time_ms: u64,
    /// Whether a drain has started.
    pub(crate) draining: bool,
    /// The counters.
    pub(crate) tally: Tally,
    /// The last failures, and how many were not recorded.
    pub(crate) errors: (Vec<RecentError>, u64),
    /// The current clusters.
    pub(crate) clusters: Vec<Arc<cluster::Cluster>>,
    /// The fleet, if there is one.
    pub(crate) fleet: Option<FleetView>,
}

/// Keeps the previous samples.
pub(crate) struct Sampler {
    started: Instant,
    all: TotalTrack,
    clusters: BTreeMap<String, ClusterTrack>,
    /// Without histories, which are kept in the tracks.
    current: Document,
}

#[derive(Default)]
struct TotalTrack {
    whole: Track,
    classes: Past<[f32; 5]>,
    queued: Past<u32>,
    codes: CountTrack<u16>,
    protocols: CountTrack<&'static str>,
}

impl TotalTrack {
    fn history(&self) -> History {
        let class = |index: usize| self.classes.list(|classes| classes[index]);
        let classes = Some(Classes::from(std::array::from_fn(class)));
        History { classes, queued: self.queued.list(|queued| queued), ..self.whole.history() }
    }
}

#[derive(Default)]
struct ClusterTrack {
    whole: Track,
    queued: Past<u32>,
    endpoints: BTreeMap<String, Track>,
}

impl Sampler {
    /// An empty sampler.
    pub(crate) fn new(started: Instant) -> Self {
        let current = Document { schema: SCHEMA, state: "serving".to_owned(), ..Document::default() };
        Self { started, all: TotalTrack::default(), clusters: BTreeMap::new(), current }
    }

    /// Adds one sample; samples should be a second apart.
    pub(crate) fn take(&mut self, sample: Sample) {
        let mut past = std::mem::take(&mut self.clusters);
        let mut room = ENDPOINTS_MAX;
        let mut left_out = 0;
        let clusters = sample.clusters.iter().map(|cluster| {
            let mut track = past.remove(&cluster.name).unwrap_or_default();
            let shown = cluster_now(cluster, &mut track, &sample, &mut room, &mut left_out);
            self.clusters.insert(cluster.name.clone(), track);
            shown
        });
        let clusters: Vec<Cluster> = clusters.collect();
        self.current = Document {
            schema: SCHEMA,
            time_ms: sample.time_ms,
            uptime_s: sample.now.saturating_duration_since(self.started).as_secs(),
            state: if sample.draining { "draining" } else { "serving" }.to_owned(),
            fixed: None,
            fleet: sample.fleet.clone(),
            totals: totals(&mut self.all, &sample, &clusters),
            clusters,
            endpoints_left_out: left_out,
            errors: sample.errors.0,
            errors_left_out: sample.errors.1,
        };
    }

    /// What changed with the last sample.
    pub(crate) fn changed(&self) -> &Document {
        &self.current
    }

    /// The whole document.
    pub(crate) fn whole(&self, fixed: Fixed) -> Document {
        let mut document = self.current.clone();
        document.fixed = Some(fixed);
        document.totals.history = Some(self.all.history());
        for cluster in &mut document.clusters {
            let Some(track) = self.clusters.get(&cluster.name) else { continue };
            let queued = track.queued.list(|queued| queued);
            cluster.history = Some(History { queued, ..track.whole.history() });
            for endpoint in &mut cluster.endpoints {
                let history = track.endpoints.get(&endpoint.label).map(Track::history);
                endpoint.history = Some(history.unwrap_or_else(History::default));
            }
        }
        document
    }
}

fn cluster_now(
    cluster: &cluster::Cluster,
    track: &mut ClusterTrack,
    sample: &Sample,
    room: &mut usize,
    left_out: &mut usize,
) -> Cluster {
    let counted = sample.tally.clusters.get(&cluster.name);
    let list = cluster.endpoints();
    let mut past = std::mem::take(&mut track.endpoints);
    let shown = list.iter().take(*room).map(|endpoint| {
        let counts = counted.and_then(|all| all.get(&endpoint.label)).cloned().unwrap_or_default();
        let mut track_of_one = past.remove(&endpoint.label).unwrap_or_default();
        track_of_one.push(sample.now, counts, endpoint.in_flight().into());
        let shown = endpoint_now(endpoint, &track_of_one, sample.now_ms);
        track.endpoints.insert(endpoint.label.clone(), track_of_one);
        shown
    });
    let endpoints: Vec<Endpoint> = shown.collect();
    *room -= endpoints.len();
    *left_out += list.len() - endpoints.len();
    let in_flight = list.iter().map(|endpoint| u64::from(endpoint.in_flight())).sum();
    let queue = cluster.queue_counts();
    if track.whole.push(sample.now, counted.map(sum).unwrap_or_default(), in_flight) {
        track.queued.push(u32::try_from(queue.length).unwrap_or(u32::MAX));
    }
    Cluster {
        name: cluster.name.clone(),
        balance: balance_word(&cluster.config.balance).to_owned(),
        in_flight,
        queue: Queue {
            length: queue.length as u64,
            length_max: cluster.config.queue.max_length as u64,
            entered: queue.entered,
            full: queue.full,
            timed_out: queue.timed_out,
        },
        source: cluster.config.discover.as_ref().map(|_| cluster.discovery().snapshot().to_string()),
        rates: track.whole.rates(),
        history: None,
        endpoints,
    }
}

fn endpoint_now(endpoint: &cluster::Endpoint, track: &Track, now_ms: u64) -> Endpoint {
    let limit = endpoint.limit_now();
    Endpoint {
        label: endpoint.label.clone(),
        disabled: endpoint.is_disabled(),
        health: endpoint.health(now_ms).word().to_owned(),
        last_check: endpoint.last_check().map(|check| check.outcome),
        weight: endpoint.weight(),
        in_flight: endpoint.in_flight().into(),
        tunnels: endpoint.tunnels().into(),
        limit: (limit != u32::MAX).then_some(limit.into()),
        failures: endpoint.failures(),
        rates: track.rates(),
        history: None,
    }
}

fn totals(track: &mut TotalTrack, sample: &Sample, clusters: &[Cluster]) -> Totals {
    let tally = &sample.tally;
    let in_flight = clusters.iter().map(|cluster| cluster.in_flight).sum();
    let mut counts = Counts::default();
    tally.clusters.values().for_each(|cluster| counts.add(&sum(cluster)));
    let queued = clusters.iter().map(|cluster| cluster.queue.length).sum();
    if track.whole.push(sample.now, counts, in_flight) {
        let Classes { informational, success, redirection, client_error, server_error } =
            track.whole.rates().classes;
        let classes = [informational, success, redirection, client_error, server_error];
        track.classes.push(classes.map(|rate| rate as f32));
        track.queued.push(u32::try_from(queued).unwrap_or(u32::MAX));
    }
    track.codes.push(sample.now, tally.codes.clone());
    track.protocols.push(sample.now, tally.protocols.clone());
    let code = |(code, count, rate_10s)| Code { code, count, rate_10s };
    let protocol = |(protocol, count, rate_10s): (&str, _, _)| ProtocolShare {
        protocol: protocol.to_owned(),
        count,
        rate_10s,
    };
    Totals {
        requests: tally.requests,
        retries: tally.retries,
        panics: tally.panics,
        downstream_open: tally.downstream_open,
        upstream_open: tally.upstream_open,
        tunnels_open: tally.tunnels_open,
        batch_workers: tally.batch_workers,
        in_flight,
        queued,
        rates: track.whole.rates(),
        codes: track.codes.rates().into_iter().map(code).collect(),
        protocols: track.protocols.rates().into_iter().map(protocol).collect(),
        history: None,
    }
}

fn sum(endpoints: &BTreeMap<String, Counts>) -> Counts {
    let mut all = Counts::default();
    endpoints.values().for_each(|counts| all.add(counts));
    all
}
