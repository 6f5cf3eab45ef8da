//! The bounds of every number, for the manual.

use super::defaults::NumberRange;
use super::{
    AutoLimit, Buffering, Buffers, Cluster, Config, Ejection, HealthCheck, KernelAssists, Limits, Pool,
    Queue, Retry, Tracing,
};

/// The range of every number, by the dotted path of the map that it stands in, `NAME` for a cluster's name.
pub fn number_ranges() -> [(&'static str, &'static [NumberRange]); 13] {
    [
        ("", Config::RANGES),
        ("limits", Limits::RANGES),
        ("routes[]", Buffering::RANGES),
        ("buffers", Buffers::RANGES),
        ("tracing", Tracing::RANGES),
        ("kernel", KernelAssists::RANGES),
        ("clusters.NAME", Cluster::RANGES),
        ("clusters.NAME.pool", Pool::RANGES),
        ("clusters.NAME.retry", Retry::RANGES),
        ("clusters.NAME.ejection", Ejection::RANGES),
        ("clusters.NAME.health_check", HealthCheck::RANGES),
        ("clusters.NAME.auto_limit", AutoLimit::RANGES),
        ("clusters.NAME.queue", Queue::RANGES),
    ]
}
