//! What the transport has counted and measured, looked at now and then.

use std::net::SocketAddr;

use sluice_core::metrics::Event;
use sluice_net::quic::ConnectionStats;

use super::link::Link;

/// After how many turns of the driver the counts are looked at.
const LOOK_EVERY: u32 = 64;
/// Bytes sent to a client for each frame that it needs few of: one that reads much and sends nothing pings now and then,
/// to learn which of its acknowledgements have arrived (RFC 9000 section 13.2.4). ngtcp2 does so every 45 KB.
const BYTES_A_FRAME: u64 = 4 << 10;

/// What was seen of a connection's transport.
pub(super) struct TransportWatch {
    turns: u32,
    /// Frames that a client needs few of, and bytes that were sent to it.
    frames: (u64, u64),
    /// Probes of addresses.
    probes: u64,
    /// Parts of streams that have arrived, and pieces that were read.
    parts: (u64, u64),
    /// Frames with parts of streams that were sent.
    sent: u64,
    /// Packets that were counted: sent, and lost.
    packets: (u64, u64),
    remote: SocketAddr,
}

impl TransportWatch {
    pub(super) fn new(link: &Link) -> Self {
        Self {
            turns: 0,
            frames: (0, 0),
            probes: 0,
            parts: (0, 0),
            sent: 0,
            packets: (0, 0),
            remote: link.connection.remote(),
        }
    }

    /// Counts frames that a client needs few of, and changes of its address.
    pub(super) fn look(&mut self, link: &Link) {
        let changes = link.connection.take_address_changes();
        if changes > 0 {
            link.meter.count_paths(changes);
        }
        self.turns = self.turns.wrapping_add(1);
        if !self.turns.is_multiple_of(LOOK_EVERY) {
            return;
        }
        let stats = link.connection.stats();
        self.count_packets(link, &stats);
        let frames = stats.frame_rx;
        link.meter.count_paths(frames.path_challenge.saturating_sub(self.probes));
        self.probes = frames.path_challenge;
        let parts = (frames.stream, link.connection.pieces());
        let before = std::mem::replace(&mut self.parts, parts);
        link.meter.count_parts(parts.0.saturating_sub(before.0), parts.1.saturating_sub(before.1));
        let all = frames.new_connection_id
            + frames.retire_connection_id
            + frames.ping
            + frames.new_token
            + u64::from(frames.handshake_done)
            + frames.stop_sending
            + frames.reset_stream;
        let now = (all, stats.udp_tx.bytes);
        let before = std::mem::replace(&mut self.frames, now);
        let allowed = now.1.saturating_sub(before.1) / BYTES_A_FRAME;
        let frames = now.0.saturating_sub(before.0) + link.connection.take_crumbs();
        link.meter.count_control_frames(frames.saturating_sub(allowed));
        let remote = link.connection.remote();
        if std::mem::replace(&mut self.remote, remote) != remote {
            link.metrics.count(Event::Http3Migrated);
        }
    }

    /// Counts what the connection has brought, at its end.
    pub(super) fn finish(&mut self, link: &Link) {
        let stats = link.connection.stats();
        self.count_packets(link, &stats);
        link.metrics.count(Event::Http3Closed);
        link.metrics.add(Event::Http3RttUs, u64::try_from(stats.path.rtt.as_micros()).unwrap_or(u64::MAX));
    }

    fn count_packets(&mut self, link: &Link, stats: &ConnectionStats) {
        let now = (stats.path.sent_packets, stats.path.lost_packets);
        let before = std::mem::replace(&mut self.packets, now);
        link.metrics.add(Event::Http3PacketsSent, now.0.saturating_sub(before.0));
        link.metrics.add(Event::Http3PacketsLost, now.1.saturating_sub(before.1));
    }

    /// Whether parts of streams were sent since this was last asked.
    pub(super) fn has_sent(&mut self, link: &Link) -> bool {
        let sent = link.connection.stats().frame_tx.stream;
        std::mem::replace(&mut self.sent, sent) != sent
    }
}
