//! TLS as one kind of stream: records on the stream below, plaintext above.
//!
//! rustls keeps the session and both of its queues; this module only moves bytes. Below, at most one receive and one
//! send are in progress, so records keep their order. Messages that rustls generates (session tickets, responses to key
//! updates, alerts) are sent with our next message, or when nothing is left to read.

mod handshake;
mod state;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use rustls::Connection;

use super::Stream;
pub use handshake::HandshakeError;
use state::State;

/// Plaintext bytes that are encrypted at once when the whole message is not required: four records (RFC 8446 5.1).
const CHUNK_BYTES: usize = 64 * 1024;
/// The same for a peer whose socket recently took only part of a send: one record, so that progress is visible.
const SLOW_CHUNK_BYTES: usize = 16 * 1024;

/// One session over the stream below.
pub struct Session {
    below: Stream,
    state: RefCell<State>,
}

impl Session {
    /// A new session. `received` are its bytes that were already read.
    pub fn new(below: Stream, connection: impl Into<Connection>, received: &[u8]) -> Rc<Self> {
        Rc::new(Self { below, state: RefCell::new(State::new(connection.into(), received)) })
    }

    /// Passes the rustls connection to `look`.
    pub fn inspect<T>(&self, look: impl FnOnce(&Connection) -> T) -> T {
        look(&self.state.borrow().tls)
    }

    /// The error in received records, or the alert from the peer.
    pub fn failure(&self) -> Option<rustls::Error> {
        self.state.borrow().failed.clone()
    }

    /// Whether nothing has arrived that was not read, while no receive is in progress.
    pub(super) fn is_quiet(&self) -> bool {
        self.below.is_quiet() && !self.state.borrow_mut().has_received()
    }

    /// Makes the receive in progress below end; returns false if there is none in the kernel. Sends go on.
    pub(super) fn recall(&self) -> bool {
        self.state.borrow().recall()
    }

    /// The stream that carries the records.
    pub(crate) fn below(&self) -> &Stream {
        &self.below
    }

    /// Starts to receive into the spare capacity of `buf`.
    pub(super) fn recv(self: &Rc<Self>, buf: Vec<u8>, patient: bool) -> TlsRecv {
        let mut state = self.state.borrow_mut();
        if !state.has_received() {
            state.receive(&self.below, buf.capacity() - buf.len(), patient);
        }
        TlsRecv { session: Rc::clone(self), buf }
    }

    /// Starts to send `buf[start..]`, or only part of it unless `whole` is set.
    pub(super) fn send(self: &Rc<Self>, buf: Vec<u8>, start: usize, whole: bool) -> TlsSend {
        let mut state = self.state.borrow_mut();
        let most = match (whole, state.is_slow) {
            (true, _) => usize::MAX,
            (false, false) => CHUNK_BYTES,
            (false, true) => SLOW_CHUNK_BYTES,
        };
        let end = start.saturating_add(most).min(buf.len());
        let outcome = state.encrypt(&buf[start..end]);
        if outcome.is_ok() && !state.transmit(&self.below, whole) {
            // Another send is in progress. These records follow it, even if no task waits for them.
            let session = Rc::clone(self);
            tokio::task::spawn_local(async move { drop(session.flush().await) });
        }
        TlsSend { session: Rc::clone(self), buf, outcome: Some(outcome) }
    }

    /// Waits until everything has been sent.
    async fn flush(&self) -> io::Result<()> {
        poll_fn(|cx| self.state.borrow_mut().poll_flush(cx, &self.below)).await
    }

    /// Tells the peer that nothing follows (RFC 8446 6.1), if this is possible without waiting. Everything else must
    /// have been sent.
    pub(super) fn say_goodbye(&self) {
        let mut state = self.state.borrow_mut();
        state.tls.send_close_notify();
        if let Some(records) = state.take_records() {
            self.below.send_now(records);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.state.borrow().cancel();
    }
}

/// A receive of plaintext bytes.
pub(crate) struct TlsRecv {
    session: Rc<Session>,
    buf: Vec<u8>,
}

impl Future for TlsRecv {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut state = this.session.state.borrow_mut();
        let outcome = std::task::ready!(state.poll_plain(cx, &this.session.below, &mut this.buf));
        Poll::Ready((outcome, std::mem::take(&mut this.buf)))
    }
}

impl TlsRecv {
    /// Cancels what is in progress below, in both directions: records that no task waits for would keep the socket
    /// open.
    pub(super) fn cancel(&self) {
        self.session.state.borrow().cancel();
    }
}

/// A send of plaintext bytes.
pub(crate) struct TlsSend {
    session: Rc<Session>,
    buf: Vec<u8>,
    /// The number of encrypted bytes, until they have left.
    outcome: Option<io::Result<usize>>,
}

impl Future for TlsSend {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let flushed = this.session.state.borrow_mut().poll_flush(cx, &this.session.below);
        let flushed = std::task::ready!(flushed);
        let outcome = this.outcome.take().unwrap_or(Ok(0));
        Poll::Ready((outcome.and_then(|count| flushed.map(|()| count)), std::mem::take(&mut this.buf)))
    }
}

impl TlsSend {
    /// Like [`TlsRecv::cancel`].
    pub(super) fn cancel(&self) {
        self.session.state.borrow().cancel();
    }
}
