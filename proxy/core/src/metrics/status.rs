//! State that is counted elsewhere and read at a scrape: endpoints and queues.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use sluice_ebpf::Counter;

use super::AcmeStatus;
use super::acme;
use super::caches::{self, CacheSize};
use super::discovery::{self, DiscoveryCounts};
use super::encode::count;
use super::fleet::{self, FleetStatus};
use super::handshakes::{self, CertificateStatus};
use super::limits;
use crate::bans::BanCounts;
use crate::rate_limit::RateLimitCounts;

/// An endpoint's state at the time of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Its cluster's name.
    pub cluster: String,
    /// Its label, the same as in [`crate::record::ExchangeRecord::endpoint`].
    pub endpoint: String,
    /// Whether it takes requests.
    pub healthy: bool,
    /// Its share of the load, 0 while it is disabled.
    pub weight: u64,
    /// Exchanges and tunnels under way on it.
    pub in_flight: u64,
    /// Connections that wait for it to accept them, if it listens on this host.
    pub accept_queue: Option<u64>,
    /// Time in which all its threads were busy, since it exists.
    pub saturated: Duration,
    /// Its current limit of exchanges under way, if there is a limit.
    pub limit: Option<u64>,
}

/// A cluster's queue at the time of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStatus {
    /// Its cluster's name.
    pub cluster: String,
    /// Requests in the queue.
    pub length: u64,
    /// Requests that were queued.
    pub entered: u64,
    /// Requests rejected because the queue was full.
    pub full: u64,
    /// Requests that timed out in the queue.
    pub timed_out: u64,
}

/// The whole state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Endpoints of every cluster.
    pub endpoints: Vec<EndpointStatus>,
    /// Queues of every cluster.
    pub queues: Vec<QueueStatus>,
    /// The sources of endpoints.
    pub discoveries: Vec<DiscoveryCounts>,
    /// The fleet, if this process is a member of one.
    pub fleet: Option<FleetStatus>,
    /// The counters of the eBPF programs that join connections, if they are loaded.
    pub bypass: Option<[u64; Counter::COUNT]>,
    /// The state of automatic certificates, if there are any.
    pub acme: Option<AcmeStatus>,
    /// Certificates of every listener.
    pub certificates: Vec<CertificateStatus>,
    /// Every rate limit that a route uses.
    pub limits: Vec<RateLimitCounts>,
    /// Every cache that a route uses.
    pub caches: Vec<CacheSize>,
    /// Banned addresses.
    pub bans: BanCounts,
}

/// The combined state of endpoints with the same label.
#[derive(Default)]
struct Merged {
    healthy: bool,
    weight: u64,
    in_flight: u64,
    accept_queue: Option<u64>,
    saturated: Duration,
    limit: Option<u64>,
}

impl Status {
    /// Endpoints by label; an endpoint listed twice is one series, healthy when either is.
    fn merged(&self) -> BTreeMap<(&str, &str), Merged> {
        let mut merged: BTreeMap<_, Merged> = BTreeMap::new();
        for status in &self.endpoints {
            let entry = merged.entry((status.cluster.as_str(), status.endpoint.as_str())).or_default();
            entry.healthy |= status.healthy;
            entry.weight = entry.weight.max(status.weight);
            entry.in_flight = entry.in_flight.saturating_add(status.in_flight);
            entry.accept_queue = entry.accept_queue.max(status.accept_queue);
            entry.saturated = entry.saturated.max(status.saturated);
            entry.limit = entry.limit.max(status.limit);
        }
        merged
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let endpoints = self.merged();
        let mut gauge = |name: &str, help: &str, value: fn(&Merged) -> Option<u64>| {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for ((cluster, endpoint), merged) in &endpoints {
                if let Some(value) = value(merged) {
                    let labels = [("cluster", *cluster), ("endpoint", *endpoint)];
                    family.encode_family(&labels)?.encode_gauge(&value)?;
                }
            }
            Ok::<(), fmt::Error>(())
        };
        let help = "Whether an endpoint takes requests: it is neither ejected nor unhealthy.";
        gauge("sluice_endpoint_healthy", help, |merged| Some(u64::from(merged.healthy)))?;
        let help =
            "Share of the load relative to the other endpoints of the cluster; 0 while it is disabled.";
        gauge("sluice_endpoint_weight", help, |merged| Some(merged.weight))?;
        let help = "Exchanges and tunnels in flight on an endpoint.";
        gauge("sluice_endpoint_in_flight", help, |merged| Some(merged.in_flight))?;
        let help = "Connections that an endpoint on this host has not accepted yet: its threads are busy.";
        gauge("sluice_endpoint_accept_queue", help, |merged| merged.accept_queue)?;
        let help = "Concurrency limit of an endpoint, if set.";
        gauge("sluice_endpoint_limit", help, |merged| merged.limit)?;
        let help = "Time during which all threads of an endpoint were busy: connections waited for accept, or its limit \
                    was reached.";
        let kind = MetricType::Counter;
        let mut family =
            encoder.encode_descriptor("sluice_endpoint_saturated", help, Some(&Unit::Seconds), kind)?;
        for ((cluster, endpoint), merged) in &endpoints {
            let labels = [("cluster", *cluster), ("endpoint", *endpoint)];
            let seconds = merged.saturated.as_secs_f64();
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, f64, f64>(&seconds, None)?;
        }
        self.encode_queues(encoder)?;
        limits::encode(&self.limits, self.bans, encoder)?;
        caches::encode(&self.caches, encoder)?;
        discovery::encode(&self.discoveries, encoder)?;
        fleet::encode(self.fleet, encoder)?;
        handshakes::encode(&self.certificates, encoder)?;
        self.acme.as_ref().map_or(Ok(()), |status| acme::encode(status, encoder))?;
        self.bypass.map_or(Ok(()), |counts| encode_bypass(&counts, encoder))
    }

    fn encode_queues(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Requests waiting in a cluster's queue.";
        let mut family = encoder.encode_descriptor("sluice_queue_length", help, None, MetricType::Gauge)?;
        for queue in &self.queues {
            family.encode_family(&[("cluster", queue.cluster.as_str())])?.encode_gauge(&queue.length)?;
        }
        let help = "Requests that had to wait in a cluster's queue.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_queue_entered", help, None, kind)?;
        for queue in &self.queues {
            count(&mut family.encode_family(&[("cluster", queue.cluster.as_str())])?, queue.entered)?;
        }
        let help = "Requests rejected by a cluster's queue because it was full or they waited too long.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_queue_rejected", help, None, kind)?;
        for queue in &self.queues {
            for (reason, n) in [("queue_full", queue.full), ("queue_timeout", queue.timed_out)] {
                let labels = [("cluster", queue.cluster.as_str()), ("reason", reason)];
                count(&mut family.encode_family(&labels)?, n)?;
            }
        }
        Ok(())
    }
}

fn encode_bypass(counts: &[u64; Counter::COUNT], encoder: &mut DescriptorEncoder) -> fmt::Result {
    let of = |counter: Counter| counts[counter as usize];
    let open = of(Counter::PairsJoined).saturating_sub(of(Counter::PairsClosed));
    let help = "Connections whose two ends are joined past loopback TCP.";
    encoder.encode_descriptor("sluice_bypass_pairs", help, None, MetricType::Gauge)?.encode_gauge(&open)?;
    let mut counter = |name: &str, help: &str, n: u64| {
        count(&mut encoder.encode_descriptor(name, help, None, MetricType::Counter)?, n)
    };
    counter("sluice_bypass_pairs_joined", "Connections joined so far.", of(Counter::PairsJoined))?;
    let help = "Sockets not joined because the kernel or a check refused.";
    counter("sluice_bypass_ends_refused", help, of(Counter::EndsRefused))?;
    let help = "Messages that bypassed TCP.";
    counter("sluice_bypass_messages", help, of(Counter::MessagesJoined))?;
    let help = "Bytes sent on joined connections, by whether they bypassed TCP.";
    let kind = MetricType::Counter;
    let mut family = encoder.encode_descriptor("sluice_bypass", help, Some(&Unit::Bytes), kind)?;
    for (by, counter) in [("joined", Counter::BytesJoined), ("tcp", Counter::BytesPassed)] {
        count(&mut family.encode_family(&[("by", by)])?, of(counter))?;
    }
    let help = "Bytes of memory pages that direct return allocated beyond the size of the responses.";
    let slack = of(Counter::SlackBytes);
    count(&mut encoder.encode_descriptor("sluice_bypass_slack", help, Some(&Unit::Bytes), kind)?, slack)?;
    let help = "Messages on joined connections that fell back to TCP, by reason.";
    let mut family = encoder.encode_descriptor("sluice_bypass_fallbacks", help, None, MetricType::Counter)?;
    for counter in Counter::FALLBACKS {
        count(&mut family.encode_family(&[("reason", counter.name())])?, of(*counter))?;
    }
    Ok(())
}
