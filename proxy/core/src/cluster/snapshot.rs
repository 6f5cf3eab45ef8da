//! A cluster as JSON, for the admin listener.

use serde_json::{Value, json};
use sluice_config::Balance;

use crate::cluster::{Cluster, Endpoint};

/// The cluster and its endpoints at `now_ms`, the process's monotonic clock.
pub fn snapshot_json(cluster: &Cluster, now_ms: u64) -> Value {
    let endpoints = cluster.endpoints();
    let endpoints: Vec<_> = endpoints.iter().map(|endpoint| endpoint_json(endpoint, now_ms)).collect();
    let queue = cluster.queue_counts();
    json!({
        "name": cluster.name,
        "balance": balance_word(&cluster.config.balance),
        "queue": {
            "length": queue.length,
            "entered": queue.entered,
            "full": queue.full,
            "timed_out": queue.timed_out,
        },
        "endpoints": endpoints,
    })
}

fn endpoint_json(endpoint: &Endpoint, now_ms: u64) -> Value {
    let last_check = endpoint.last_check().map(|check| {
        json!({
            "outcome": check.outcome,
            "success": check.success,
            "age_ms": now_ms.saturating_sub(check.at_ms),
        })
    });
    json!({
        "label": endpoint.label,
        "weight": endpoint.weight(),
        "disabled": endpoint.is_disabled(),
        "health": endpoint.health(now_ms).word(),
        "in_flight": endpoint.in_flight(),
        "tunnels": endpoint.tunnels(),
        "limit": (endpoint.limit_now() != u32::MAX).then(|| endpoint.limit_now()),
        "base_latency_us": endpoint.base_latency_us(),
        "requests": endpoint.requests(),
        "failures": endpoint.failures(),
        "last_check": last_check,
    })
}

/// The keyword used in the configuration.
pub fn balance_word(balance: &Balance) -> &'static str {
    match balance {
        Balance::LeastRequests => "least_requests",
        Balance::RoundRobin => "round_robin",
        Balance::RandomTwo => "random_two",
        Balance::Hash(_) => "hash",
    }
}
