//! Tables of keys that need no special reading: each key's default with its reason, and the allowed range.

use std::ops::RangeInclusive;

use super::codec::{File, Flag, Optional, Or, keys, map, number, word};
use super::http2::Http2Limits;
use super::http3::Http3Limits;
use super::reader::Fields;
use super::{
    AssistMode, AutoLimit, Buffering, Buffers, Ejection, KernelAssists, Limits, Pool, Queue, QueueOrder,
    Switch,
};

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
pub(super) const MINUTE_MS: u64 = 60_000;
pub(super) const HOUR_MS: u64 = 60 * MINUTE_MS;
pub(super) const DAY_MS: u64 = 24 * HOUR_MS;

/// Number of worker threads.
pub(super) const WORKERS: RangeInclusive<u64> = 1..=256;
/// Weight of an endpoint.
pub const WEIGHT: RangeInclusive<u64> = 1..=1000;
/// Port of a health check.
pub(super) const PORT: RangeInclusive<u64> = 1..=65_535;
/// Concurrent requests of an endpoint.
pub(super) const MAX_IN_FLIGHT: RangeInclusive<u64> = 1..=1_000_000;
/// Range of `direct_return_calm_max`.
const CALM_MAX: RangeInclusive<u64> = 0..=4096;
/// Also used by routes.
pub(super) const RESPONSE_TIMEOUT_MS: RangeInclusive<u64> = 1..=DAY_MS;
/// Also used by routes.
pub(super) const BODY_IDLE_TIMEOUT_MS: RangeInclusive<u64> = 1..=DAY_MS;

keys! { Limits {
    // Cookies and tokens of real sites fit; Apache and nginx allow 8 KiB per field.
    head_bytes_max: 32 * KIB as usize, number(256..=MIB);
    // Browsers send about 20; the parser's table for this many takes a few KB.
    headers_max: 100, number(1..=1000);
    // RFC 9110 4.1 recommends at least 8000.
    target_bytes_max: 8 * KIB as usize, number(64..=MIB);
    // Bodies are streamed, so this costs no memory; it limits what one client may upload.
    body_bytes_max: 10 * GIB, number(0..=1 << 50);
    // Extensions are dropped, and real clients send no long ones.
    chunk_line_bytes_max: 4 * KIB as usize, number(16..=64 * KIB);
    // Trailers carry checksums and gRPC status, which are small.
    trailer_bytes_max: 8 * KIB as usize, number(0..=MIB);
    // An idle connection takes a few KB, so this many stay near 100 MB.
    connections_max: 20_000, number(1..=10_000_000);
    // Off, because a company or a mobile network may have one address for all.
    connections_per_client_max: 0, number(0..=10_000_000);
    // A slow phone needs seconds; a client that trickles bytes must not keep a slot for longer.
    header_timeout_ms: 10_000, number(1..=HOUR_MS);
    // Browsers close idle connections after one to two minutes.
    keep_alive_timeout_ms: MINUTE_MS, number(1..=DAY_MS);
    // Only so that no connection lives for ever; reconnecting now and then spreads clients over workers.
    requests_per_connection_max: 100_000, number(1..=1 << 40);
    // Long enough for the response to leave, short enough not to accumulate dead clients.
    half_close_timeout_ms: 1000, number(0..=10 * MINUTE_MS);
    // Reading this much is cheaper than a new connection.
    // Off: a phone in a tunnel is slower than any attacker needs to be.
    receive_rate_bytes_min: 0, number(0..=GIB);
    drain_bytes_max: 256 * KIB, number(0..=GIB);
    // A client that cannot send that much in two seconds gains nothing from keeping the connection.
    drain_body_timeout_ms: 2000, number(0..=10 * MINUTE_MS);
    // Enough for dozens of bodies at full speed; the others still progress, in small pieces.
    body_buffers_bytes_max: 4 * MIB as usize, number(0..=16 * GIB);
    http2: Http2Limits::default(), map();
    http3: Http3Limits::default(), map();
}}

keys! { Pool {
    // HTTP/2 clients send bursts of requests; without this, each burst from about ten clients would open new
    // connections. They expire soon.
    idle_max_per_endpoint: 1024, number(0..=100_000);
    // Below the 5 s after which Node and uvicorn close, so that sluice closes first.
    idle_timeout_ms: 4000, number(1..=DAY_MS);
}}

keys! { Ejection {
    // This many in a row are no accident.
    consecutive_failures: 5, number(0..=1_000_000);
    // About as long as an application server takes to restart.
    time_ms: 10_000, number(1..=DAY_MS);
}}

keys! { AutoLimit, settle in_order {
    // Fewer would leave a server idle between two requests.
    min: 3, number(MAX_IN_FLIGHT);
    // Above this, the server is not the bottleneck.
    max: 1000, number(MAX_IN_FLIGHT);
    // The same as Envoy's adaptive concurrency; a measurement takes 50 responses.
    measure_interval_ms: MINUTE_MS, number(100..=DAY_MS);
}}

keys! { Queue {
    // Five seconds of work for a server that handles 200 requests a second; a waiting request costs a few KB.
    max_length: 1000, number(0..=1_000_000);
    // After this time, most users have left or reload the page.
    timeout_ms: 10_000, number(1..=HOUR_MS);
    // Longer than any burst that a healthy server absorbs.
    lifo_after_ms: 500, number(1..=HOUR_MS);
    order: QueueOrder::Adaptive, word();
    fair_by_client: false, Flag;
}}

keys! { Buffering {
    buffer_requests: Switch::Off, word();
    buffer_responses: Switch::Off, word();
    // The same as kamal-proxy. Nearly every page and form fits, and a thousand of them take a gigabyte.
    buffer_memory_bytes: MIB as usize, number(0..=GIB);
    // Only the listener's limit.
    request_body_bytes_max: 0, number(0..=1 << 50);
    // Unlimited: the application decides how large its responses are.
    response_body_bytes_max: 0, number(0..=1 << 50);
}}

keys! { Buffers {
    spool_directory: None, Optional(File);
    // Temporary folders usually have this much space, which is enough for a few hundred slow uploads.
    spool_bytes_max: GIB, number(0..=1 << 50);
    // A hundred bodies of the default maximum in memory; further ones go to files.
    memory_bytes_max: 128 * MIB, number(0..=1 << 50);
}}

keys! { KernelAssists {
    bypass: AssistMode::Auto, word();
    bypass_downstream: Switch::Off, word();
    direct_return: AssistMode::Auto, word();
    direct_return_calm_max: None, Or("auto", number(CALM_MAX));
    splice: AssistMode::Auto, word();
    bans: AssistMode::Auto, word();
    accept_steering: AssistMode::Auto, word();
    quic_steering: AssistMode::Auto, word();
    // Two requests of the maximum size that is joined; a page of 64 KB and its head pass without falling back to TCP.
    bypass_budget_bytes: 128 * KIB as u32, number(4 * KIB..=16 * MIB);
    // Each message costs the kernel about 1 KB in addition to its bytes, so one-byte messages stay within 64 KB.
    bypass_budget_messages: 64, number(1..=4096);
    // Two map entries of a few hundred bytes each, for the applications of one host; the self-test needs a few dozen.
    bypass_connections_max: 8192, number(64..=1 << 20);
    // Longer than a healthy application is busy without reading.
    bypass_stall_ms: 5000, number(100..=DAY_MS);
    // The limit for workers that preempt others. Bodies of this size always gain; bodies from 1 KB on gain while few
    // exchanges are running.
    direct_return_bytes_min: 64 * KIB as u32, number(0..=GIB);
    // No file is as large: direct return gains at every size, and most from 256 KB on.
    direct_return_bytes_max: 1 << 50, number(0..=u64::MAX >> 1);
    // Many connections carry one request, and registering a connection costs more than one response gains.
    direct_return_from_request: 2, number(1..=1000);
    // A body that follows its head at once does so within about ten microseconds; a client that waits for a late body
    // does not notice this delay of the head. Also the interval at which a worker looks for held heads.
    direct_return_hold_ms: 10, number(0..=1000);
    // One late body resets the count of its path.
    direct_return_hold_after: 8, number(0..=255);
    // Each entry takes a few hundred bytes; responses to further clients are copied.
    direct_return_clients_max: 16_384, number(64..=1 << 20);
    // Splicing costs about thirty system calls, which a tunnel of a few messages never recovers.
    splice_after_bytes: 64 * KIB, number(0..=GIB);
    // A sender on this host can be a few hundred KB ahead of the kernel's worker.
    splice_budget_bytes: MIB as u32, number(4 * KIB..=64 * MIB);
    // Each message costs the kernel about 1 KB in addition to its bytes.
    splice_budget_pieces: 1024, number(1..=65_536);
    // Entries of a few hundred bytes; the self-test needs a few.
    splice_tunnels_max: 8192, number(16..=1 << 20);
    // 1.5 MB for more clients than most floods have; each that is pushed out by others costs one connection to a worker.
    bans_clients_max: 16_384, number(64..=1 << 20);
}}

/// Requires `min` to be at most `max`.
fn in_order(limit: &mut AutoLimit, fields: &mut Fields<'_>) {
    if limit.min > limit.max {
        fields.mistake(format!("min {} is over max {}; lower it", limit.min, limit.max));
    }
}
