//! What the transport has counted and measured, looked at now and then.

use std::net::SocketAddr;

use sluice_core::metrics::Event;

use super::link::Link;

/// After how many turns of the driver the counts are looked at.
const LOOK_EVERY: u32 = 64;

/// What was seen of a connection's transport.
pub(super) struct TransportWatch {
    turns: u32,
    /// Frames that a client needs few of.
    frames: u64,
    /// Frames with parts of streams that were sent.
    sent: u64,
    remote: SocketAddr,
}

impl TransportWatch {
    pub(super) fn new(link: &Link) -> Self {
        Self { turns: 0, frames: 0, sent: 0, remote: link.connection.remote() }
    }

    /// Counts frames that a client needs few of, and changes of its address.
    pub(super) fn look(&mut self, link: &Link) {
        self.turns = self.turns.wrapping_add(1);
        if !self.turns.is_multiple_of(LOOK_EVERY) {
            return;
        }
        let frames = link.connection.stats().frame_rx;
        let all = frames.path_challenge
            + frames.new_connection_id
            + frames.retire_connection_id
            + frames.ping
            + frames.new_token
            + u64::from(frames.handshake_done)
            + frames.stop_sending
            + frames.reset_stream;
        link.meter.count_control_frames(all.saturating_sub(self.frames));
        self.frames = all;
        let remote = link.connection.remote();
        if std::mem::replace(&mut self.remote, remote) != remote {
            link.metrics.count(Event::Http3Migrated);
        }
    }

    /// Whether parts of streams were sent since this was last asked.
    pub(super) fn has_sent(&mut self, link: &Link) -> bool {
        let sent = link.connection.stats().frame_tx.stream;
        std::mem::replace(&mut self.sent, sent) != sent
    }
}
