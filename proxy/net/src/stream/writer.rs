//! The sending direction of a stream: one send under way at most.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sluice_http::{FieldBlock, Trailers};

use super::Stream;
use super::outgoing::Outgoing;
use super::passed::PassedBytes;
use crate::deadline::Deadline;

/// Sends up to this size are left to the kernel until whole, and their completion is looked at only when
/// the next thing is to be sent. That saves a wake-up per message; larger ones report each part, so that a
/// slow reader is seen to make progress.
const QUIET_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Copy)]
struct Sending {
    /// Index in the buffer up to which all has been sent.
    sent: usize,
    quiet: bool,
}

/// Bytes on their way out, and the buffer that the last ones left behind.
pub struct Writer {
    stream: Stream,
    /// The send itself, while `sending` says what it is of.
    outgoing: Rc<Outgoing>,
    sending: Option<Sending>,
    /// The buffer of the last send, its content untouched.
    last: Vec<u8>,
    /// The first error; everything later fails with it.
    broken: Option<io::ErrorKind>,
    /// Bytes of the last submitted buffer that the socket took.
    taken: usize,
    /// Whether a head has been sent that is no bytes.
    has_sent_head: bool,
    /// Bytes that the socket took in all.
    written: u64,
    /// Bytes that went past this writer.
    passed: Option<Box<PassedBytes>>,
}

impl Writer {
    pub(super) fn new(stream: Stream, outgoing: Rc<Outgoing>) -> Self {
        Self {
            stream,
            outgoing,
            sending: None,
            last: Vec::new(),
            broken: None,
            taken: 0,
            has_sent_head: false,
            written: 0,
            passed: None,
        }
    }

    /// The stream that is written.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// An empty buffer to build the next message in.
    pub fn spare(&mut self) -> Vec<u8> {
        let mut buf = std::mem::take(&mut self.last);
        buf.clear();
        buf
    }

    /// The same for a message of `bytes`, without holding on to a much larger buffer.
    pub fn spare_for(&mut self, bytes: usize) -> Vec<u8> {
        if self.last.capacity() > bytes * 2 {
            self.last = Vec::new();
        }
        let mut buf = self.spare();
        buf.reserve_exact(bytes);
        buf
    }

    /// The buffer of the last settled send with its content, to send it again elsewhere.
    pub fn take_sent(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.last)
    }

    /// Gives the memory of an idle connection back.
    pub fn shrink(&mut self, capacity: usize) {
        if self.last.capacity() > capacity {
            self.last = Vec::new();
        }
    }

    /// Starts sending `buf[start..]`. The send before it must have been settled.
    pub fn submit(&mut self, buf: Vec<u8>, start: usize) {
        debug_assert!(self.sending.is_none(), "two sends at once could be reordered");
        if start >= buf.len() {
            self.last = buf;
            return;
        }
        self.taken = 0;
        let quiet = buf.len() - start <= QUIET_BYTES_MAX && self.stream.sends_by_itself();
        self.send(buf, start, quiet);
    }

    /// [`Writer::submit`] of the last bytes of a message. Where its end is no byte, this sends that as well, with
    /// `trailers`.
    pub fn submit_last(&mut self, buf: Vec<u8>, start: usize, trailers: &Trailers) {
        if let Stream::Channel(channel) = &self.stream
            && let Err(error) = channel.end_after(buf.len().saturating_sub(start), trailers)
        {
            self.broken.get_or_insert(error.kind());
        }
        match self.broken {
            Some(_) => self.last = buf,
            None => self.submit(buf, start),
        }
    }

    /// Sends a head where heads are no bytes; with `ends` it is the whole message. Nothing may be under way.
    ///
    /// # Errors
    /// It cannot be sent; everything later fails with it.
    pub fn send_head(&mut self, head: &FieldBlock, ends: bool) -> io::Result<()> {
        let sent = match &self.stream {
            Stream::Channel(channel) => channel.send_head(head, ends),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        match &sent {
            Ok(()) => self.has_sent_head = true,
            Err(error) => _ = self.broken.get_or_insert(error.kind()),
        }
        sent
    }

    fn send(&mut self, buf: Vec<u8>, sent: usize, quiet: bool) {
        self.outgoing.begin(self.stream.send(buf, sent, quiet));
        self.sending = Some(Sending { sent, quiet });
    }

    /// Whether the send under way, if any, goes on without being polled. One that has failed is to be looked at.
    pub fn is_quiet(&self) -> bool {
        self.broken.is_none() && self.sending.as_ref().is_none_or(|sending| sending.quiet)
    }

    /// Whether nothing is under way any more; never waits.
    pub fn try_settle(&mut self, deadline: &Deadline) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_settle(&mut cx, deadline).is_ready()
    }

    /// Whether the last send failed before the socket took a byte of it.
    pub fn took_nothing(&self) -> bool {
        self.broken.is_some() && self.taken == 0 && !self.has_sent_head
    }

    /// Begins to count bytes that go past this writer, with nothing under way. False if they cannot be counted.
    pub fn count_passed(&mut self) -> bool {
        let socket = self.stream.fd();
        self.passed = socket.and_then(|fd| PassedBytes::begin(fd, self.written)).map(Box::new);
        self.passed.is_some()
    }

    /// Notes bytes that the kernel has promised to put into the send queue. Nothing is sent before they are there.
    pub fn pass(&mut self, bytes: u64) {
        if let Some(passed) = &mut self.passed {
            passed.add(bytes);
        }
    }

    /// Bytes that have been sent on this connection, those that went past this writer included.
    pub fn sent_in_all(&self) -> u64 {
        self.written + self.passed.as_ref().map_or(0, |passed| passed.bytes())
    }

    /// Whether all that was submitted has been sent, without an error; never waits, and does not look for what went
    /// past this writer.
    pub fn is_sent(&mut self, deadline: &Deadline) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.poll_sent(&mut cx, deadline), Poll::Ready(Ok(())))
    }

    /// Waits until the send under way is whole; each part of it counts as activity on `deadline`.
    pub fn poll_settle(&mut self, cx: &mut Context<'_>, deadline: &Deadline) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_sent(cx, deadline))?;
        let (Some(passed), Some(fd)) = (&mut self.passed, self.stream.fd()) else {
            return Poll::Ready(Ok(()));
        };
        let arrived = std::task::ready!(passed.poll_arrived(cx, fd, self.written));
        if let Err(error) = &arrived {
            self.broken = Some(error.kind());
        }
        Poll::Ready(arrived)
    }

    fn poll_sent(&mut self, cx: &mut Context<'_>, deadline: &Deadline) -> Poll<io::Result<()>> {
        while let Some(Sending { sent, quiet }) = self.sending {
            let (outcome, buf) = std::task::ready!(self.outgoing.poll(cx));
            self.sending = None;
            let took = *outcome.as_ref().unwrap_or(&0);
            self.taken += took;
            self.written += took as u64;
            match outcome {
                Ok(count) if count > 0 && sent + count < buf.len() => {
                    deadline.touch();
                    self.send(buf, sent + count, quiet);
                }
                Ok(count) if count > 0 => {
                    deadline.touch();
                    self.last = buf;
                }
                Ok(_) => {
                    self.last = buf;
                    self.broken = Some(io::ErrorKind::WriteZero);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.send(buf, sent, quiet);
                }
                Err(error) => {
                    self.last = buf;
                    self.broken = Some(error.kind());
                }
            }
        }
        Poll::Ready(self.broken.map_or(Ok(()), |kind| Err(kind.into())))
    }

    /// [`Writer::poll_settle`] as a future; dropping it loses nothing.
    pub async fn settle(&mut self, deadline: &Deadline) -> io::Result<()> {
        poll_fn(|cx| self.poll_settle(cx, deadline)).await
    }

    /// Waits until what is under way, if anything, goes on without being polled. To be called after the last
    /// submission before others are waited for: the socket may take a part of a large one only, and nobody
    /// would send the rest.
    pub async fn quieten(&mut self, deadline: &Deadline) -> io::Result<()> {
        if self.is_quiet() { Ok(()) } else { self.settle(deadline).await }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.outgoing.cancel();
    }
}
