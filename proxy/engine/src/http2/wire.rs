//! The two directions of a stream in the form that the `h2` crate needs: polled, with borrowed buffers.
//!
//! The crate's output is gathered and sent in one piece once the crate has written everything, or when there is much. A
//! batch of frames is thus one operation of the ring, and the next batch is gathered while it is under way.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use sluice_core::metrics::Abuse;
use sluice_net::buffers::{IDLE_BYTES, SMALL_BYTES};
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::meter::Meter;

/// Gathered bytes are sent at this size in any case; while a send is under way, no more are accepted.
const GATHERED_BYTES_MAX: usize = 64 * 1024;
/// Enough for the debug data of a GOAWAY.
const LAST_WORDS_BYTES: usize = 64;
/// Size of a receive after a full one: a DATA frame of the usual size.
const RECEIVED_BYTES: usize = 16 * 1024 + 9;
/// The same from an endpoint, where all responses share the connection: each receive takes one pass of the ring, and on
/// a busy core megabytes of long responses would block the heads after them for seconds.
const SHARED_RECEIVED_BYTES: usize = 128 * 1024;

/// Both directions, and their state.
pub(super) struct Wire<'a> {
    reader: &'a mut Reader,
    writer: &'a mut Writer,
    /// Gathered, and not sent yet.
    gathered: Vec<u8>,
    /// The last bytes written, once the crate had written everything.
    last_words: Vec<u8>,
    /// `None` for an endpoint's connection.
    meter: Option<Meter>,
    /// Until when the other side must have accepted some of the pending bytes.
    stall: &'a Deadline,
    /// Size of the next receive.
    appetite: usize,
}

impl<'a> Wire<'a> {
    pub(super) fn new(
        (reader, writer): (&'a mut Reader, &'a mut Writer),
        meter: Option<Meter>,
        stall: &'a Deadline,
    ) -> Self {
        Self {
            reader,
            writer,
            gathered: Vec::new(),
            last_words: Vec::new(),
            meter,
            stall,
            appetite: IDLE_BYTES,
        }
    }

    /// The client's abuse, if there is one.
    pub(super) fn abuse(&self) -> Option<Abuse> {
        self.meter.as_ref().and_then(Meter::abuse)
    }

    /// The last bytes that were written, once the connection is being closed.
    pub(super) fn last_words(&self) -> &[u8] {
        &self.last_words
    }

    /// Sends the gathered bytes, unless a send is under way. Ready when nothing is left.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.writer.poll_settle(cx, self.stall))?;
            if self.gathered.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let spare = self.writer.spare();
            let batch = std::mem::replace(&mut self.gathered, spare);
            self.meter.iter_mut().for_each(|meter| meter.sent(batch.len()));
            self.stall.touch();
            self.writer.submit(batch, 0);
        }
    }

    /// The total of received bytes, modulo 2^32.
    pub(super) fn received(&self) -> u32 {
        self.reader.received()
    }

    /// Releases memory that only a connection with streams needs.
    pub(super) fn rest(&mut self) {
        if self.gathered.is_empty() && self.gathered.capacity() > SMALL_BYTES {
            self.gathered = Vec::new();
        }
        self.writer.shrink(SMALL_BYTES);
    }

    /// Tells the other side that nothing follows.
    pub(super) fn say_goodbye(&self) {
        self.writer.stream().say_goodbye();
    }

    /// Makes the following close an abort.
    pub(super) fn reset_on_close(&self) {
        self.writer.stream().reset_on_close();
    }

    fn poll_take(&mut self, cx: &mut Context<'_>, offered: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.gathered.len() >= GATHERED_BYTES_MAX {
            // A new buffer is available only if the send has ended.
            let sent = self.poll_send(cx);
            match sent {
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                _ if self.gathered.len() >= GATHERED_BYTES_MAX => return Poll::Pending,
                _ => {}
            }
        }
        let mut taken = 0;
        for slice in offered {
            let room = GATHERED_BYTES_MAX.saturating_sub(self.gathered.len());
            let count = slice.len().min(room);
            self.gathered.extend_from_slice(&slice[..count]);
            taken += count;
        }
        Poll::Ready(Ok(taken))
    }
}

/// Size of the receive after one of `size` bytes that returned `count`; `is_shared` for an endpoint's connection.
fn next_appetite(size: usize, count: usize, is_shared: bool) -> usize {
    if count >= RECEIVED_BYTES && is_shared {
        SHARED_RECEIVED_BYTES
    } else if count >= size.min(RECEIVED_BYTES) {
        RECEIVED_BYTES
    } else {
        IDLE_BYTES
    }
}

/// The handle that the crate uses.
pub(super) struct Io<'a, 'b>(pub(super) &'a RefCell<Wire<'b>>);

impl AsyncRead for Io<'_, '_> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let wire = &mut *self.0.borrow_mut();
        if wire.reader.data().is_empty() {
            wire.reader.shrink(wire.appetite);
            let count = ready!(wire.reader.poll_fill(cx, wire.appetite))?;
            wire.appetite = next_appetite(wire.appetite, count, wire.meter.is_none());
            if count == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let data = wire.reader.data();
        let count = data.len().min(buf.remaining());
        buf.put_slice(&data[..count]);
        wire.meter.iter_mut().for_each(|meter| meter.feed(&data[..count]));
        wire.reader.consume(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Io<'_, '_> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_take(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_take(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// The crate flushes after each large frame; the driver sends after the crate's turn.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wire = &mut *self.0.borrow_mut();
        if wire.last_words.is_empty() {
            let start = wire.gathered.len().saturating_sub(LAST_WORDS_BYTES);
            wire.last_words = wire.gathered[start..].to_vec();
        }
        wire.poll_send(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_grow_while_they_are_full_and_shrink_at_once() {
        let sizes = |is_shared: bool, counts: [usize; 4]| {
            let mut size = IDLE_BYTES;
            counts.map(|count| {
                size = next_appetite(size, count.min(size), is_shared);
                size
            })
        };
        let much = usize::MAX;
        let (small, idle) = (RECEIVED_BYTES, IDLE_BYTES);
        assert_eq!(sizes(false, [much, much, much, 9]), [small, small, small, idle]);
        assert_eq!(
            sizes(true, [much, much, small, 9]),
            [small, SHARED_RECEIVED_BYTES, SHARED_RECEIVED_BYTES, idle]
        );
    }
}
