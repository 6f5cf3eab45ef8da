//! Clusters as configured: endpoints, balancing, health, limits. Types only; `clusters` reads them.

use std::path::PathBuf;

use super::names::words;
use super::{Address, EndpointBypass, UpstreamTls};

/// When a request is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Further tries of an idempotent request whose reused connection died before a response byte.
    pub attempts_max: u32,
    /// Further endpoints tried when connecting fails.
    pub connect_attempts_max: u32,
}

/// A named group of interchangeable endpoints and how they are used.
///
/// Many fields: one for each key of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// TLS to its endpoints; `None` is none.
    pub tls: Option<UpstreamTls>,
    /// What is spoken with them.
    pub protocol: UpstreamProtocol,
    /// How one is picked.
    pub balance: Balance,
    /// Active checks; `None` is off.
    pub health_check: Option<HealthCheck>,
    /// Passive ejection.
    pub ejection: Ejection,
    /// Use all endpoints when none is healthy.
    pub fail_open: bool,
    /// File that keeps health across a restart.
    pub state_file: Option<PathBuf>,
    /// Idle upstream connections.
    pub pool: Pool,
    /// Time to connect, in milliseconds (502 beyond; `connect_timeout`).
    pub connect_timeout_ms: u64,
    /// From the request sent to the response head, in milliseconds (504 beyond).
    pub response_timeout_ms: u64,
    /// Longest silence within a body in either direction, in milliseconds.
    pub body_idle_timeout_ms: u64,
    /// Longest silence of a tunnel, in milliseconds.
    pub tunnel_idle_timeout_ms: u64,
    /// Bytes of a response head (502 beyond).
    pub response_head_bytes_max: usize,
    /// Fields of a response head (502 beyond).
    pub response_headers_max: usize,
    /// Interim (1xx) responses passed on for one request (502 beyond).
    pub interim_responses_max: u32,
    /// How often names are resolved again, in milliseconds.
    pub resolve_interval_ms: u64,
    /// Response field that names the chosen endpoint.
    pub endpoint_header: Option<String>,
    /// When a request is tried again.
    pub retry: Retry,
    /// Requests that each endpoint may have under way; further ones wait in line.
    pub max_in_flight: MaxInFlight,
    /// Bounds of `max_in_flight: auto`.
    pub auto_limit: AutoLimit,
    /// The line of requests that wait for an endpoint.
    pub queue: Queue,
    /// Tunnels (upgraded and `tcp` connections) that each endpoint may have (503 beyond).
    pub tunnels_max: u32,
    /// Whether connections to its endpoints may be joined past loopback TCP.
    pub bypass: EndpointBypass,
}

/// What is spoken with the endpoints of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1, one exchange after the other on each connection.
    Http1,
    /// HTTP/2 by prior knowledge (RFC 9113 section 3.3), many exchanges on each connection. gRPC needs it.
    H2,
}

words!(UpstreamProtocol {
    Http1 = "http1",
    H2 = "h2",
});

/// How many requests an endpoint may have under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxInFlight {
    /// As many as come.
    Off,
    /// This many.
    Fixed(u32),
    /// As many as the measured latency shows to be good for it.
    Auto,
}

/// Bounds of a limit that finds itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoLimit {
    /// Least requests under way; also how many are let through while the latency without load is measured.
    pub min: u32,
    /// Most requests under way.
    pub max: u32,
    /// How often the latency without load is measured again, in milliseconds.
    pub measure_interval_ms: u64,
}

/// The line of requests that wait for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Requests that may wait (503 beyond; `queue_full`).
    pub max_length: usize,
    /// How long one may wait, in milliseconds (503 beyond; `queue_timeout`).
    pub timeout_ms: u64,
    /// Who is next.
    pub order: QueueOrder,
    /// With `adaptive`: how long one who comes would have to wait for the newest to go first, in milliseconds.
    pub lifo_after_ms: u64,
    /// Whether clients take turns, however many requests each has waiting.
    pub fair_by_client: bool,
}

/// Who of a line is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOrder {
    /// The oldest while the line is short, the newest while it is long for its pace.
    Adaptive,
    /// The oldest.
    Fifo,
    /// The newest.
    Lifo,
}

words!(QueueOrder {
    Adaptive = "adaptive",
    Fifo = "fifo",
    Lifo = "lifo",
});

/// One address in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Where it listens.
    pub address: Address,
    /// Share of the load relative to the others, 1 to 1000.
    pub weight: u32,
    /// Requests it may have under way, where not the cluster's.
    pub max_in_flight: Option<MaxInFlight>,
    /// Whether connections to it may be joined, where not as the cluster says.
    pub bypass: Option<EndpointBypass>,
}

/// How an endpoint is picked.
#[derive(Clone, Debug, PartialEq)]
pub enum Balance {
    /// The fewest requests under way in proportion to weight.
    LeastRequests,
    /// In turn, by weight.
    RoundRobin,
    /// The less loaded of two picked at random.
    RandomTwo,
    /// By a key of the request.
    Hash(HashKey),
}

/// What is hashed.
#[derive(Clone, Debug, PartialEq)]
pub enum HashKey {
    /// The client's address.
    ClientAddress,
    /// The value of a field (name in lower case).
    Header(String),
    /// The value of a cookie.
    Cookie(String),
}

/// Active health checks.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthCheck {
    /// Target of the check request.
    pub path: String,
    /// Host field; `None` is the endpoint's own address.
    pub host: Option<String>,
    /// Port that is asked; `None` is the endpoint's own. Not for unix sockets.
    pub port: Option<u16>,
    /// Time from one check to the next, in milliseconds.
    pub interval_ms: u64,
    /// Time for the whole check, in milliseconds.
    pub timeout_ms: u64,
    /// Successes in a row that make it healthy.
    pub healthy_after: u32,
    /// Failures in a row that make it unhealthy.
    pub unhealthy_after: u32,
    /// Statuses that count as success, as inclusive ranges.
    pub expected_statuses: Vec<(u16, u16)>,
}

/// Passive ejection: live traffic as a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row (connect errors, timeouts, broken answers) that eject; 0 is off.
    pub consecutive_failures: u32,
    /// How long an ejected endpoint is left alone, in milliseconds.
    pub time_ms: u64,
}

/// Idle upstream connections kept for reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Idle connections kept per endpoint and worker.
    pub idle_max_per_endpoint: usize,
    /// How long one is kept, in milliseconds.
    pub idle_timeout_ms: u64,
}
