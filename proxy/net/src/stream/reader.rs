//! The receiving direction of a stream: one buffer, and at most one receive in progress.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sluice_http::{HeadLimits, ParseError, ResponseHead};

use super::outgoing::Outgoing;
use super::{Stream, StreamRecv};
use crate::buffers::{IDLE_BYTES, SMALL_BYTES};

/// Received bytes that have not been consumed yet, and the receive that will append more.
///
/// A started receive survives dropped futures: it owns the buffer, and its bytes are the next data for any caller.
/// While it runs, [`Reader::data`] is empty, because the receive's buffer contains the unread data.
pub struct Reader {
    stream: Stream,
    buf: Vec<u8>,
    /// Start of the unread data in `buf`.
    start: usize,
    pending: Option<StreamRecv>,
    /// Bytes received in total, modulo 2^32.
    received: u32,
    /// Of these, those received before it last rested.
    rested_at: u32,
    /// The send in progress of the other direction.
    outgoing: Rc<Outgoing>,
}

impl Reader {
    pub(super) fn new(stream: Stream, outgoing: Rc<Outgoing>) -> Self {
        Self { stream, buf: Vec::new(), start: 0, pending: None, received: 0, rested_at: 0, outgoing }
    }

    /// The unread data.
    pub fn data(&self) -> &[u8] {
        &self.buf[self.start..]
    }

    /// Bytes received in total, modulo 2^32: both consumed and unread.
    pub fn received(&self) -> u32 {
        self.received
    }

    /// Marks the first `count` unread bytes as read.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.buf.len());
        if self.start >= self.buf.len() {
            self.buf.clear();
            self.start = 0;
        }
    }

    /// Starts a receive into a buffer of at least `capacity` bytes, unless one is in progress. A full buffer doubles;
    /// the caller limits how much may accumulate. A small one is lent by the engine when something has arrived.
    pub(crate) fn arm(&mut self, capacity: usize) {
        self.arm_for(capacity, false);
    }

    /// Like `arm`, for data that is not expected soon: the socket is read only once something has arrived.
    pub fn arm_patiently(&mut self, capacity: usize) {
        self.arm_for(capacity, true);
    }

    fn arm_for(&mut self, capacity: usize, patient: bool) {
        if self.pending.is_some() {
            return;
        }
        let mut buf = std::mem::take(&mut self.buf);
        if self.start > 0 {
            buf.drain(..self.start);
            self.start = 0;
        }
        if buf.is_empty()
            && capacity <= IDLE_BYTES
            && let Some(lent) = self.stream.recv_lent(capacity, patient)
        {
            self.pending = Some(lent);
            return;
        }
        let wanted = if buf.len() >= capacity { buf.len() * 2 } else { capacity };
        if buf.capacity() < wanted {
            buf.reserve_exact(wanted - buf.len());
        }
        self.pending = Some(self.stream.recv(buf, patient));
    }

    /// Starts the receive that waits for the next message on an idle connection. It has a buffer of its own only if more
    /// has arrived since it last rested than a lent one has room for.
    pub fn rest(&mut self) {
        let received = self.received.wrapping_sub(self.rested_at);
        self.rested_at = self.received;
        let capacity = if received as usize > IDLE_BYTES { SMALL_BYTES } else { IDLE_BYTES };
        self.shrink(capacity);
        self.arm_patiently(capacity);
    }

    /// Drops an empty buffer that is much larger than `capacity`, so that a connection that waits for its next request
    /// holds little memory.
    pub fn shrink(&mut self, capacity: usize) {
        if self.pending.is_none() && self.buf.is_empty() && self.buf.capacity() > capacity * 2 {
            self.buf = Vec::new();
        }
    }

    /// Waits for more data after the unread data; see `Reader::arm`. 0 is the end of the stream.
    pub fn poll_fill(&mut self, cx: &mut Context<'_>, capacity: usize) -> Poll<io::Result<usize>> {
        self.arm(capacity);
        let Some(pending) = self.pending.as_mut() else {
            return Poll::Ready(Ok(0));
        };
        let (outcome, buf) = std::task::ready!(Pin::new(pending).poll(cx));
        self.pending = None;
        self.keep(buf, &outcome);
        match outcome {
            // A socket in a sockmap returns EAGAIN when it was woken for something else (seen on 6.18).
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            // A channel reports a reset itself, and may end its message properly before it refuses more of ours.
            Ok(0) if !self.stream.is_channel() && self.outgoing.was_reset(cx) => {
                Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
            }
            outcome => Poll::Ready(outcome),
        }
    }

    /// Reads the next head of a response from a channel into `head`.
    pub fn poll_head(
        &self,
        cx: &mut Context<'_>,
        head: &mut ResponseHead,
        limits: &HeadLimits,
    ) -> Poll<io::Result<Result<(), ParseError>>> {
        match &self.stream {
            Stream::Channel(channel) => channel.poll_head(cx, head, limits),
            _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Whether the message has ended by other means than its bytes, and all of it was read. Only a channel ends like
    /// this.
    pub fn has_ended(&self) -> bool {
        self.data().is_empty() && matches!(&self.stream, Stream::Channel(channel) if channel.has_ended())
    }

    /// Shows the trailers of a message that has ended like this.
    pub fn trailers(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        if let Stream::Channel(channel) = &self.stream {
            channel.trailers(show);
        }
    }

    /// Reads what has already arrived on a channel, without waiting. The next read reports an error again.
    pub fn peek(&mut self, capacity: usize) {
        if self.stream.is_channel() && self.data().is_empty() && !self.has_ended() {
            let _ = self.poll_fill(&mut Context::from_waker(Waker::noop()), capacity);
        }
    }

    /// [`Reader::poll_fill`] as a future. Dropping it loses nothing.
    pub async fn fill(&mut self, capacity: usize) -> io::Result<usize> {
        poll_fn(|cx| self.poll_fill(cx, capacity)).await
    }

    /// Cancels the receive in progress and keeps what it has received.
    pub async fn stop(&mut self) -> io::Result<()> {
        let Some(pending) = self.pending.as_mut() else {
            return Ok(());
        };
        pending.cancel();
        let (outcome, buf) = pending.await;
        self.pending = None;
        self.keep(buf, &outcome);
        match outcome {
            // The next read sees the end again.
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stores the result of a receive.
    fn keep(&mut self, buf: Vec<u8>, outcome: &io::Result<usize>) {
        self.buf = buf;
        self.received = self.received.wrapping_add(*outcome.as_ref().unwrap_or(&0) as u32);
    }

    /// Whether nothing has arrived: no data, no end, no error. For connections that should be silent.
    pub fn is_silent(&mut self, capacity: usize) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.data().is_empty() && self.poll_fill(&mut cx, capacity).is_pending()
    }

    /// Like [`Reader::is_silent`], with what has arrived by now, even if the engine has not noticed it yet.
    pub fn is_still_silent(&mut self, capacity: usize) -> bool {
        if let Some(StreamRecv::Socket(pending)) = &mut self.pending
            && pending.catch_up()
        {
            if !self.is_silent(capacity) {
                return false;
            }
            // If it had ended without data, another one has replaced it.
            if matches!(&self.pending, Some(StreamRecv::Socket(pending)) if pending.is_armed()) {
                return true;
            }
        }
        // Either the bytes are in the socket, or the kernel has received them by now.
        if !self.stream.is_quiet() {
            return false;
        }
        if let Some(StreamRecv::Socket(pending)) = &mut self.pending {
            pending.refresh();
        }
        self.is_silent(capacity)
    }

    /// Makes the receive in progress end, with what has arrived or with ECANCELED. Returns false if there is none in the
    /// kernel: then the last [`Reader::poll_fill`] has seen whatever has arrived.
    pub fn recall(&self) -> bool {
        match (&self.pending, &self.stream) {
            (Some(StreamRecv::Socket(receiving)), _) => {
                receiving.cancel();
                true
            }
            (Some(StreamRecv::Tls(_)), Stream::Tls(session)) => session.recall(),
            _ => false,
        }
    }

    /// Whether nothing has arrived since the last receive, while none is in progress: also nothing that may belong to a
    /// session only. There may be unread data.
    pub fn is_quiet(&self) -> bool {
        match &self.stream {
            Stream::Tls(session) => session.is_quiet(),
            stream => stream.is_quiet(),
        }
    }

    /// Takes the buffer with all unread data, which starts at the returned index, and leaves `spare` in its place.
    pub fn take(&mut self, mut spare: Vec<u8>) -> (Vec<u8>, usize) {
        spare.clear();
        let start = std::mem::take(&mut self.start);
        (std::mem::replace(&mut self.buf, spare), start)
    }

    /// Whether a receive is in progress.
    pub fn is_receiving(&self) -> bool {
        self.pending.is_some()
    }

    /// The underlying stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(pending) = &self.pending {
            pending.cancel();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use sluice_ring::{self as ring, Engine};

    use super::*;
    use crate::stream::halves;

    #[test]
    fn idle_reader_waits_without_a_buffer_unless_it_received_much_last() {
        ring::run(Engine::Epoll, async {
            let (mut peer, ours) = UnixStream::pair().unwrap();
            let (mut reader, _writer) = halves(Stream::from_socket(OwnedFd::from(ours)));
            for (message, room) in [(100, 0), (IDLE_BYTES + 1, SMALL_BYTES), (100, 0)] {
                peer.write_all(&vec![b'a'; message]).unwrap();
                while reader.data().len() < message {
                    reader.fill(SMALL_BYTES).await.unwrap();
                }
                reader.consume(message);
                reader.rest();
                reader.stop().await.unwrap();
                assert_eq!(reader.buf.capacity(), room);
            }
        })
        .unwrap();
    }
}
