//! Metrics of caches.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
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
    /// What it has on its disk; `None` if it has none.
    pub disk: Option<CacheDiskStatus>,
}

/// What a cache has on its disk, and what has happened there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheDiskStatus {
    /// Bytes of all files.
    pub bytes: u64,
    /// How many files there are.
    pub files: u64,
    /// Events since the start: read, written, damaged, failed.
    pub events: [u64; 4],
}

/// The events of a disk, in their order.
const EVENTS: [&str; 4] = ["read", "written", "damaged", "failed"];

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
    let disks: Vec<_> = caches.iter().filter_map(|cache| Some((cache.name.as_str(), cache.disk?))).collect();
    encode_disks(&disks, encoder)
}

fn encode_disks(disks: &[(&str, CacheDiskStatus)], encoder: &mut DescriptorEncoder) -> fmt::Result {
    if disks.is_empty() {
        return Ok(());
    }
    let help = "Bytes of the files of a cache.";
    let mut family =
        encoder.encode_descriptor("sluice_cache_disk", help, Some(&Unit::Bytes), MetricType::Gauge)?;
    for (name, disk) in disks {
        family.encode_family(&[("cache", *name)])?.encode_gauge(&disk.bytes)?;
    }
    let help = "Files of a cache, one for each URL.";
    let mut family = encoder.encode_descriptor("sluice_cache_disk_files", help, None, MetricType::Gauge)?;
    for (name, disk) in disks {
        family.encode_family(&[("cache", *name)])?.encode_gauge(&disk.files)?;
    }
    let help = "Files of a cache that were read, written, or found damaged, and operations that have failed.";
    let mut family =
        encoder.encode_descriptor("sluice_cache_disk_events", help, None, MetricType::Counter)?;
    for (name, disk) in disks {
        for (event, count) in EVENTS.iter().zip(disk.events) {
            let labels = [("cache", *name), ("event", *event)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    Ok(())
}
