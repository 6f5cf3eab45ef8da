//! The schema of `/status.json`. Keys and one-word values stay as they are; keys may be added.
//!
//! Rates are per second. Times are milliseconds, unless the name says otherwise. What comes from buckets of a
//! histogram (percentiles) is an estimate.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use sluice_core::metrics::RecentError;

/// Raised when a key changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// All that is known. An event of `/events` leaves out `fixed` and every `history`, but for the first, which is whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it was made, in milliseconds of Unix time.
    pub time_ms: u64,
    /// Since the start, in seconds.
    pub uptime_s: u64,
    /// `serving`, or `draining` once a drain has begun.
    pub state: String,
    /// What does not change from second to second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<Fixed>,
    /// Everything together.
    pub totals: Totals,
    /// Every cluster, by name.
    pub clusters: Vec<Cluster>,
    /// Endpoints that there was no room for.
    pub endpoints_left_out: usize,
    /// The last failures, the newest first: up to 50 by the origin's or sluice's fault, up to 20 by clients'.
    pub errors: Vec<RecentError>,
    /// Failures that were not noted, as too many came at once.
    pub errors_left_out: u64,
}

/// What does not change from second to second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fixed {
    /// Of sluice.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// What the workers run by: `io_uring`, `tokio_uring` or `epoll`.
    #[serde(default)]
    pub engine: String,
    /// Worker threads.
    pub workers: usize,
    /// Where connections are accepted.
    pub listeners: Vec<Listener>,
    /// Certificates that are served, those first that expire first; at most 100.
    #[serde(default)]
    pub certificates: Vec<Certificate>,
    /// Each kernel assist, and whether it is used.
    pub assists: Vec<Assist>,
    /// What `sluice doctor` found at the start.
    pub findings: Vec<Finding>,
    /// The configuration in force, as `/config` has it.
    pub config: Value,
}

/// A bound address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// The address as bound.
    pub address: String,
    /// `http` or `tcp`.
    pub protocol: String,
}

/// A certificate that is served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// Name of its listener.
    pub listener: String,
    /// The hosts it is for.
    pub names: Vec<String>,
    /// The file it is from, or a word.
    pub source: String,
    /// Until when it is valid, in seconds of Unix time.
    pub not_after_s: i64,
    /// Days until then, rounded down; below 0 it has expired.
    pub days_left: i64,
    /// Whether it is valid now.
    pub is_valid: bool,
    /// When it is tried to have the next one issued, where it is, in seconds of Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_s: Option<u64>,
    /// Why the last try has failed, if it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A kernel assist.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Assist {
    /// `bypass`, `direct_return` or `splice`.
    pub name: String,
    /// As in the start line: `used`, or `not used: ` and why.
    pub verdict: String,
}

/// One thing that doctor looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// `kernel`, `io_uring`, `capabilities`, `cgroups`, `bpf` or `limits`.
    pub area: String,
    /// Its name within the area.
    pub name: String,
    /// `ok`, `limited` or `missing`.
    pub status: String,
    /// What it means for sluice.
    pub means: String,
    /// How to change it, where something is to be changed.
    pub remedy: Option<String>,
}

/// Everything together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Exchanges ended since the start.
    pub requests: u64,
    /// Tries of requests beyond the first since the start.
    pub retries: u64,
    /// Panics since the start, each of which ended one connection.
    pub panics: u64,
    /// Connections of clients open.
    pub downstream_open: u64,
    /// Connections to endpoints open, idle ones included.
    pub upstream_open: u64,
    /// Tunnels open.
    pub tunnels_open: u64,
    /// Workers that are batch threads now (`worker_scheduling`); the others are ordinary ones.
    #[serde(default)]
    pub batch_workers: u64,
    /// Requests under way at endpoints.
    pub in_flight: u64,
    /// Requests that wait in a line.
    pub queued: u64,
    /// Of all clusters, and of what came to none.
    pub rates: Rates,
    /// The last two minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
}

/// A cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// How it balances.
    pub balance: String,
    /// Requests under way at its endpoints.
    pub in_flight: u64,
    /// Its line.
    pub queue: Queue,
    /// Of its endpoints, and of what came to none of them.
    pub rates: Rates,
    /// The last two minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// Its endpoints, in the order of the configuration.
    pub endpoints: Vec<Endpoint>,
}

/// A cluster's line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Requests that wait.
    pub length: u64,
    /// Requests that may.
    pub length_max: u64,
    /// Requests that have had to wait since the start.
    pub entered: u64,
    /// Of these, turned away because the line was full.
    pub full: u64,
    /// And because they waited for too long.
    pub timed_out: u64,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its address.
    pub label: String,
    /// Whether an operator has it take no new requests, healthy or not.
    #[serde(default)]
    pub disabled: bool,
    /// `healthy`, `unhealthy` (by checks), `ejected` (by live traffic) or `draining`.
    pub health: String,
    /// What the last check of its health met, if there was one.
    pub last_check: Option<String>,
    /// Its share of the load, relative to the others.
    pub weight: u32,
    /// Requests and tunnels under way.
    pub in_flight: u64,
    /// Of these, tunnels.
    pub tunnels: u64,
    /// Requests that it may have under way now; `None` without a limit.
    pub limit: Option<u64>,
    /// Failures by its fault since it is known.
    pub failures: u64,
    /// What it does now.
    pub rates: Rates,
    /// The last two minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
}

/// What happened in the last second, per second, and what ended in the last ten.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Exchanges ended.
    pub requests: f64,
    /// Of these, those that failed by the origin's or sluice's fault, or were answered 5xx.
    pub failures: f64,
    /// Share of failures among the exchanges of the last ten seconds, 0 to 1; `None` without any exchange.
    pub error_share_10s: Option<f64>,
    /// Body bytes read from clients.
    pub bytes_in: f64,
    /// Bytes written to clients.
    pub bytes_out: f64,
    /// Exchanges by the path of their bytes.
    pub paths: Paths,
    /// How long those of the last second took; `None` without any.
    pub latency: Option<Latency>,
    /// How long those of the last ten seconds took; `None` without any.
    pub latency_10s: Option<Latency>,
}

/// Exchanges by the path of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Paths {
    /// Through sluice's buffers.
    pub copy: f64,
    /// Past loopback TCP.
    pub bypass: f64,
    /// From the application straight to the client.
    pub direct: f64,
    /// From one connection to the other in the kernel.
    pub splice: f64,
}

/// Durations that a share of exchanges took at most, from the first byte of a request to the last of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of them.
    pub p50_ms: f64,
    /// Nine in ten.
    pub p90_ms: f64,
    /// All but one in a hundred.
    pub p99_ms: f64,
}

/// One value a second, the oldest first, all of one length, at most 120.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Exchanges per second.
    pub requests: Vec<f32>,
    /// Failures per second.
    pub failures: Vec<f32>,
    /// Half of them were as fast; `None` in a second without any.
    pub p50_ms: Vec<Option<f32>>,
    /// All but one in a hundred were.
    pub p99_ms: Vec<Option<f32>>,
    /// Requests under way at the end of the second.
    pub in_flight: Vec<u32>,
}
