//! The schema of `/status.json`. Keys and keywords are stable; keys may be added.
//!
//! Rates are per second. Times are in milliseconds, unless the name says otherwise. Values derived from histogram
//! buckets (percentiles) are estimates.

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use sluice_core::metrics::RecentError;

use crate::fleet::FleetView;

/// Incremented when a key changes its meaning or is removed.
pub const SCHEMA: u32 = 1;

/// The whole document. Events of `/events` omit `fixed` and every `history`, except the first event, which is complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// When it was created, in milliseconds of Unix time.
    pub time_ms: u64,
    /// Time since startup, in seconds.
    pub uptime_s: u64,
    /// `serving`, or `draining` once a drain has started.
    pub state: String,
    /// What rarely changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<Fixed>,
    /// The fleet that this process is a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<FleetView>,
    /// Totals.
    pub totals: Totals,
    /// Every cluster, by name.
    pub clusters: Vec<Cluster>,
    /// Endpoints omitted because there are too many.
    pub endpoints_left_out: usize,
    /// The last failures, the newest first: up to 50 caused by endpoints or sluice, up to 20 caused by clients.
    pub errors: Vec<RecentError>,
    /// Failures that were not recorded because too many occurred at once.
    pub errors_left_out: u64,
}

/// What rarely changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fixed {
    /// Version of sluice.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// What the workers run by: `io_uring`, `tokio_uring` or `epoll`.
    #[serde(default)]
    pub engine: String,
    /// Worker threads.
    pub workers: usize,
    /// The listeners.
    pub listeners: Vec<Listener>,
    /// Served certificates, those that expire first come first; at most 100.
    #[serde(default)]
    pub certificates: Vec<Certificate>,
    /// Each kernel assist, and whether it is used.
    pub assists: Vec<Assist>,
    /// What `sluice doctor` found at startup.
    pub findings: Vec<Finding>,
    /// The effective configuration, as at `/config`.
    pub config: Value,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listener {
    /// Its name.
    pub name: String,
    /// The bound address.
    pub address: String,
    /// `http` or `tcp`.
    pub protocol: String,
}

/// A served certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// Name of its listener.
    pub listener: String,
    /// The host names it is valid for.
    pub names: Vec<String>,
    /// The file it was read from, or a keyword.
    pub source: String,
    /// When it expires, in seconds of Unix time.
    pub not_after_s: i64,
    /// Days until it expires, rounded down; negative if it has expired.
    pub days_left: i64,
    /// Whether it is valid now.
    pub is_valid: bool,
    /// When the next attempt to obtain a certificate is made, if ACME manages it, in seconds of Unix time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_s: Option<u64>,
    /// Why the last attempt failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A kernel assist.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Assist {
    /// `bypass`, `direct_return` or `splice`.
    pub name: String,
    /// As in the start line: `used`, or `not used: ` and the reason.
    pub verdict: String,
}

/// A finding of doctor.
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
    /// How to change it, if something should be changed.
    pub remedy: Option<String>,
}

/// Totals.
///
/// Many fields: each is a number that is shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Finished exchanges since startup.
    pub requests: u64,
    /// Retries since startup.
    pub retries: u64,
    /// Panics since startup, each of which ended one connection.
    pub panics: u64,
    /// Open connections of clients.
    pub downstream_open: u64,
    /// Open connections to endpoints, including idle ones.
    pub upstream_open: u64,
    /// Open tunnels.
    pub tunnels_open: u64,
    /// Workers that currently run as batch threads (`worker_scheduling`); the others use the default policy.
    #[serde(default)]
    pub batch_workers: u64,
    /// Concurrent requests at endpoints.
    pub in_flight: u64,
    /// Requests that wait in a queue.
    pub queued: u64,
    /// Rates of all clusters, and of exchanges that reached none.
    pub rates: Rates,
    /// Every status code that occurred, in ascending order.
    #[serde(default)]
    pub codes: Vec<Code>,
    /// Every version of HTTP that a client spoke.
    #[serde(default)]
    pub protocols: Vec<ProtocolShare>,
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
    /// Concurrent requests at its endpoints.
    pub in_flight: u64,
    /// Its queue.
    pub queue: Queue,
    /// What its source of endpoints says, in a few words; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Rates of its endpoints, and of exchanges that reached none of them.
    pub rates: Rates,
    /// The last two minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
    /// Its endpoints, in the order of the configuration.
    pub endpoints: Vec<Endpoint>,
}

/// A cluster's queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Waiting requests.
    pub length: u64,
    /// Maximum of waiting requests.
    pub length_max: u64,
    /// Requests that had to wait since startup.
    pub entered: u64,
    /// Requests rejected because the queue was full.
    pub full: u64,
    /// Requests rejected because they waited too long.
    pub timed_out: u64,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Its address.
    pub label: String,
    /// Whether an operator has disabled it: it gets no new requests, healthy or not.
    #[serde(default)]
    pub disabled: bool,
    /// `healthy`, `unhealthy` (by checks), `ejected` (by live traffic) or `draining`.
    pub health: String,
    /// The result of its last health check, if there was one.
    pub last_check: Option<String>,
    /// Its weight.
    pub weight: u32,
    /// Concurrent requests and tunnels.
    pub in_flight: u64,
    /// Of these, tunnels.
    pub tunnels: u64,
    /// Current maximum of concurrent requests; `None` without a limit.
    pub limit: Option<u64>,
    /// Failures caused by it since it exists.
    pub failures: u64,
    /// Its current rates.
    pub rates: Rates,
    /// The last two minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history: Option<History>,
}

/// Rates per second over the last second, and values over the last ten seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Finished exchanges.
    pub requests: f64,
    /// Exchanges that failed because of the endpoint or sluice, or got a 5xx response.
    pub failures: f64,
    /// Share of failures among the exchanges of the last ten seconds, 0 to 1; `None` without any exchange.
    pub error_share_10s: Option<f64>,
    /// Body bytes read from clients.
    pub bytes_in: f64,
    /// Bytes written to clients.
    pub bytes_out: f64,
    /// Exchanges by status class.
    #[serde(default)]
    pub classes: Classes<f64>,
    /// Exchanges by path.
    pub paths: Paths,
    /// Latency over the last second; `None` without any exchange.
    pub latency: Option<Latency>,
    /// Latency over the last ten seconds; `None` without any exchange.
    pub latency_10s: Option<Latency>,
}

/// A status code of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Code {
    /// The code.
    pub code: u16,
    /// Responses with it since startup.
    pub count: u64,
    /// Responses with it per second, over the last ten seconds.
    pub rate_10s: f64,
}

/// A version of HTTP that clients speak.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProtocolShare {
    /// `HTTP/1.0`, `HTTP/1.1`, `HTTP/2.0` or `HTTP/3.0`.
    pub protocol: String,
    /// Requests with it since startup.
    pub count: u64,
    /// Requests with it per second, over the last ten seconds.
    pub rate_10s: f64,
}

/// Something for each status class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Classes<T> {
    /// An upgrade to another protocol.
    #[serde(rename = "1xx")]
    pub informational: T,
    /// Success.
    #[serde(rename = "2xx")]
    pub success: T,
    /// Redirection, or not modified.
    #[serde(rename = "3xx")]
    pub redirection: T,
    /// The client's mistake.
    #[serde(rename = "4xx")]
    pub client_error: T,
    /// A failure of the endpoint or of sluice.
    #[serde(rename = "5xx")]
    pub server_error: T,
}

impl<T> From<[T; 5]> for Classes<T> {
    fn from([informational, success, redirection, client_error, server_error]: [T; 5]) -> Self {
        Self { informational, success, redirection, client_error, server_error }
    }
}

/// Exchanges by the path of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Paths {
    /// Copied by sluice.
    pub copy: f64,
    /// Bypassing loopback TCP.
    pub bypass: f64,
    /// Directly from the application to the client.
    pub direct: f64,
    /// Spliced in the kernel.
    pub splice: f64,
}

/// Latency percentiles, from the first byte of a request to the last byte of its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
}

/// One value per second, the oldest first, all of the same length, at most 120.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Exchanges per second.
    pub requests: Vec<f32>,
    /// Failures per second.
    pub failures: Vec<f32>,
    /// Median; `None` in a second without exchanges.
    pub p50_ms: Vec<Option<f32>>,
    /// 99th percentile; `None` in a second without exchanges.
    pub p99_ms: Vec<Option<f32>>,
    /// Concurrent requests at the end of the second.
    pub in_flight: Vec<u32>,
    /// Requests in the queue at the end of the second; not for endpoints, which have no queue of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queued: Vec<u32>,
    /// Exchanges per second by status class; only for the totals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Classes<Vec<f32>>>,
}
