//! The bounds of every number, for the manual.

use super::defaults::NumberRange;
use super::{
    Acme, AutoLimit, Buffering, Buffers, Cluster, Config, DnsHook, Ejection, HealthCheck, Hsts, Http2Limits,
    KernelAssists, Limits, OnDemand, Passthrough, Pool, Queue, RedirectToHttps, Retry, Tls, Tracing,
};

/// The range of every number, by the dotted path of the map that it stands in, `NAME` for a cluster's name.
pub fn number_ranges() -> [(&'static str, &'static [NumberRange]); 21] {
    [
        ("", Config::RANGES),
        ("limits", Limits::RANGES),
        ("listeners[]", Passthrough::RANGES),
        ("listeners[].tls", Tls::RANGES),
        ("listeners[].tls.acme.on_demand", OnDemand::RANGES),
        ("listeners[].redirect_to_https", RedirectToHttps::RANGES),
        ("listeners[].hsts", Hsts::RANGES),
        ("limits.http2", Http2Limits::RANGES),
        ("routes[]", Buffering::RANGES),
        ("buffers", Buffers::RANGES),
        ("acme", Acme::RANGES),
        ("acme.dns_hook", DnsHook::RANGES),
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
