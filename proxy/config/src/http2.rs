//! HTTP/2 on a listener: when it is spoken, and what one connection of it may ask for.

use std::ops::RangeInclusive;

use super::codec::{keys, number};
use super::names::words;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const HOUR_MS: u64 = 3_600_000;
/// Bytes of a flow-control window (RFC 9113 section 6.9.1).
const WINDOW_BYTES: RangeInclusive<u64> = 65_535..=(1 << 31) - 1;

/// When a listener speaks HTTP/2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Http2 {
    /// Where the TLS handshake has agreed on it (ALPN `h2`).
    #[default]
    Auto,
    /// Also without TLS, to a client that begins with its preface (RFC 9113 section 3.3).
    PriorKnowledge,
    /// Never.
    Off,
}

words!(Http2 {
    Auto = "auto",
    PriorKnowledge = "prior_knowledge",
    Off = "off",
});

/// Bounds on one HTTP/2 connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Http2Limits {
    /// Streams that may be open at once (SETTINGS_MAX_CONCURRENT_STREAMS); further ones are refused.
    pub streams_max: u32,
    /// Bytes of a request body that one stream may have on its way to its application.
    pub stream_window_bytes: u32,
    /// The same for all streams of a connection together.
    pub connection_window_bytes: u32,
    /// Bytes of a frame from the client (SETTINGS_MAX_FRAME_SIZE).
    pub frame_bytes_max: u32,
    /// Bytes of an answer that wait for the connection, of one stream.
    pub send_buffer_bytes: usize,
    /// Time over which resets and control frames are counted, in milliseconds.
    pub interval_ms: u64,
    /// Streams that the client may reset in that time.
    pub resets_max: u64,
    /// PING, SETTINGS, PRIORITY and WINDOW_UPDATE frames that it may send in that time; one more for each KiB sent to it.
    pub control_frames_max: u64,
    /// Streams that the client has reset before we have looked at them.
    pub pending_resets_max: usize,
    /// Streams that we had to reset for a fault of the client, as long as the connection lasts.
    pub faults_max: usize,
}

keys! { Http2Limits {
    // RFC 9113 6.5.2 asks for no less than 100; browsers are content with it.
    streams_max: 100, number(1..=10_000);
    // 20 MB/s at 12 ms; what an application does not take yet is held in memory.
    stream_window_bytes: 256 * KIB as u32, number(WINDOW_BYTES);
    // Four such uploads at full speed; no connection makes us hold more.
    connection_window_bytes: MIB as u32, number(WINDOW_BYTES);
    // The least that the protocol allows: streams take turns more often.
    frame_bytes_max: 16 * KIB as u32, number(16 * KIB..=MIB);
    // One piece of a body; what the client does not read stays with the application.
    send_buffer_bytes: 64 * KIB as usize, number(KIB..=16 * MIB);
    // Bursts are evened out, and a flood is seen in time.
    interval_ms: 10_000, number(100..=HOUR_MS);
    // A browser that leaves a page resets what is open: some hundred. Rapid Reset sends thousands a second.
    resets_max: 500, number(1..=1_000_000);
    // A gRPC client pings twice a second at the most; windows are opened as bytes are read.
    control_frames_max: 2000, number(10..=1_000_000);
    // They are looked at as they come, so these are few.
    pending_resets_max: 20, number(1..=10_000);
    // A client that makes hundreds of mistakes makes them on purpose (CVE-2025-8671).
    faults_max: 200, number(1..=100_000);
}}
