//! The sending direction of a stream: at most one send in progress.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sluice_http::{FieldBlock, Trailers};
use sluice_ring as ring;
use socket2::SockRef;

use super::Stream;
use super::outgoing::Outgoing;
use super::passed::PassedBytes;
use crate::deadline::Deadline;

/// The kernel completes sends up to this size as a whole, and their completion is read only before the next send. That
/// saves a wake-up per message. Larger sends report each part, so that the progress of a slow reader is visible.
const QUIET_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Copy)]
struct Sending {
    /// Index in the buffer up to which everything has been sent.
    sent: usize,
    quiet: bool,
}

/// Bytes being sent, and the buffer of the previous send.
pub struct Writer {
    stream: Stream,
    /// The send itself; `sending` describes it.
    outgoing: Rc<Outgoing>,
    sending: Option<Sending>,
    /// The buffer of the last send, with its content.
    last: Vec<u8>,
    /// The first error. Everything later fails with it.
    broken: Option<io::ErrorKind>,
    /// Bytes of the last submitted buffer that the socket took.
    taken: usize,
    /// Whether a head has been sent that does not count as bytes.
    has_sent_head: bool,
    /// Bytes that the socket took in total.
    written: u64,
    /// Bytes that bypassed this writer.
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

    /// The underlying stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// An empty buffer to build the next message in.
    pub fn spare(&mut self) -> Vec<u8> {
        let mut buf = std::mem::take(&mut self.last);
        buf.clear();
        buf
    }

    /// Like [`Writer::spare`], for a message of `bytes`, and without keeping a much larger buffer.
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

    /// Frees the memory of an idle connection.
    pub fn shrink(&mut self, capacity: usize) {
        if self.last.capacity() > capacity {
            self.last = Vec::new();
        }
    }

    /// Starts sending `buf[start..]`. The previous send must have settled.
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

    /// [`Writer::submit`] for the last bytes of a message. If the protocol does not mark the end with bytes, this also
    /// sends the end, with `trailers`.
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

    /// Sends a head where heads are not bytes. With `ends` it is the whole message. Nothing may be in progress.
    ///
    /// # Errors
    /// The head cannot be sent; everything later fails with the same error.
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

    /// Sends `head` and then bytes that others have as well, which are not copied. The stream must be a socket. Each part
    /// counts as activity on `deadline`.
    ///
    /// # Errors
    /// Those of sendmsg(2). Everything later fails with the same error.
    pub async fn send_shared(&mut self, head: Vec<u8>, shared: &[u8], deadline: &Deadline) -> io::Result<()> {
        self.settle(deadline).await?;
        let socket = self.stream.socket().ok_or(io::ErrorKind::InvalidInput)?.clone();
        let mut done = 0;
        while done < head.len() + shared.len() {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            let of_head = &head[done.min(head.len())..];
            let rest = [IoSlice::new(of_head), IoSlice::new(&shared[done.saturating_sub(head.len())..])];
            let sent = SockRef::from(&socket).send_vectored_with_flags(&rest, flags);
            done += self.sent_or_room(&socket, sent, deadline).await?;
        }
        self.last = head;
        Ok(())
    }

    /// Sends `head` and then a range of a file, which is not copied. The stream must be a socket. Each part counts as
    /// activity on `deadline`.
    ///
    /// # Errors
    /// Those of sendfile(2); UnexpectedEof if the file ends within the range. Everything later fails with the same error.
    pub async fn send_file(
        &mut self,
        head: Vec<u8>,
        file: &ring::Fd,
        range: Range<u64>,
        deadline: &Deadline,
    ) -> io::Result<()> {
        self.settle(deadline).await?;
        let socket = self.stream.socket().ok_or(io::ErrorKind::InvalidInput)?.clone();
        let mut done = 0;
        while done < head.len() {
            // The kernel keeps a part of a segment until the file follows.
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
            let sent = SockRef::from(&socket).send_with_flags(&head[done..], flags);
            done += self.sent_or_room(&socket, sent, deadline).await?;
        }
        let mut at = range.start;
        while at < range.end {
            let count = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let sent = match ring::send_file_now(&socket, file, at, count) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                sent => sent,
            };
            at += self.sent_or_room(&socket, sent, deadline).await? as u64;
        }
        self.last = head;
        Ok(())
    }

    /// What was sent; 0 when there is room again.
    async fn sent_or_room(
        &mut self,
        socket: &ring::Fd,
        sent: io::Result<usize>,
        deadline: &Deadline,
    ) -> io::Result<usize> {
        match sent {
            Ok(count) => {
                self.written += count as u64;
                deadline.touch();
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                ring::poll(socket, libc::POLLOUT).await?;
                Ok(0)
            }
            Err(error) => {
                self.broken.get_or_insert(error.kind());
                Err(error)
            }
        }
    }

    fn send(&mut self, buf: Vec<u8>, sent: usize, quiet: bool) {
        self.outgoing.begin(self.stream.send(buf, sent, quiet));
        self.sending = Some(Sending { sent, quiet });
    }

    /// Whether the send in progress, if any, continues without being polled. A failed send must be looked at.
    pub fn is_quiet(&self) -> bool {
        self.broken.is_none() && self.sending.as_ref().is_none_or(|sending| sending.quiet)
    }

    /// Whether nothing is in progress any more. Never waits.
    pub fn try_settle(&mut self, deadline: &Deadline) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.poll_settle(&mut cx, deadline).is_ready()
    }

    /// Continues a connection on which so many bytes were sent before, in all.
    pub fn continue_after(&mut self, sent: u64) {
        self.written = sent;
    }

    /// Whether everything has been sent and has arrived in the socket, without an error.
    pub(super) fn is_settled(&mut self, deadline: &Deadline) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.broken.is_none() && matches!(self.poll_settle(&mut cx, deadline), Poll::Ready(Ok(())))
    }

    /// Whether the last send failed before the socket took a byte of it.
    pub fn took_nothing(&self) -> bool {
        self.broken.is_some() && self.taken == 0 && !self.has_sent_head
    }

    /// Starts counting bytes that bypass this writer. Nothing may be in progress. False if they cannot be counted.
    pub fn count_passed(&mut self) -> bool {
        let socket = self.stream.fd();
        self.passed = socket.and_then(|fd| PassedBytes::begin(fd, self.written)).map(Box::new);
        self.passed.is_some()
    }

    /// Adds bytes that the kernel has announced for the send queue. Nothing is sent before they have arrived.
    pub fn pass(&mut self, bytes: u64) {
        if let Some(passed) = &mut self.passed {
            passed.add(bytes);
        }
    }

    /// Bytes sent on this connection, including those that bypassed this writer.
    pub fn sent_in_all(&self) -> u64 {
        self.written + self.passed.as_ref().map_or(0, |passed| passed.bytes())
    }

    /// Whether everything submitted has been sent without an error. Never waits, and does not check for bytes that
    /// bypassed this writer.
    pub fn is_sent(&mut self, deadline: &Deadline) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        matches!(self.poll_sent(&mut cx, deadline), Poll::Ready(Ok(())))
    }

    /// Waits until the whole send in progress is done. Each part of it counts as activity on `deadline`.
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

    /// [`Writer::poll_settle`] as a future. Dropping it loses nothing.
    pub async fn settle(&mut self, deadline: &Deadline) -> io::Result<()> {
        poll_fn(|cx| self.poll_settle(cx, deadline)).await
    }

    /// Waits until the send in progress, if any, continues without being polled. Call it after the last submission,
    /// before waiting for anything else: the socket may take only part of a large send, and nothing would send the
    /// rest.
    pub async fn quieten(&mut self, deadline: &Deadline) -> io::Result<()> {
        if self.is_quiet() { Ok(()) } else { self.settle(deadline).await }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.outgoing.cancel();
    }
}
