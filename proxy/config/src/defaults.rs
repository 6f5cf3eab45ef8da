//! The tables of keys that need no reading of their own: the default and the allowed range of each, with the reason.

use std::ops::RangeInclusive;

use super::codec::{File, Flag, Optional, Or, keys, map, number, word};
use super::http2::Http2Limits;
use super::reader::Fields;
use super::{
    AssistMode, AutoLimit, Buffering, Buffers, Ejection, KernelAssists, Limits, Pool, Queue, QueueOrder,
    Retry, Switch,
};

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
pub(super) const MINUTE_MS: u64 = 60_000;
pub(super) const HOUR_MS: u64 = 60 * MINUTE_MS;
pub(super) const DAY_MS: u64 = 24 * HOUR_MS;

/// Worker threads that may be asked for.
pub(super) const WORKERS: RangeInclusive<u64> = 1..=256;
/// Share of an endpoint.
pub const WEIGHT: RangeInclusive<u64> = 1..=1000;
/// A port that is asked for health.
pub(super) const PORT: RangeInclusive<u64> = 1..=65_535;
/// Requests under way at an endpoint.
pub(super) const MAX_IN_FLIGHT: RangeInclusive<u64> = 1..=1_000_000;
/// Exchanges for `direct_return_calm_max`.
const CALM_MAX: RangeInclusive<u64> = 0..=4096;
/// Also a route's own.
pub(super) const RESPONSE_TIMEOUT_MS: RangeInclusive<u64> = 1..=DAY_MS;
/// Also a route's own.
pub(super) const BODY_IDLE_TIMEOUT_MS: RangeInclusive<u64> = 1..=DAY_MS;

keys! { Limits {
    // Cookies and tokens of real sites fit; Apache and nginx take 8 KiB a field.
    head_bytes_max: 32 * KIB as usize, number(256..=MIB);
    // Browsers send about 20; the parser's table for this many is a few KB.
    headers_max: 100, number(1..=1000);
    // RFC 9110 4.1 asks for at least 8000.
    target_bytes_max: 8 * KIB as usize, number(64..=MIB);
    // Bodies stream, so this costs no memory; it bounds what one client may upload.
    body_bytes_max: 10 * GIB, number(0..=1 << 50);
    // Extensions are dropped and nobody sends long ones.
    chunk_line_bytes_max: 4 * KIB as usize, number(16..=64 * KIB);
    // Trailers are checksums and gRPC status: small.
    trailer_bytes_max: 8 * KIB as usize, number(0..=MIB);
    // An idle connection holds a few KB, so this many stay near 100 MB.
    connections_max: 20_000, number(1..=10_000_000);
    // A slow phone needs seconds; a client that drips bytes must not hold a place for longer.
    header_timeout_ms: 10_000, number(1..=HOUR_MS);
    // Browsers give up idle connections after one to two minutes.
    keep_alive_timeout_ms: MINUTE_MS, number(1..=DAY_MS);
    // Only so that no connection lives for ever; a reconnect now and then spreads clients over workers.
    requests_per_connection_max: 100_000, number(1..=1 << 40);
    // Long enough for the answer to leave, too short to collect dead clients.
    half_close_timeout_ms: 1000, number(0..=10 * MINUTE_MS);
    // Reading this much is cheaper than a new connection.
    drain_bytes_max: 256 * KIB, number(0..=GIB);
    // A client that cannot send that in two seconds gains nothing from keeping the connection.
    drain_body_timeout_ms: 2000, number(0..=10 * MINUTE_MS);
    // Enough for some dozens of bodies at full speed; the rest still move, in small pieces.
    body_buffers_bytes_max: 4 * MIB as usize, number(0..=16 * GIB);
    http2: Http2Limits::default(), map();
}}

keys! { Pool {
    // What ten clients ask for at once by HTTP/2, whose waves would else open connections for each; they end soon.
    idle_max_per_endpoint: 1024, number(0..=100_000);
    // Below the 5 s after which Node and uvicorn close, so that we close first.
    idle_timeout_ms: 4000, number(1..=DAY_MS);
}}

keys! { Retry {
    // One fresh connection settles the race with a closing server; more would multiply load.
    attempts_max: 1, number(0..=10);
    // Two more endpoints outlive the failure of one, without trying a whole dead cluster.
    connect_attempts_max: 2, number(0..=100);
}}

keys! { Ejection {
    // A streak this long is no accident.
    consecutive_failures: 5, number(0..=1_000_000);
    // About the restart of an application server.
    time_ms: 10_000, number(1..=DAY_MS);
}}

keys! { AutoLimit, settle in_order {
    // Fewer would leave a server idle between two requests.
    min: 3, number(MAX_IN_FLIGHT);
    // Beyond it a server is no longer what limits.
    max: 1000, number(MAX_IN_FLIGHT);
    // As Envoy's adaptive concurrency; a measurement takes 50 answers.
    measure_interval_ms: MINUTE_MS, number(100..=DAY_MS);
}}

keys! { Queue {
    // Five seconds of work for a server of 200 requests a second; a waiting request costs a few KB.
    max_length: 1000, number(0..=1_000_000);
    // Whoever waits for longer has gone or presses reload.
    timeout_ms: 10_000, number(1..=HOUR_MS);
    // Longer than any burst that a healthy server works off.
    lifo_after_ms: 500, number(1..=HOUR_MS);
    order: QueueOrder::Adaptive, word();
    fair_by_client: false, Flag;
}}

keys! { Buffering {
    buffer_requests: Switch::Off, word();
    buffer_responses: Switch::Off, word();
    // As kamal-proxy. Nearly every page and form fits, and a thousand of them are a gigabyte.
    buffer_memory_bytes: MIB as usize, number(0..=GIB);
    // None but the listener's.
    request_body_bytes_max: 0, number(0..=1 << 50);
    // None: what an application answers is its own affair.
    response_body_bytes_max: 0, number(0..=1 << 50);
}}

keys! { Buffers {
    spool_directory: None, Optional(File);
    // A temporary folder has that much to spare, and some hundred slow uploads fit.
    spool_bytes_max: GIB, number(0..=1 << 50);
    // A hundred bodies of the most that one may have in memory by default; later ones go into files.
    memory_bytes_max: 128 * MIB, number(0..=1 << 50);
}}

keys! { KernelAssists {
    bypass: AssistMode::Auto, word();
    bypass_downstream: Switch::Off, word();
    direct_return: AssistMode::Auto, word();
    direct_return_calm_max: None, Or("auto", number(CALM_MAX));
    splice: AssistMode::Auto, word();
    // Two requests of the most that is joined; a page of 64 KB with its head passes without changing over.
    bypass_budget_bytes: 128 * KIB as u32, number(4 * KIB..=16 * MIB);
    // Each costs the kernel about 1 KB beside its bytes, so one-byte messages stay within 64 KB.
    bypass_budget_messages: 64, number(1..=4096);
    // Two entries of some hundred bytes each, for applications of one host; the self-test needs some dozens.
    bypass_connections_max: 8192, number(64..=1 << 20);
    // Longer than an application that serves is busy with something else at a stretch.
    bypass_stall_ms: 5000, number(100..=DAY_MS);
    // For workers that preempt others; those gain from this size on in any case, and from 1 KB on where few exchanges
    // are under way.
    direct_return_bytes_min: 64 * KIB as u32, number(0..=GIB);
    // There is no size that it does not pay for: from 256 KB on it gains most.
    direct_return_bytes_max: u64::MAX >> 1, number(0..=u64::MAX >> 1);
    // Many connections bring one request, and entering one costs more than one answer gains.
    direct_return_from_request: 2, number(1..=1000);
    // A body that follows its head at once does so within some ten microseconds; who waits for a late one will
    // not notice that its head came so much later. Also how often a worker looks, where heads are kept.
    direct_return_hold_ms: 10, number(0..=1000);
    // One late body makes its path begin anew.
    direct_return_hold_after: 8, number(0..=255);
    // Each entry is some hundred bytes; further clients are answered by copying.
    direct_return_clients_max: 16_384, number(64..=1 << 20);
    // Joining costs some thirty system calls, which a tunnel of a few messages never earns back.
    splice_after_bytes: 64 * KIB, number(0..=GIB);
    // A sender on this host is ahead of the kernel's worker by some hundred KB now and then.
    splice_budget_bytes: MIB as u32, number(4 * KIB..=64 * MIB);
    // Each costs the kernel about 1 KB beside its bytes.
    splice_budget_pieces: 1024, number(1..=65_536);
    // Entries of some hundred bytes; the self-test needs a few.
    splice_tunnels_max: 8192, number(16..=1 << 20);
}}

/// The bounds of a limit that finds itself are the right way round.
fn in_order(limit: &mut AutoLimit, fields: &mut Fields<'_>) {
    if limit.min > limit.max {
        fields.mistake(format!("min {} is over max {}; lower it", limit.min, limit.max));
    }
}
