//! Metrics of the sources of endpoints.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::encode::count;
use crate::cluster::DiscoverySnapshot;

/// The source of a cluster at the time of a scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryCounts {
    /// Its cluster's name.
    pub cluster: String,
    /// What was seen of it.
    pub seen: DiscoverySnapshot,
}

pub(super) fn encode(sources: &[DiscoveryCounts], encoder: &mut DescriptorEncoder) -> fmt::Result {
    if sources.is_empty() {
        return Ok(());
    }
    let mut gauge = |name: &str, help: &str, unit: Option<&Unit>, value: fn(&DiscoverySnapshot) -> u64| {
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
        for source in sources {
            let labels = [("cluster", source.cluster.as_str())];
            family.encode_family(&labels)?.encode_gauge(&value(&source.seen))?;
        }
        Ok::<(), fmt::Error>(())
    };
    let help = "Endpoints of the last list that was used.";
    gauge("sluice_discovery_endpoints", help, None, |seen| seen.found)?;
    let help = "Whether the source of endpoints fails: the last known are used.";
    gauge("sluice_discovery_failing", help, None, |seen| u64::from(seen.is_failing))?;
    let help = "Whether the last list of endpoints is not believed: the last known are used.";
    gauge("sluice_discovery_doubted", help, None, |seen| u64::from(seen.doubt.is_some()))?;
    let help = "When the source of endpoints answered last, in seconds of Unix time; 0 if it never has.";
    gauge("sluice_discovery_answered_timestamp", help, Some(&Unit::Seconds), |seen| seen.answered_unix_s)?;
    let mut counter = |name: &str, help: &str, value: fn(&DiscoverySnapshot) -> u64| {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for source in sources {
            count(&mut family.encode_family(&[("cluster", source.cluster.as_str())])?, value(&source.seen))?;
        }
        Ok::<(), fmt::Error>(())
    };
    counter("sluice_discovery_updates", "Lists of endpoints that changed something.", |seen| seen.updates)?;
    counter("sluice_discovery_failures", "Attempts to find endpoints that failed.", |seen| seen.failures)?;
    counter("sluice_discovery_doubts", "How often a source began to be doubted.", |seen| seen.refused)
}
