//! Sluice's control stream: its settings, and what it tells the client later.

use std::task::Context;

use sluice_http::http3::{FrameKind, Http3Code, Settings, push_frame_header, push_varint, stream_type};
use sluice_net::quic::StreamId;

use super::link::Link;

/// The control stream of sluice.
pub(super) struct OwnControl {
    /// Once it is open.
    id: Option<StreamId>,
    /// What is to be sent on it.
    queue: Vec<u8>,
}

impl OwnControl {
    /// The stream with its first frame.
    pub(super) fn new(settings: &Settings) -> Self {
        let mut queue = Vec::new();
        push_varint(&mut queue, stream_type::CONTROL);
        queue.extend_from_slice(&settings.frame());
        Self { id: None, queue }
    }

    /// Whether it is open.
    pub(super) fn is_open(&self) -> bool {
        self.id.is_some()
    }

    /// Tells the client that no requests from this stream on are served.
    pub(super) fn go_away(&mut self, stream: u64) {
        let mut payload = Vec::new();
        push_varint(&mut payload, stream);
        push_frame_header(&mut self.queue, FrameKind::GoAway, payload.len() as u64);
        self.queue.append(&mut payload);
    }

    /// Sends as much as there is room for.
    pub(super) fn send(&mut self, cx: &Context<'_>, link: &Link) {
        if self.queue.is_empty() {
            return;
        }
        if self.id.is_none() {
            self.id = link.connection.open_uni();
            // What it says concerns all responses.
            self.id.iter().for_each(|id| link.connection.set_priority(*id, i32::MAX));
        }
        let Some(id) = self.id else { return };
        while !self.queue.is_empty() {
            match link.connection.write(id, &self.queue) {
                Ok(0) => return link.connection.wait_for_room(cx, id),
                Ok(count) => _ = self.queue.drain(..count),
                Err(_) => return link.fail(Http3Code::ClosedCriticalStream),
            }
        }
    }
}
