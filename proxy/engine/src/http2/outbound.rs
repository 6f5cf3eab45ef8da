//! The body of a message being sent: DATA frames, as far as the receiver's windows have room, and trailers.

use std::io;
use std::task::{Context, Poll, ready};

use ::http::HeaderMap;
use bytes::Bytes;
use h2::{Reason, SendStream};
use sluice_http::Trailers;

use super::{broken, fields, invalid};

/// Bodies of at least this size are passed on without a copy; smaller ones are copied out of their buffer.
const MOVED_BYTES_MIN: usize = 4096;

/// Where a message ends.
struct End {
    /// Bytes before it.
    bytes_left: usize,
    trailers: HeaderMap,
}

/// A body being sent.
pub(super) struct Outbound {
    stream: SendStream<Bytes>,
    /// Set once it is known.
    end: Option<End>,
    done: bool,
}

impl Outbound {
    /// The body after a head that was sent; `done` if nothing follows the head.
    pub(super) fn new(stream: SendStream<Bytes>, done: bool) -> Self {
        Self { stream, end: None, done }
    }

    /// Whether all of the message was passed to the crate.
    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    /// Takes as much of `buf[start..]` as can be sent now, and returns how much; the rest needs room in the receiver's
    /// windows. If everything can be sent, `buf` itself may be taken, unless it is to be kept for a retry.
    pub(super) fn push(&mut self, buf: &mut Vec<u8>, start: usize, keep: bool) -> io::Result<usize> {
        let rest = buf.len() - start;
        let count = self.room(rest)?.min(rest);
        if count == 0 {
            return Ok(0);
        }
        let ends = self.end.as_mut().map(|end| {
            end.bytes_left = end.bytes_left.checked_sub(count).ok_or_else(invalid)?;
            Ok::<_, io::Error>(end.bytes_left == 0)
        });
        let ends = ends.transpose()?.unwrap_or(false);
        let data = if count == rest && count >= MOVED_BYTES_MIN && !keep {
            Bytes::from(std::mem::take(buf)).slice(start..)
        } else {
            Bytes::copy_from_slice(&buf[start..start + count])
        };
        let trailers = self.end.take_if(|_| ends).map(|end| end.trailers);
        let last = trailers.as_ref().is_some_and(HeaderMap::is_empty);
        self.stream.send_data(data, last).map_err(gone)?;
        if let Some(trailers) = trailers.filter(|_| !last) {
            self.stream.send_trailers(trailers).map_err(gone)?;
        }
        self.done = ends;
        Ok(count)
    }

    /// Makes the message end after this many bytes.
    pub(super) fn end_after(&mut self, bytes: usize, trailers: &Trailers) -> io::Result<()> {
        if self.done || self.end.is_some() {
            return Err(invalid());
        }
        let trailers = fields::trailers(trailers).ok_or_else(invalid)?;
        if bytes > 0 {
            self.end = Some(End { bytes_left: bytes, trailers });
            return Ok(());
        }
        self.done = true;
        // Neither needs room in a window, so the end is sent even to a receiver that does not open its window any more.
        let sent = match trailers.is_empty() {
            true => self.stream.send_data(Bytes::new(), true),
            false => self.stream.send_trailers(trailers),
        };
        sent.map_err(gone)
    }

    /// Ends a message that has no other end.
    pub(super) fn finish(&mut self) {
        if !self.done {
            // An error means that the receiver ended the stream first.
            let _ = self.end_after(0, Trailers::NONE);
        }
    }

    /// The number of bytes that the windows have room for; requests at most `wanted`.
    fn room(&mut self, wanted: usize) -> io::Result<usize> {
        if self.done {
            return Err(invalid());
        }
        self.stream.reserve_capacity(wanted);
        Ok(self.stream.capacity())
    }

    /// Ready when there is room again.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>> {
        while self.room(wanted)? == 0 {
            match ready!(self.stream.poll_capacity(cx)) {
                Some(room) => _ = room.map_err(gone)?,
                None => return Poll::Ready(Err(broken())),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when the receiver, or the end of the connection, has ended the stream.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_reset(cx).map(drop)
    }

    /// Aborts the stream.
    pub(super) fn reset(&mut self, reason: Reason) {
        self.stream.send_reset(reason);
    }
}

/// The receiver, or its stream, is gone.
pub(super) fn gone(_: h2::Error) -> io::Error {
    broken()
}
