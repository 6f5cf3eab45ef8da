//! The default and the allowed range of every number in the configuration, each with its reason, and
//! the values of the other keys when the file leaves them out.
//!
//! `numbers!` derives the default, the reading, the writing and the documented range of a number from one line, so
//! that they cannot drift apart.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde_yaml::{Mapping, Value};

use super::reader::Fields;
use super::{
    AccessLog, AssistMode, AutoLimit, Balance, Buffering, Buffers, Cluster, Config, ControlSocket, Ejection,
    EndpointBypass, HealthCheck, Http2Limits, KernelAssists, Limits, MaxInFlight, Pool, Queue, QueueOrder,
    Retry, ServicesState, Switch, UpstreamProtocol, WorkerScheduling,
};

pub(super) const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
pub(super) const MINUTE_MS: u64 = 60_000;
pub(super) const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;

/// Worker threads that may be asked for.
pub(super) const WORKERS: RangeInclusive<u64> = 1..=256;
/// Share of an endpoint.
pub const WEIGHT: RangeInclusive<u64> = 1..=1000;
/// A port that is asked for health.
pub(super) const PORT: RangeInclusive<u64> = 1..=65_535;
/// Requests under way at an endpoint.
pub(super) const MAX_IN_FLIGHT: RangeInclusive<u64> = 1..=1_000_000;
/// Also a route's own.
pub(super) const RESPONSE_TIMEOUT_MS: RangeInclusive<u64> = 1..=DAY_MS;
/// Also a route's own.
pub(super) const BODY_IDLE_TIMEOUT_MS: RangeInclusive<u64> = 1..=DAY_MS;

/// A number's key, its least and its greatest value.
pub type NumberRange = (&'static str, u64, u64);

macro_rules! numbers {
    ($type:ident {
        $($key:ident: $kind:ty = $default:expr, $range:expr;)*
    } $(rest { $($other:ident: $value:expr,)* })?) => {
        impl Default for $type {
            fn default() -> Self {
                Self { $($key: $default,)* $($($other: $value,)*)? }
            }
        }

        impl $type {
            /// Each number's key, least and greatest value.
            pub(super) const RANGES: &'static [NumberRange] =
                &[$((stringify!($key), *($range).start(), *($range).end()),)*];

            /// Takes the numbers that are given.
            pub(super) fn read_numbers(&mut self, fields: &mut Fields<'_>) {
                $(if let Some(number) = fields.number(stringify!($key), $range) {
                    // Every range fits its type, but for usize on a 32-bit host.
                    self.$key = <$kind>::try_from(number).unwrap_or(<$kind>::MAX);
                })*
            }

            /// Writes all numbers.
            pub(super) fn write_numbers(&self, map: &mut Mapping) {
                $(map.insert(Value::from(stringify!($key)), Value::from(self.$key));)*
            }
        }
    };
}

pub(super) use numbers;
numbers! { Limits {
    // Cookies and tokens of real sites fit; Apache and nginx take 8 KiB a field.
    head_bytes_max: usize = 32 * KIB as usize, 256..=MIB;
    // Browsers send about 20; the parser's table for this many is a few KB.
    headers_max: usize = 100, 1..=1000;
    // RFC 9110 4.1 asks for at least 8000.
    target_bytes_max: usize = 8 * KIB as usize, 64..=MIB;
    // Bodies stream, so this costs no memory; it bounds what one client may upload.
    body_bytes_max: u64 = 10 * GIB, 0..=1 << 50;
    // Extensions are dropped and nobody sends long ones.
    chunk_line_bytes_max: usize = 4 * KIB as usize, 16..=64 * KIB;
    // Trailers are checksums and gRPC status: small.
    trailer_bytes_max: usize = 8 * KIB as usize, 0..=MIB;
    // An idle connection holds a few KB, so this many stay near 100 MB.
    connections_max: usize = 20_000, 1..=10_000_000;
    // A slow phone needs seconds; a client that drips bytes must not hold a place for longer.
    header_timeout_ms: u64 = 10_000, 1..=HOUR_MS;
    // Browsers give up idle connections after one to two minutes.
    keep_alive_timeout_ms: u64 = MINUTE_MS, 1..=DAY_MS;
    // Only so that no connection lives for ever; a reconnect now and then spreads clients over workers.
    requests_per_connection_max: u64 = 100_000, 1..=1 << 40;
    // Long enough for the answer to leave, too short to collect dead clients.
    half_close_timeout_ms: u64 = 1000, 0..=10 * MINUTE_MS;
    // Reading this much is cheaper than a new connection.
    drain_bytes_max: u64 = 256 * KIB, 0..=GIB;
    // A client that cannot send that in two seconds gains nothing from keeping the connection.
    drain_body_timeout_ms: u64 = 2000, 0..=10 * MINUTE_MS;
    // Enough for some dozens of bodies at full speed; the rest still move, in small pieces.
    body_buffers_bytes_max: usize = 4 * MIB as usize, 0..=16 * GIB;
} rest {
    http2: Http2Limits::default(),
}}

numbers! { Pool {
    // What ten clients ask for at once by HTTP/2, whose waves would else open connections for each; they end soon.
    idle_max_per_endpoint: usize = 1024, 0..=100_000;
    // Below the 5 s after which Node and uvicorn close, so that we close first.
    idle_timeout_ms: u64 = 4000, 1..=DAY_MS;
}}

numbers! { Retry {
    // One fresh connection settles the race with a closing server; more would multiply load.
    attempts_max: u32 = 1, 0..=10;
    // Two more endpoints outlive the failure of one, without trying a whole dead cluster.
    connect_attempts_max: u32 = 2, 0..=100;
}}

numbers! { Ejection {
    // A streak this long is no accident.
    consecutive_failures: u32 = 5, 0..=1_000_000;
    // About the restart of an application server.
    time_ms: u64 = 10_000, 1..=DAY_MS;
}}

numbers! { HealthCheck {
    // Unhealthy within 15 s at a cost that no server notices.
    interval_ms: u64 = 5000, 10..=DAY_MS;
    // Below the interval; a check slower than this is no healthy answer.
    timeout_ms: u64 = 2000, 1..=DAY_MS;
    // Twice, so that one lucky answer does not bring it back.
    healthy_after: u32 = 2, 1..=1000;
    // Three times, so that one lost packet does not take it out.
    unhealthy_after: u32 = 3, 1..=1000;
} rest {
    path: "/".to_owned(),
    host: None,
    port: None,
    expected_statuses: vec![(200, 399)],
}}

numbers! { AutoLimit {
    // Fewer would leave a server idle between two requests.
    min: u32 = 3, MAX_IN_FLIGHT;
    // Beyond it a server is no longer what limits.
    max: u32 = 1000, MAX_IN_FLIGHT;
    // As Envoy's adaptive concurrency; a measurement takes 50 answers.
    measure_interval_ms: u64 = MINUTE_MS, 100..=DAY_MS;
}}

numbers! { Queue {
    // Five seconds of work for a server of 200 requests a second; a waiting request costs a few KB.
    max_length: usize = 1000, 0..=1_000_000;
    // Whoever waits for longer has gone or presses reload.
    timeout_ms: u64 = 10_000, 1..=HOUR_MS;
    // Longer than any burst that a healthy server works off.
    lifo_after_ms: u64 = 500, 1..=HOUR_MS;
} rest {
    order: QueueOrder::Adaptive,
    fair_by_client: false,
}}

numbers! { Cluster {
    // Within a data centre connecting takes a millisecond; three seconds outlast one lost SYN.
    connect_timeout_ms: u64 = 3000, 1..=10 * MINUTE_MS;
    // As nginx's proxy_read_timeout.
    response_timeout_ms: u64 = MINUTE_MS, RESPONSE_TIMEOUT_MS;
    // As above. A body that moves never meets it, unless it crawls at some hundred bytes a second.
    body_idle_timeout_ms: u64 = MINUTE_MS, BODY_IDLE_TIMEOUT_MS;
    // Websockets are silent for long; an hour only clears away the dead.
    tunnel_idle_timeout_ms: u64 = HOUR_MS, 1..=7 * DAY_MS;
    // Twice what a client may send: applications set large cookies.
    response_head_bytes_max: usize = 64 * KIB as usize, 256..=MIB;
    // As above.
    response_headers_max: usize = 200, 1..=1000;
    // A 100 and some 103s; more is a fault.
    interim_responses_max: u32 = 10, 0..=1000;
    // Follows a container that moved within seconds and asks little of the name server.
    resolve_interval_ms: u64 = 10_000, 100..=DAY_MS;
    // As many as a listener has connections by default; a database wants far fewer.
    tunnels_max: u32 = 20_000, 0..=10_000_000;
} rest {
    endpoints: Vec::new(),
    tls: None,
    protocol: UpstreamProtocol::Http1,
    balance: Balance::LeastRequests,
    health_check: None,
    ejection: Ejection::default(),
    fail_open: true,
    state_file: None,
    pool: Pool::default(),
    endpoint_header: None,
    retry: Retry::default(),
    max_in_flight: MaxInFlight::Off,
    auto_limit: AutoLimit::default(),
    queue: Queue::default(),
    bypass: EndpointBypass::Auto,
}}

numbers! { Buffering {
    // As kamal-proxy. Nearly every page and form fits, and a thousand of them are a gigabyte.
    buffer_memory_bytes: usize = MIB as usize, 0..=GIB;
    // None but the listener's.
    request_body_bytes_max: u64 = 0, 0..=1 << 50;
    // None: what an application answers is its own affair.
    response_body_bytes_max: u64 = 0, 0..=1 << 50;
} rest {
    buffer_requests: Switch::Off,
    buffer_responses: Switch::Off,
}}

numbers! { Buffers {
    // A temporary folder has that much to spare, and some hundred slow uploads fit.
    spool_bytes_max: u64 = GIB, 0..=1 << 50;
    // A hundred bodies of the most that one may have in memory by default; later ones go into files.
    memory_bytes_max: u64 = 128 * MIB, 0..=1 << 50;
} rest {
    spool_directory: None,
}}

numbers! { KernelAssists {
    // Two requests of the most that is joined; a page of 64 KB with its head passes without changing over.
    bypass_budget_bytes: u32 = 128 * KIB as u32, 4 * KIB..=16 * MIB;
    // Each costs the kernel about 1 KB beside its bytes, so one-byte messages stay within 64 KB.
    bypass_budget_messages: u32 = 64, 1..=4096;
    // Two entries of some hundred bytes each, for applications of one host; the self-test needs some dozens.
    bypass_connections_max: u32 = 8192, 64..=1 << 20;
    // Longer than an application that serves is busy with something else at a stretch.
    bypass_stall_ms: u64 = 5000, 100..=DAY_MS;
    // For workers that preempt others; those gain from this size on in any case, and from 1 KB on where few exchanges
    // are under way.
    direct_return_bytes_min: u32 = 64 * KIB as u32, 0..=GIB;
    // There is no size that it does not pay for: from 256 KB on it gains most.
    direct_return_bytes_max: u64 = u64::MAX >> 1, 0..=u64::MAX >> 1;
    // Many connections bring one request, and entering one costs more than one answer gains.
    direct_return_from_request: u64 = 2, 1..=1000;
    // A body that follows its head at once does so within some ten microseconds; who waits for a late one will
    // not notice that its head came so much later. Also how often a worker looks, where heads are kept.
    direct_return_hold_ms: u64 = 10, 0..=1000;
    // One late body makes its path begin anew.
    direct_return_hold_after: u32 = 8, 0..=255;
    // Each entry is some hundred bytes; further clients are answered by copying.
    direct_return_clients_max: u32 = 16_384, 64..=1 << 20;
    // Joining costs some thirty system calls, which a tunnel of a few messages never earns back.
    splice_after_bytes: u64 = 64 * KIB, 0..=GIB;
    // A sender on this host is ahead of the kernel's worker by some hundred KB now and then.
    splice_budget_bytes: u32 = MIB as u32, 4 * KIB..=64 * MIB;
    // Each costs the kernel about 1 KB beside its bytes.
    splice_budget_pieces: u32 = 1024, 1..=65_536;
    // Entries of some hundred bytes; the self-test needs a few.
    splice_tunnels_max: u32 = 8192, 16..=1 << 20;
} rest {
    bypass: AssistMode::Auto,
    bypass_downstream: Switch::Off,
    direct_return: AssistMode::Auto,
    direct_return_calm_max: None,
    splice: AssistMode::Auto,
}}

numbers! { Config {
    // Most exchanges end within it; supervisors kill after 30 to 90 s.
    drain_timeout_ms: u64 = 30_000, 0..=DAY_MS;
} rest {
    listeners: Vec::new(),
    routes: Vec::new(),
    clusters: BTreeMap::new(),
    limits: Limits::default(),
    trusted_proxies: Vec::new(),
    via: false,
    error_pages: BTreeMap::new(),
    access_log: AccessLog::default(),
    tracing: None,
    debug_token_file: None,
    admin: None,
    admin_token_file: None,
    control: ControlSocket::Auto,
    services: ServicesState::default(),
    acme: None,
    workers: 0,
    worker_scheduling: WorkerScheduling::default(),
    user: None,
    group: None,
    buffers: Buffers::default(),
    kernel: KernelAssists::default(),
    demo_origin: None,
}}
