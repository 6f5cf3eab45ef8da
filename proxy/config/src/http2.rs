//! HTTP/2 on a listener: when it is spoken, and the limits of one connection.

use std::ops::RangeInclusive;

use super::codec::{keys, number};
use super::names::words;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HOUR_MS: u64 = 3_600_000;
/// Range of a flow-control window (RFC 9113 section 6.9.1).
const WINDOW_BYTES: RangeInclusive<u64> = 65_535..=(1 << 31) - 1;

/// When a listener speaks HTTP/2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Http2 {
    /// If the TLS handshake negotiated it (ALPN `h2`).
    #[default]
    Auto,
    /// Also without TLS, if the client sends the HTTP/2 preface (RFC 9113 section 3.3).
    PriorKnowledge,
    /// Never.
    Off,
}

words!(Http2 {
    Auto = "auto",
    PriorKnowledge = "prior_knowledge",
    Off = "off",
});

/// Limits of one HTTP/2 connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Http2Limits {
    /// Concurrent streams (SETTINGS_MAX_CONCURRENT_STREAMS); further ones are refused.
    pub streams_max: u32,
    /// Bytes of a request body that one stream may have in flight to its application.
    pub stream_window_bytes: u32,
    /// The same for all streams of a connection together.
    pub connection_window_bytes: u32,
    /// Maximum bytes of a frame from the client (SETTINGS_MAX_FRAME_SIZE).
    pub frame_bytes_max: u32,
    /// Response bytes of one stream that may wait for the connection.
    pub send_buffer_bytes: usize,
    /// Interval over which resets and control frames are counted, in milliseconds.
    pub interval_ms: u64,
    /// Streams that the client may reset per interval.
    pub resets_max: u64,
    /// PING, SETTINGS, PRIORITY and WINDOW_UPDATE frames that it may send per interval, plus one for each KiB sent to
    /// it.
    pub control_frames_max: u64,
    /// Streams that the client reset before sluice processed them.
    pub pending_resets_max: usize,
    /// Streams that sluice had to reset for a fault of the client, over the life of the connection.
    pub faults_max: usize,
}

keys! { Http2Limits {
    // RFC 9113 6.5.2 recommends at least 100, which is enough for browsers.
    streams_max: 100, number(1..=10_000);
    // 20 MB/s at 12 ms; bytes that an application does not read yet are kept in memory.
    stream_window_bytes: 256 * KIB as u32, number(WINDOW_BYTES);
    // Four such uploads at full speed; a connection never takes more memory.
    connection_window_bytes: MIB as u32, number(WINDOW_BYTES);
    // The minimum of the protocol: streams take turns more often.
    frame_bytes_max: 16 * KIB as u32, number(16 * KIB..=MIB);
    // One piece of a body; the application keeps what the client does not read.
    send_buffer_bytes: 64 * KIB as usize, number(KIB..=16 * MIB);
    // Evens out bursts, and still detects a flood in time.
    interval_ms: 10_000, number(100..=HOUR_MS);
    // A browser that leaves a page resets its open streams: up to a few hundred. Rapid Reset sends thousands a second.
    resets_max: 500, number(1..=1_000_000);
    // A gRPC client pings at most twice a second; window updates follow the bytes that are read.
    control_frames_max: 2000, number(10..=1_000_000);
    // Streams are processed as they arrive, so these are few.
    pending_resets_max: 20, number(1..=10_000);
    // A client with hundreds of faults causes them deliberately (CVE-2025-8671).
    faults_max: 200, number(1..=100_000);
}}
