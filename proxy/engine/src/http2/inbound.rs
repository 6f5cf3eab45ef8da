//! The body of a message on its way in: DATA frames, and trailers behind them.

use std::task::{Context, Poll, ready};

use ::http::HeaderMap;
use bytes::{Buf, Bytes};
use h2::RecvStream;

/// A body that comes.
pub(super) struct Inbound {
    stream: RecvStream,
    /// Received, and not given out yet; the sender's window still counts it.
    rest: Bytes,
    trailers: Option<HeaderMap>,
    ended: bool,
}

impl Inbound {
    pub(super) fn new(stream: RecvStream) -> Self {
        let ended = stream.is_end_stream();
        Self { stream, rest: Bytes::new(), trailers: None, ended }
    }

    /// Whether all of it has been given out, and nothing follows but its trailers.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

    /// Appends what there is to `buf`; 0 is the end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<Result<usize, h2::Error>> {
        let before = buf.len();
        let polled = self.poll_all(cx, buf);
        match (buf.len() - before, polled) {
            // What is wrong is said again next time.
            (count @ 1.., _) => Poll::Ready(Ok(count)),
            (0, Poll::Ready(outcome)) => Poll::Ready(outcome.map(|()| 0)),
            (_, Poll::Pending) => Poll::Pending,
        }
    }

    /// Gives out body until there is no room, or nothing more has come. Ready at its end, or when it breaks off.
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

    /// Moves what was received to `buf`, and opens the window by it. True if there is no room for all of it.
    fn give(&mut self, buf: &mut Vec<u8>) -> bool {
        if self.rest.is_empty() {
            return false;
        }
        // A receive of nothing would be the end.
        let room = (buf.capacity() - buf.len()).max(1);
        let count = room.min(self.rest.len());
        buf.extend_from_slice(&self.rest[..count]);
        self.rest.advance(count);
        // It fails only if more is given back than was taken.
        let _ = self.stream.flow_control().release_capacity(count);
        !self.rest.is_empty()
    }
}
