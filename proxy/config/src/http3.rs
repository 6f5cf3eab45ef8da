//! HTTP/3 on a listener: whether it is spoken, how clients learn of it, and the limits of one connection.

use std::ops::RangeInclusive;

use super::codec::{Codec, Own, Table, keys, map, number, word};
use super::names::words;
use super::reader::Item;
use super::shape::Shape;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const HOUR_MS: u64 = 3_600_000;
const YEAR_S: u64 = 365 * 86_400;
/// Range of a flow-control window. Less than a datagram would stop every body after its first one.
const WINDOW_BYTES: RangeInclusive<u64> = 16 * KIB..=(1 << 31) - 1;

/// HTTP/3 on the UDP port of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3 {
    /// The port that clients are told; 0 is the one of the listener.
    pub advertised_port: u16,
    /// How long clients remember that there is HTTP/3, in seconds; 0 makes them forget it.
    pub advertised_age_s: u64,
    /// Whether clients that return may send requests before the handshake is complete.
    pub early_data: EarlyData,
    /// Sessions that are kept for them.
    pub early_data_sessions_max: usize,
}

/// What is done with requests that arrive before the handshake is complete (0-RTT, RFC 8470). Somebody who has recorded
/// them can send them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EarlyData {
    /// Clients cannot send them.
    #[default]
    Off,
    /// Those with a safe method and without a body are answered at once, and the others after the handshake.
    Safe,
}

words!(EarlyData {
    Off = "off",
    Safe = "safe",
});

keys! { Http3 {
    advertised_port: 0, number(0..=65_535);
    // A day, like most servers: a client that finds the port closed falls back to TCP.
    advertised_age_s: 86_400, number(0..=YEAR_S);
    // An attacker could send recorded requests again.
    early_data: EarlyData::Off, word();
    // Of the clients that came last; each takes about 500 bytes, twice. The others make a full handshake.
    early_data_sessions_max: 10_000, number(1..=1_000_000);
}}

impl Http3 {
    /// Whether clients may send requests before the handshake is complete.
    pub fn has_early_data(&self) -> bool {
        self.early_data != EarlyData::Off
    }

    /// The value of Alt-Svc (RFC 7838) for a listener on `port`.
    pub fn alt_svc(&self, port: u16) -> String {
        let port = if self.advertised_port == 0 { port } else { self.advertised_port };
        match self.advertised_age_s {
            0 => "clear".to_owned(),
            age_s => format!("h3=\":{port}\"; ma={age_s}"),
        }
    }
}

/// `http3`: auto, or a map. The caller handles off.
pub(super) const HTTP3: Own<Http3> = Own {
    read: http3,
    write: |http3| if *http3 == Http3::default() { "auto".into() } else { Table::written(http3) },
    shape: || Shape::AnyOf(vec![Shape::OneOf(vec!["auto".into()]), map::<Http3>().shape()]),
};

fn http3(item: &Item<'_>) -> Option<Http3> {
    let is_auto = item.value.as_str() == Some("auto");
    if !is_auto && !item.value.is_mapping() {
        item.not_one_of(&["auto", "off", "{advertised_port: 443}"]);
    }
    if item.value.is_mapping() { map().read(item) } else { Some(Http3::default()) }
}

/// Limits of one HTTP/3 connection.
#[derive(Clone, Debug, PartialEq)]
pub struct Http3Limits {
    /// Concurrent requests; a client cannot open more.
    pub streams_max: u32,
    /// Bytes of a request body that one stream may have in flight to its application.
    pub stream_window_bytes: u32,
    /// The same for all streams of a connection together.
    pub connection_window_bytes: u32,
    /// Response bytes of a connection that the client has not acknowledged yet.
    pub send_window_bytes: u64,
    /// Handshakes under way on the listener from which on a client must first prove its address (Retry).
    pub validate_above: usize,
    /// Interval over which what follows is counted, in milliseconds.
    pub interval_ms: u64,
    /// Requests that the client may cancel per interval.
    pub resets_max: u64,
    /// Frames without a meaning, priorities, and control frames that it may send per interval.
    pub control_frames_max: u64,
    /// Changes of the client's address, and probes of addresses, per interval.
    pub paths_max: u64,
    /// Parts of streams that arrive without being of use for reading, per interval: with gaps before them, or again.
    pub unread_frames_max: u64,
    /// Requests that sluice had to reset for a fault of the client, over the life of the connection.
    pub faults_max: u64,
}

keys! { Http3Limits {
    // RFC 9114 6.1 recommends at least 100, which is enough for browsers.
    streams_max: 100, number(1..=10_000);
    // 20 MB/s at 12 ms; bytes that an application does not read yet are kept in memory.
    stream_window_bytes: 256 * KIB as u32, number(WINDOW_BYTES);
    // Eight such uploads; while all of it is in use, heads of requests wait, too. A connection never takes more memory.
    connection_window_bytes: 2 * MIB as u32, number(WINDOW_BYTES);
    // 80 MB/s at 12 ms. What a client has not acknowledged must be kept, because it may have to be sent again.
    send_window_bytes: MIB, number(16 * KIB..=GIB);
    // Far more than an honest site has under way in the 50 ms of a handshake; Retry costs a client a round trip.
    validate_above: 200, number(0..=10_000_000);
    // Evens out bursts, and still detects a flood in time.
    interval_ms: 10_000, number(100..=HOUR_MS);
    // A browser that leaves a page cancels its open requests: up to a few hundred. Rapid Reset sends thousands a second.
    resets_max: 500, number(1..=1_000_000);
    // A browser sends a priority or two for a request, and a few frames to keep servers used to unknown ones.
    control_frames_max: 2000, number(10..=1_000_000);
    // A phone changes its network a few times a day. An address may be forged, and gets a packet of 1200 bytes for one of 40.
    paths_max: 20, number(1..=100_000);
    // Hundreds of uploads that are refused. Tiny parts with gaps, or parts that come again, cost time to sort.
    unread_frames_max: 100_000, number(1000..=10_000_000);
    // A client with hundreds of faults causes them deliberately.
    faults_max: 200, number(1..=100_000);
}}
