//! Metrics of the fleet that this process is a member of.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

/// The fleet at the time of a scrape, as this member sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetStatus {
    /// Whether the store cannot be reached.
    pub is_failing: bool,
    /// The version of the services that this member serves.
    pub version: u64,
    /// Services that it cannot serve as the fleet has them.
    pub failed: u64,
}

pub(super) fn encode(fleet: Option<FleetStatus>, encoder: &mut DescriptorEncoder) -> fmt::Result {
    let Some(fleet) = fleet else { return Ok(()) };
    let mut gauge = |name: &str, help: &str, value: u64| {
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    };
    let help = "Whether the store of the fleet cannot be reached: what was last known is served.";
    gauge("sluice_store_failing", help, u64::from(fleet.is_failing))?;
    let help = "The version of the services of the fleet that this member serves.";
    gauge("sluice_fleet_version", help, fleet.version)?;
    let help = "Services that this member cannot serve as the fleet has them.";
    gauge("sluice_fleet_services_failed", help, fleet.failed)
}
