//! The mutable part of a session: the state of rustls, and the operations in progress below.

use std::future::Future;
use std::io::{self, BufRead, Write};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustls::Connection;

use super::super::{Stream, StreamRecv, StreamSend};

/// Least and most bytes of records to receive at a time. An idle session waits with the least; the most is two records
/// with their overhead (RFC 8446 5.2).
const RECEIVE_BYTES_MIN: usize = 2 * 1024;
const RECEIVE_BYTES_MAX: usize = 33 * 1024;
/// A buffer of sent records is kept up to this size.
const KEPT_BYTES: usize = 4 * 1024;

pub(super) struct State {
    pub(super) tls: Connection,
    /// Records that rustls has not read yet, from `start`.
    records: Vec<u8>,
    start: usize,
    receiving: Option<StreamRecv>,
    /// Whether the last receive filled its buffer, so that more is likely to be in the socket.
    was_full: bool,
    sending: Option<Sending>,
    /// Tasks that wait for `sending`.
    waiting: Vec<Waker>,
    /// The buffer of the last send.
    spare: Vec<u8>,
    /// The first error of a send. Everything later fails with it.
    broken: Option<io::ErrorKind>,
    /// The error in the received records.
    pub(super) failed: Option<rustls::Error>,
    /// Whether the socket took the last send in parts.
    pub(super) is_slow: bool,
}

struct Sending {
    send: StreamSend,
    sent: usize,
    whole: bool,
}

impl State {
    pub(super) fn new(mut tls: Connection, received: &[u8]) -> Self {
        // sluice limits this itself: a message is encrypted only after the previous one has left.
        tls.set_buffer_limit(None);
        Self {
            tls,
            records: received.to_vec(),
            start: 0,
            receiving: None,
            was_full: false,
            sending: None,
            waiting: Vec::new(),
            spare: Vec::new(),
            broken: None,
            failed: None,
            is_slow: false,
        }
    }

    /// Cancels the operations in progress below.
    pub(super) fn cancel(&self) {
        self.receiving.iter().for_each(StreamRecv::cancel);
        self.sending.iter().for_each(|sending| sending.send.cancel());
    }

    /// Makes the receive in progress end; returns false if there is none in the kernel.
    pub(super) fn recall(&self) -> bool {
        let Some(StreamRecv::Socket(receiving)) = &self.receiving else { return false };
        receiving.cancel();
        true
    }

    /// Whether something that arrived has not been read yet: bytes, an end or an error.
    pub(super) fn has_received(&mut self) -> bool {
        self.failed.is_some() || self.start < self.records.len() || self.has_ended()
    }

    /// Whether there is plaintext to read, or its end.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.tls.reader().fill_buf(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Starts a receive below, unless one is in progress.
    pub(super) fn receive(&mut self, below: &Stream, plain_bytes: usize, patient: bool) {
        if self.receiving.is_some() {
            return;
        }
        // The reader's room may be small because its last message was. A record that needs more is then received in one
        // more pass of the engine, instead of one for each such piece: on a busy core a pass takes long.
        let capacity = match self.was_full && !patient {
            true => RECEIVE_BYTES_MAX,
            false => plain_bytes.clamp(RECEIVE_BYTES_MIN, RECEIVE_BYTES_MAX),
        };
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        self.start = 0;
        if records.capacity() > capacity * 2 {
            records = Vec::new();
        }
        records.reserve_exact(capacity);
        self.receiving = Some(below.recv(records, patient));
    }

    /// Feeds received records to rustls, as long as it has room.
    pub(super) fn feed(&mut self) {
        while self.start < self.records.len() && self.failed.is_none() {
            match self.tls.read_tls(&mut &self.records[self.start..]) {
                // Bytes after the proper end do not count (RFC 8446 6.1).
                Ok(0) => self.start = self.records.len(),
                Ok(count) => self.start += count,
                // The decrypted bytes must be read first.
                Err(error) if error.kind() == io::ErrorKind::Other => return,
                Err(_) => self.failed = Some(rustls::Error::General("a message is too long".into())),
            }
            if let Err(error) = self.tls.process_new_packets() {
                self.failed = Some(error);
            }
        }
    }

    /// Reads decrypted bytes into the spare capacity of `buf`; `None` if more records are needed.
    fn read_plain(&mut self, buf: &mut Vec<u8>) -> Option<io::Result<usize>> {
        let before = buf.len();
        loop {
            self.feed();
            let room = buf.capacity() - buf.len();
            let read = buf.len() - before;
            let mut reader = self.tls.reader();
            let count = match reader.fill_buf() {
                Ok(plain) => {
                    let count = plain.len().min(room);
                    buf.extend_from_slice(&plain[..count]);
                    count
                }
                Err(_) if read > 0 => 0,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return self.failed.as_ref().map(|error| Err(invalid(error)));
                }
                Err(error) => return Some(Err(error)),
            };
            reader.consume(count);
            if count == 0 {
                return Some(Ok(read));
            }
        }
    }

    /// Like `read_plain`, but waits for more records.
    pub(super) fn poll_plain(
        &mut self,
        cx: &mut Context<'_>,
        below: &Stream,
        buf: &mut Vec<u8>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(outcome) = self.read_plain(buf) {
                if outcome.is_err() {
                    self.say_why(cx, below);
                }
                return Poll::Ready(outcome);
            }
            if !self.transmit(below, true) {
                // This may follow a send that no task waits for: the last message of a handshake.
                let _ = self.poll_flush(cx, below);
            }
            let plain_bytes = buf.capacity() - buf.len();
            std::task::ready!(self.poll_records(cx, below, plain_bytes))?;
        }
    }

    /// Sends the alert for an error at once (RFC 8446 6.2): the session ends here, and a send still in progress would
    /// be cancelled with it.
    fn say_why(&mut self, cx: &mut Context<'_>, below: &Stream) {
        if self.poll_sent(cx, below).is_ready()
            && let Some(alert) = self.take_records()
        {
            below.send_now(alert);
        }
    }

    /// Waits for records or the end of the stream below, and feeds them to rustls.
    pub(super) fn poll_records(
        &mut self,
        cx: &mut Context<'_>,
        below: &Stream,
        plain_bytes: usize,
    ) -> Poll<io::Result<()>> {
        self.receive(below, plain_bytes, false);
        let Some(receiving) = self.receiving.as_mut() else {
            return Poll::Ready(Ok(()));
        };
        let (outcome, records) = std::task::ready!(Pin::new(receiving).poll(cx));
        self.receiving = None;
        self.was_full = records.len() == records.capacity();
        self.records = records;
        self.start = 0;
        if outcome? == 0 {
            // rustls decides whether this is a proper end.
            self.tls.read_tls(&mut io::empty())?;
        }
        self.feed();
        Poll::Ready(Ok(()))
    }

    /// Encrypts all of `plain`.
    pub(super) fn encrypt(&mut self, plain: &[u8]) -> io::Result<usize> {
        if let Some(kind) = self.broken {
            return Err(kind.into());
        }
        self.tls.writer().write_all(plain)?;
        Ok(plain.len())
    }

    /// The records to send, if there are any and no send is in progress.
    pub(super) fn take_records(&mut self) -> Option<Vec<u8>> {
        if self.sending.is_some() || self.broken.is_some() || !self.tls.wants_write() {
            return None;
        }
        let mut records = std::mem::take(&mut self.spare);
        records.clear();
        while self.tls.wants_write() {
            // Writing into a Vec cannot fail.
            self.tls.write_tls(&mut records).ok()?;
        }
        Some(records)
    }

    /// Starts to send what is pending. Returns false if another send is in progress.
    pub(super) fn transmit(&mut self, below: &Stream, whole: bool) -> bool {
        if let Some(records) = self.take_records() {
            self.sending = Some(Sending { send: below.send(records, 0, whole), sent: 0, whole });
            return true;
        }
        !self.tls.wants_write()
    }

    /// Waits until everything has been sent.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>, below: &Stream) -> Poll<io::Result<()>> {
        loop {
            if self.poll_sent(cx, below).is_pending() {
                // The stream below wakes only the task that polled it last.
                if !self.waiting.iter().any(|waiting| waiting.will_wake(cx.waker())) {
                    self.waiting.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            self.waiting.drain(..).filter(|waiting| !waiting.will_wake(cx.waker())).for_each(Waker::wake);
            if let Some(kind) = self.broken {
                return Poll::Ready(Err(kind.into()));
            }
            if self.transmit(below, true) && self.sending.is_none() {
                return Poll::Ready(Ok(()));
            }
        }
    }

    fn poll_sent(&mut self, cx: &mut Context<'_>, below: &Stream) -> Poll<()> {
        while let Some(Sending { send, sent, whole }) = self.sending.as_mut() {
            let (outcome, records) = std::task::ready!(Pin::new(send).poll(cx));
            let (sent, whole) = (*sent + *outcome.as_ref().unwrap_or(&0), *whole);
            self.sending = None;
            match outcome {
                Ok(count) if count > 0 && sent < records.len() => {
                    self.is_slow = true;
                    self.sending = Some(Sending { send: below.send(records, sent, whole), sent, whole });
                }
                Ok(count) if count > 0 => {
                    self.is_slow &= sent > count;
                    self.spare = if records.capacity() > KEPT_BYTES { Vec::new() } else { records };
                }
                Ok(_) => self.broken = Some(io::ErrorKind::WriteZero),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.sending = Some(Sending { send: below.send(records, sent, whole), sent, whole });
                }
                Err(error) => self.broken = Some(error.kind()),
            }
        }
        Poll::Ready(())
    }
}

/// The error of a receive when the peer violated the protocol.
fn invalid(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.clone())
}
