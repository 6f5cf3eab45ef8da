//! What of a session changes: rustls's part, and what is under way below.

use std::future::Future;
use std::io::{self, BufRead, Write};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustls::Connection;

use super::super::{Stream, StreamRecv, StreamSend};

/// Least and most bytes of records that are asked for at a time. An idle session waits with the least; the most is two
/// records with their overhead (RFC 8446 5.2).
const RECEIVE_BYTES_MIN: usize = 2 * 1024;
const RECEIVE_BYTES_MAX: usize = 33 * 1024;
/// A buffer of records that were sent is kept up to this size.
const KEPT_BYTES: usize = 4 * 1024;

pub(super) struct State {
    pub(super) tls: Connection,
    /// Records that rustls has not taken yet, from `start`.
    records: Vec<u8>,
    start: usize,
    receiving: Option<StreamRecv>,
    sending: Option<Sending>,
    /// Who waits for the end of that.
    waiting: Vec<Waker>,
    /// The buffer of the last send.
    spare: Vec<u8>,
    /// The first error of a send; everything later fails with it.
    broken: Option<io::ErrorKind>,
    /// What was wrong with what came.
    pub(super) failed: Option<rustls::Error>,
    /// Whether the last send was taken in parts.
    pub(super) is_slow: bool,
}

struct Sending {
    send: StreamSend,
    sent: usize,
    whole: bool,
}

impl State {
    pub(super) fn new(mut tls: Connection, received: &[u8]) -> Self {
        // Bounded by us: a message is encrypted when the one before it has left.
        tls.set_buffer_limit(None);
        Self {
            tls,
            records: received.to_vec(),
            start: 0,
            receiving: None,
            sending: None,
            waiting: Vec::new(),
            spare: Vec::new(),
            broken: None,
            failed: None,
            is_slow: false,
        }
    }

    /// Ends what is under way below.
    pub(super) fn cancel(&self) {
        self.receiving.iter().for_each(StreamRecv::cancel);
        self.sending.iter().for_each(|sending| sending.send.cancel());
    }

    /// Whether something that came was not read yet: bytes, an end or an error.
    pub(super) fn has_received(&mut self) -> bool {
        self.failed.is_some() || self.start < self.records.len() || self.has_ended()
    }

    /// Whether there are bytes to be read, or their end.
    pub(super) fn has_ended(&mut self) -> bool {
        !matches!(self.tls.reader().fill_buf(), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Starts a receive below, unless one is under way.
    pub(super) fn receive(&mut self, below: &Stream, plain_bytes: usize, patient: bool) {
        if self.receiving.is_some() {
            return;
        }
        let capacity = plain_bytes.clamp(RECEIVE_BYTES_MIN, RECEIVE_BYTES_MAX);
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        self.start = 0;
        if records.capacity() > capacity * 2 {
            records = Vec::new();
        }
        records.reserve_exact(capacity);
        self.receiving = Some(below.recv(records, patient));
    }

    /// Has rustls take what has come, as far as it has room.
    pub(super) fn feed(&mut self) {
        while self.start < self.records.len() && self.failed.is_none() {
            match self.tls.read_tls(&mut &self.records[self.start..]) {
                // Behind the proper end nothing counts (RFC 8446 6.1).
                Ok(0) => self.start = self.records.len(),
                Ok(count) => self.start += count,
                // What was decrypted is to be read first.
                Err(error) if error.kind() == io::ErrorKind::Other => return,
                Err(_) => self.failed = Some(rustls::Error::General("a message is too long".into())),
            }
            if let Err(error) = self.tls.process_new_packets() {
                self.failed = Some(error);
            }
        }
    }

    /// Reads into the spare capacity of `buf` what is decrypted; `None` if more must come for that.
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

    /// The same, waiting for more.
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
                // Behind what nobody may be waiting for: the last message of a handshake.
                let _ = self.poll_flush(cx, below);
            }
            let plain_bytes = buf.capacity() - buf.len();
            std::task::ready!(self.poll_records(cx, below, plain_bytes))?;
        }
    }

    /// Sends the alert that an error left (RFC 8446 6.2), at once: what is only under way is called off with the
    /// session, which ends here.
    fn say_why(&mut self, cx: &mut Context<'_>, below: &Stream) {
        if self.poll_sent(cx, below).is_ready()
            && let Some(alert) = self.take_records()
        {
            below.send_now(alert);
        }
    }

    /// Waits for records, or the end of the stream below, and has rustls take them.
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
        self.records = records;
        self.start = 0;
        if outcome? == 0 {
            // Whether that is a proper end, rustls knows.
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

    /// The records that wait to be sent, if there are any and none are under way.
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

    /// Starts to send what there is to send; false if something is under way before it.
    pub(super) fn transmit(&mut self, below: &Stream, whole: bool) -> bool {
        if let Some(records) = self.take_records() {
            self.sending = Some(Sending { send: below.send(records, 0, whole), sent: 0, whole });
            return true;
        }
        !self.tls.wants_write()
    }

    /// Waits until all that is to be sent was.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>, below: &Stream) -> Poll<io::Result<()>> {
        loop {
            if self.poll_sent(cx, below).is_pending() {
                // Only whoever asked last is woken by what is below.
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

/// What a receive fails with when the peer broke the protocol.
fn invalid(error: &rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.clone())
}
