//! What is read at a scrape and counted elsewhere: the state of endpoints and queues.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use sluice_ebpf::Counter;

use super::AcmeStatus;
use super::acme;
use super::encode::count;
use super::handshakes::{self, CertificateStatus};

/// An endpoint's state at the time of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    /// Its cluster's name.
    pub cluster: String,
    /// Its label, the same as in [`crate::record::ExchangeRecord::endpoint`].
    pub endpoint: String,
    /// Whether it is well.
    pub healthy: bool,
    /// Its share of the load, 0 while it is disabled.
    pub weight: u64,
    /// Exchanges and tunnels under way on it.
    pub in_flight: u64,
    /// Exchanges it may have under way now, if there is a limit.
    pub limit: Option<u64>,
}

/// The line of a cluster at the time of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStatus {
    /// Its cluster's name.
    pub cluster: String,
    /// Requests that wait.
    pub length: u64,
    /// Requests that have had to wait.
    pub entered: u64,
    /// Requests turned away because the line was full.
    pub full: u64,
    /// Requests that waited for too long.
    pub timed_out: u64,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Endpoints of every cluster.
    pub endpoints: Vec<EndpointStatus>,
    /// Queues of every cluster.
    pub queues: Vec<QueueStatus>,
    /// What the programs that join connections have counted, if they are loaded.
    pub bypass: Option<[u64; Counter::COUNT]>,
    /// How certificates are issued, where they are.
    pub acme: Option<AcmeStatus>,
    /// Certificates of every listener.
    pub certificates: Vec<CertificateStatus>,
}

/// What endpoints of one label have together.
#[derive(Default)]
struct Merged {
    healthy: bool,
    weight: u64,
    in_flight: u64,
    limit: Option<u64>,
}

impl Status {
    /// Endpoints by label; one listed twice is one series, healthy when either is.
    fn merged(&self) -> BTreeMap<(&str, &str), Merged> {
        let mut merged: BTreeMap<_, Merged> = BTreeMap::new();
        for status in &self.endpoints {
            let entry = merged.entry((status.cluster.as_str(), status.endpoint.as_str())).or_default();
            entry.healthy |= status.healthy;
            entry.weight = entry.weight.max(status.weight);
            entry.in_flight = entry.in_flight.saturating_add(status.in_flight);
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
            Ok(())
        };
        let help = "Whether an endpoint takes requests: it is neither ejected nor found unhealthy.";
        gauge("sluice_endpoint_healthy", help, |merged| Some(u64::from(merged.healthy)))?;
        let help =
            "Share of the load relative to the other endpoints of the cluster; 0 while it is disabled.";
        gauge("sluice_endpoint_weight", help, |merged| Some(merged.weight))?;
        let help = "Exchanges and tunnels under way on an endpoint.";
        gauge("sluice_endpoint_in_flight", help, |merged| Some(merged.in_flight))?;
        let help = "Exchanges that an endpoint may have under way, where there is a limit.";
        gauge("sluice_endpoint_limit", help, |merged| merged.limit)?;
        self.encode_queues(encoder)?;
        handshakes::encode(&self.certificates, encoder)?;
        self.acme.as_ref().map_or(Ok(()), |status| acme::encode(status, encoder))?;
        self.bypass.map_or(Ok(()), |counts| encode_bypass(&counts, encoder))
    }

    fn encode_queues(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let help = "Requests that wait in a cluster's line.";
        let mut family = encoder.encode_descriptor("sluice_queue_length", help, None, MetricType::Gauge)?;
        for queue in &self.queues {
            family.encode_family(&[("cluster", queue.cluster.as_str())])?.encode_gauge(&queue.length)?;
        }
        let help = "Requests that had to wait in a cluster's line.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("sluice_queue_entered", help, None, kind)?;
        for queue in &self.queues {
            count(&mut family.encode_family(&[("cluster", queue.cluster.as_str())])?, queue.entered)?;
        }
        let help =
            "Requests turned away by a cluster's line, because it was full or they waited for too long.";
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
    let help = "Ends that the kernel or a check kept from being joined.";
    counter("sluice_bypass_ends_refused", help, of(Counter::EndsRefused))?;
    let help = "Messages that went past TCP.";
    counter("sluice_bypass_messages", help, of(Counter::MessagesJoined))?;
    let help = "Bytes sent on joined connections, past TCP or by it.";
    let kind = MetricType::Counter;
    let mut family = encoder.encode_descriptor("sluice_bypass", help, Some(&Unit::Bytes), kind)?;
    for (by, counter) in [("joined", Counter::BytesJoined), ("tcp", Counter::BytesPassed)] {
        count(&mut family.encode_family(&[("by", by)])?, of(counter))?;
    }
    let help = "Memory of the pages that answers past sluice were gathered in, beyond their bytes.";
    let slack = of(Counter::SlackBytes);
    count(&mut encoder.encode_descriptor("sluice_bypass_slack", help, Some(&Unit::Bytes), kind)?, slack)?;
    let help = "Messages on joined connections that went by TCP, by reason.";
    let mut family = encoder.encode_descriptor("sluice_bypass_fallbacks", help, None, MetricType::Counter)?;
    for counter in Counter::FALLBACKS {
        count(&mut family.encode_family(&[("reason", counter.name())])?, of(*counter))?;
    }
    Ok(())
}
