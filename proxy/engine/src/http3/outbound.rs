//! The message being sent on a stream: heads, DATA frames as far as there is room, and trailers.

use std::io;
use std::task::Context;

use sluice_http::Trailers;
use sluice_http::http3::{DATA_HEADER_BYTES_MAX, FrameKind, Http3Code, push_frame_header, qpack};
use sluice_net::quic::{Connection, StreamId};

use super::{broken, invalid};

/// Where a message ends.
struct End {
    /// Bytes before it.
    bytes_left: usize,
    /// The frame of its trailers; empty if there are none.
    trailers: Vec<u8>,
}

/// A message being sent.
pub(super) struct Outbound {
    id: StreamId,
    /// Whether the final head was sent, or is in `queue`.
    has_begun: bool,
    /// Frames, or the header of one, that come before the next bytes of the body.
    queue: Vec<u8>,
    /// How much of `queue` was sent.
    sent: usize,
    /// Bytes that are missing in the DATA frame whose header was queued.
    frame_left: usize,
    /// Set once it is known.
    end: Option<End>,
    /// Whether the whole message was taken.
    done: bool,
}

/// The end of a message that had no room yet.
pub(super) struct Rest {
    id: StreamId,
    queue: Vec<u8>,
    sent: usize,
}

impl Rest {
    /// Sends as much as there is room for. Returns whether that was all, or is not wanted any more.
    pub(super) fn send(&mut self, connection: &Connection, cx: &Context<'_>) -> bool {
        while self.sent < self.queue.len() {
            match connection.write(self.id, &self.queue[self.sent..]) {
                Ok(0) => {
                    connection.wait_for_room(cx, self.id);
                    return false;
                }
                Ok(count) => self.sent += count,
                Err(_) => {
                    connection.forget(self.id);
                    return true;
                }
            }
        }
        connection.finish(self.id);
        connection.forget(self.id);
        true
    }
}

impl Outbound {
    pub(super) fn new(id: StreamId) -> Self {
        Self { id, has_begun: false, queue: Vec::new(), sent: 0, frame_left: 0, end: None, done: false }
    }

    /// Whether the whole message was taken.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Sends a head with this status, encoded as a field section. `ends` tells whether the message ends with it.
    pub(super) fn send_head(
        &mut self,
        connection: &Connection,
        status: u16,
        section: &[u8],
        ends: bool,
    ) -> io::Result<()> {
        if self.has_begun {
            return Err(invalid());
        }
        push_frame_header(&mut self.queue, FrameKind::Headers, section.len() as u64);
        self.queue.extend_from_slice(section);
        self.has_begun = status >= 200;
        self.done = ends;
        self.flush(connection).map(drop)
    }

    /// Whether frames wait for room.
    pub(super) fn has_queue(&self) -> bool {
        self.sent < self.queue.len()
    }

    /// Sends what is queued. Returns whether that was all.
    pub(super) fn flush(&mut self, connection: &Connection) -> io::Result<bool> {
        while self.sent < self.queue.len() {
            match connection.write(self.id, &self.queue[self.sent..]) {
                Ok(0) => return Ok(false),
                Ok(count) => self.sent += count,
                Err(_) => return Err(broken()),
            }
        }
        self.queue.clear();
        self.sent = 0;
        if self.done {
            connection.finish(self.id);
        }
        Ok(true)
    }

    /// Takes as much of `bytes` as there is room for, and returns how much.
    pub(super) fn push(&mut self, connection: &Connection, bytes: &[u8]) -> io::Result<usize> {
        if self.done || !self.has_begun {
            return Err(invalid());
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        if self.frame_left == 0 {
            if !self.flush(connection)? {
                return Ok(0);
            }
            self.queue.reserve(DATA_HEADER_BYTES_MAX);
            push_frame_header(&mut self.queue, FrameKind::Data, bytes.len() as u64);
            self.frame_left = bytes.len();
        }
        if !self.flush(connection)? {
            return Ok(0);
        }
        let part = &bytes[..bytes.len().min(self.frame_left)];
        let count = connection.write(self.id, part).map_err(|_| broken())?;
        self.frame_left -= count;
        if let Some(end) = &mut self.end {
            end.bytes_left = end.bytes_left.checked_sub(count).ok_or_else(invalid)?;
        }
        if let Some(end) = self.end.take_if(|end| end.bytes_left == 0) {
            self.end_with(connection, end.trailers)?;
        }
        Ok(count)
    }

    /// Makes the message end after this many bytes.
    pub(super) fn end_after(
        &mut self,
        connection: &Connection,
        bytes: usize,
        trailers: &Trailers,
    ) -> io::Result<()> {
        if self.done || self.end.is_some() || !self.has_begun {
            return Err(invalid());
        }
        let mut frame = Vec::new();
        if !trailers.is_empty() {
            let mut section = qpack::Encoder::new();
            trailers.fields().for_each(|(name, value)| section.field(name, value));
            push_frame_header(&mut frame, FrameKind::Headers, section.bytes().len() as u64);
            frame.extend_from_slice(section.bytes());
        }
        if bytes > 0 {
            self.end = Some(End { bytes_left: bytes, trailers: frame });
            return Ok(());
        }
        self.end_with(connection, frame)
    }

    fn end_with(&mut self, connection: &Connection, mut trailers: Vec<u8>) -> io::Result<()> {
        self.queue.append(&mut trailers);
        self.done = true;
        self.flush(connection).map(drop)
    }

    /// Ends a message that has no other end.
    pub(super) fn finish(&mut self, connection: &Connection) {
        if !self.done && self.frame_left == 0 {
            // An error means that the receiver ended the stream first.
            let _ = self.end_with(connection, Vec::new());
        }
    }

    /// What is left of a message that was taken as a whole.
    pub(super) fn rest(&mut self) -> Option<Rest> {
        let is_left = self.done && self.has_queue();
        is_left.then(|| Rest { id: self.id, queue: std::mem::take(&mut self.queue), sent: self.sent })
    }

    /// Aborts an incomplete message, so that nobody takes it for a complete one.
    pub(super) fn break_off(&mut self, connection: &Connection, code: Http3Code) {
        if !self.done {
            self.done = true;
            self.queue.clear();
            connection.reset(self.id, code.number());
        }
    }
}
