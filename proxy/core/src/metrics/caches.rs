//! Metrics of caches.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

/// What a cache holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSize {
    /// Its name.
    pub name: String,
    /// Bytes of memory.
    pub bytes: u64,
    /// URLs of which it knows something.
    pub resources: u64,
}

pub(super) fn encode(caches: &[CacheSize], encoder: &mut DescriptorEncoder) -> fmt::Result {
    if caches.is_empty() {
        return Ok(());
    }
    let kind = MetricType::Gauge;
    let help = "Bytes that a cache holds in memory.";
    let mut family = encoder.encode_descriptor("sluice_cache", help, Some(&Unit::Bytes), kind)?;
    for cache in caches {
        family.encode_family(&[("cache", cache.name.as_str())])?.encode_gauge(&cache.bytes)?;
    }
    let help = "URLs of which a cache knows something.";
    let mut family = encoder.encode_descriptor("sluice_cache_resources", help, None, kind)?;
    for cache in caches {
        family.encode_family(&[("cache", cache.name.as_str())])?.encode_gauge(&cache.resources)?;
    }
    Ok(())
}
