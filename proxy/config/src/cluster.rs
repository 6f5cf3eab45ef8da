//! Configured clusters: endpoints, balancing, health, limits. Types only; `clusters` reads them.

use std::path::PathBuf;

use super::names::words;
use super::{Address, Affinity, Discovery, EndpointBypass, Retry, UpstreamTls};

/// A named group of interchangeable endpoints, and how they are used.
///
/// Many fields: one for each key of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Its endpoints.
    pub endpoints: Vec<Endpoint>,
    /// How further endpoints are found; `None` is not at all.
    pub discover: Option<Discovery>,
    /// TLS to its endpoints; `None` is plain text.
    pub tls: Option<UpstreamTls>,
    /// The protocol spoken with the endpoints.
    pub protocol: UpstreamProtocol,
    /// How clients are kept at their endpoints; `None` is off.
    pub affinity: Option<Affinity>,
    /// How an endpoint is picked.
    pub balance: Balance,
    /// With a hash, how many requests an endpoint may have in comparison with its share, in percent; `None` is any
    /// number.
    pub hash_load_percent_max: Option<u32>,
    /// Active checks; `None` is off.
    pub health_check: Option<HealthCheck>,
    /// Passive ejection.
    pub ejection: Ejection,
    /// Use all endpoints when none is healthy.
    pub fail_open: bool,
    /// File that keeps the health of endpoints across a restart.
    pub state_file: Option<PathBuf>,
    /// Idle upstream connections.
    pub pool: Pool,
    /// Time to connect, in milliseconds (502 beyond; `connect_timeout`).
    pub connect_timeout_ms: u64,
    /// From the sent request to the response head, in milliseconds (504 beyond).
    pub response_timeout_ms: u64,
    /// Maximum idle time within a body in either direction, in milliseconds.
    pub body_idle_timeout_ms: u64,
    /// Maximum idle time of a tunnel, in milliseconds.
    pub tunnel_idle_timeout_ms: u64,
    /// Maximum bytes of a response head (502 beyond).
    pub response_head_bytes_max: usize,
    /// Maximum fields of a response head (502 beyond).
    pub response_headers_max: usize,
    /// Interim (1xx) responses forwarded for one request (502 beyond).
    pub interim_responses_max: u32,
    /// How often names are resolved again, in milliseconds.
    pub resolve_interval_ms: u64,
    /// How long the share of an endpoint grows that is new, or well again, in milliseconds; 0 is no time.
    pub slow_start_ms: u64,
    /// Response field that carries the name of the chosen endpoint.
    pub endpoint_header: Option<String>,
    /// When a request is retried.
    pub retry: Retry,
    /// Concurrent requests per endpoint; further ones wait in the queue.
    pub max_in_flight: MaxInFlight,
    /// Limits of `max_in_flight: auto`.
    pub auto_limit: AutoLimit,
    /// The queue of requests that wait for an endpoint.
    pub queue: Queue,
    /// Concurrent tunnels (upgraded and `tcp` connections) per endpoint (503 beyond).
    pub tunnels_max: u32,
    /// Whether connections to its endpoints may be joined, which bypasses loopback TCP.
    pub bypass: EndpointBypass,
}

/// The protocol spoken with the endpoints of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamProtocol {
    /// HTTP/1.1, one exchange at a time on each connection.
    Http1,
    /// HTTP/2 with prior knowledge (RFC 9113 section 3.3), many concurrent exchanges on each connection. gRPC needs it.
    H2,
}

words!(UpstreamProtocol {
    Http1 = "http1",
    H2 = "h2",
});

/// How many concurrent requests an endpoint may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxInFlight {
    /// Unlimited.
    Off,
    /// This many.
    Fixed(u32),
    /// Derived from measured latency.
    Auto,
}

/// Limits of an automatic `max_in_flight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AutoLimit {
    /// Minimum of concurrent requests; also the number allowed while the latency without load is measured.
    pub min: u32,
    /// Maximum of concurrent requests.
    pub max: u32,
    /// How often the latency without load is measured again, in milliseconds.
    pub measure_interval_ms: u64,
}

/// The queue of requests that wait for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Maximum number of waiting requests (503 beyond; `queue_full`).
    pub max_length: usize,
    /// Maximum time in the queue, in milliseconds (503 beyond; `queue_timeout`).
    pub timeout_ms: u64,
    /// The order in which requests leave the queue.
    pub order: QueueOrder,
    /// With `adaptive`: the expected wait of a new request, in milliseconds, above which the newest goes first.
    pub lifo_after_ms: u64,
    /// Whether clients take turns, regardless of how many requests each has waiting.
    pub fair_by_client: bool,
}

/// The order in which requests leave a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOrder {
    /// The oldest first while the queue is short, the newest first while the expected wait is long.
    Adaptive,
    /// The oldest first.
    Fifo,
    /// The newest first.
    Lifo,
}

words!(QueueOrder {
    Adaptive = "adaptive",
    Fifo = "fifo",
    Lifo = "lifo",
});

/// One endpoint of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Its address.
    pub address: Address,
    /// Share of the load relative to the others, 1 to 1000.
    pub weight: u32,
    /// Maximum of concurrent requests, if it differs from the cluster's.
    pub max_in_flight: Option<MaxInFlight>,
    /// Whether connections to it may be joined, if it differs from the cluster's setting.
    pub bypass: Option<EndpointBypass>,
    /// Whether it is used only while no other endpoint is healthy.
    pub backup: bool,
}

/// How an endpoint is picked.
#[derive(Clone, Debug, PartialEq)]
pub enum Balance {
    /// The fewest concurrent requests in proportion to weight.
    LeastRequests,
    /// In turn, by weight.
    RoundRobin,
    /// The less loaded of two picked at random.
    RandomTwo,
    /// By a key of the request.
    Hash(HashKey),
}

/// The key that is hashed.
#[derive(Clone, Debug, PartialEq)]
pub enum HashKey {
    /// The client's address.
    ClientAddress,
    /// The value of a field (name in lower case).
    Header(String),
    /// The value of a cookie.
    Cookie(String),
}

/// How an endpoint is asked for its health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckProtocol {
    /// With a GET.
    #[default]
    Http,
    /// With a connection, and a TLS handshake if the cluster uses TLS.
    Tcp,
    /// With a call of grpc.health.v1.
    Grpc,
}

words!(CheckProtocol {
    Http = "http",
    Tcp = "tcp",
    Grpc = "grpc",
});

/// Active health checks.
///
/// Many fields: one for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthCheck {
    /// How it is asked.
    pub protocol: CheckProtocol,
    /// Target of the request.
    pub path: String,
    /// Host field; `None` is the endpoint's address.
    pub host: Option<String>,
    /// Port of the check; `None` is the endpoint's own. Not for unix sockets.
    pub port: Option<u16>,
    /// Interval between checks, in milliseconds.
    pub interval_ms: u64,
    /// Time limit of one check, in milliseconds.
    pub timeout_ms: u64,
    /// Successes in a row after which an endpoint is healthy.
    pub healthy_after: u32,
    /// Failures in a row after which an endpoint is unhealthy.
    pub unhealthy_after: u32,
    /// Response statuses that count as success, as inclusive ranges.
    pub expected_statuses: Vec<(u16, u16)>,
    /// Text that the body must contain.
    pub expected_body: Option<String>,
    /// Name of the service that `grpc` asks about; `None` is the whole server.
    pub grpc_service: Option<String>,
}

/// Passive ejection, based on live traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row (connect errors, timeouts, broken responses) that eject an endpoint; 0 is off.
    pub consecutive_failures: u32,
    /// How long an endpoint stays ejected, in milliseconds.
    pub time_ms: u64,
}

/// Idle upstream connections kept for reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Idle connections kept per endpoint and worker.
    pub idle_max_per_endpoint: usize,
    /// How long an idle connection is kept, in milliseconds.
    pub idle_timeout_ms: u64,
}
