//! The body of a received message: DATA frames, followed by trailers.

use std::task::{Context, Poll, ready};

use ::http::HeaderMap;
use bytes::{Buf, Bytes};
use h2::RecvStream;

/// A body being received.
pub(super) struct Inbound {
    stream: RecvStream,
    /// Received, but not given out yet; it still counts against the sender's window.
    rest: Bytes,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl Inbound {
    pub(super) fn new(stream: RecvStream) -> Self {
        let ended = stream.is_end_stream();
        Self { stream, rest: Bytes::new(), trailers: None, ended }
    }

    /// Whether all of it was given out, and only trailers may follow.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

    /// Appends the available bytes to `buf`; 0 is the end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<Result<usize, h2::Error>> {
        let before = buf.len();
        let polled = self.poll_all(cx, buf);
        match (buf.len() - before, polled) {
            // An error will be returned again by the next call.
            (count @ 1.., _) => Poll::Ready(Ok(count)),
            (0, Poll::Ready(outcome)) => Poll::Ready(outcome.map(|()| 0)),
            (_, Poll::Pending) => Poll::Pending,
        }
    }

    /// Gives out bytes until there is no room, or nothing more has arrived. Ready at the end of the body, or when it is
    /// aborted.
    fn poll_all(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<Result<(), h2::Error>> {
        while !self.ended {
            if self.give(buf) {
                return Poll::Pending;
            }
            match ready!(self.stream.poll_data(cx)) {
                Some(data) => self.rest = data?,
                None => {
                    self.trailers = ready!(self.stream.poll_trailers(cx))?;
                    self.ended = true;
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Moves received bytes to `buf`, and opens the window by their number. Returns true if there is no room for all of
    /// them.
    fn give(&mut self, buf: &mut Vec<u8>) -> bool {
        if self.rest.is_empty() {
            return false;
        }
        // An empty receive would be taken for the end.
        let room = (buf.capacity() - buf.len()).max(1);
        let count = room.min(self.rest.len());
        buf.extend_from_slice(&self.rest[..count]);
        self.rest.advance(count);
        // Fails only if more is released than was received.
        let _ = self.stream.flow_control().release_capacity(count);
        !self.rest.is_empty()
    }
}
