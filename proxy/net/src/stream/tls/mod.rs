//! TLS as an engine below the seam: records on the stream below, plain bytes above.
//!
//! rustls keeps the session and both of its queues; here is only what moves bytes. One receive and one send are
//! under way below at most, so records keep their order. What rustls has to say by itself (session tickets,
//! answers to key updates, alerts) goes with the next message of ours, or when there is nothing left to read.

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

/// Plain bytes that are encrypted at once when a whole message is not asked for: four records (RFC 8446 5.1).
const CHUNK_BYTES: usize = 64 * 1024;
/// The same for a peer whose socket has lately taken a part only: one record, so that it is seen to go on.
const SLOW_CHUNK_BYTES: usize = 16 * 1024;

/// One session over the stream below.
pub struct Session {
    below: Stream,
    state: RefCell<State>,
}

impl Session {
    /// A session about to begin. `received` is what of it was read already.
    pub fn new(below: Stream, connection: impl Into<Connection>, received: &[u8]) -> Rc<Self> {
        Rc::new(Self { below, state: RefCell::new(State::new(connection.into(), received)) })
    }

    /// Looks at what was agreed on.
    pub fn inspect<T>(&self, look: impl FnOnce(&Connection) -> T) -> T {
        look(&self.state.borrow().tls)
    }

    /// What was wrong with what came, or what the peer said was wrong.
    pub fn failure(&self) -> Option<rustls::Error> {
        self.state.borrow().failed.clone()
    }

    /// The stream that carries the records.
    pub(crate) fn below(&self) -> &Stream {
        &self.below
    }

    /// Begins to receive into the spare capacity of `buf`.
    pub(super) fn recv(self: &Rc<Self>, buf: Vec<u8>, patient: bool) -> TlsRecv {
        let mut state = self.state.borrow_mut();
        if !state.has_received() {
            state.receive(&self.below, buf.capacity() - buf.len(), patient);
        }
        TlsRecv { session: Rc::clone(self), buf }
    }

    /// Begins to send `buf[start..]`, or with `whole` unset some of it.
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
            // Something else is under way. This goes behind it, whether or not somebody waits for it.
            let session = Rc::clone(self);
            tokio::task::spawn_local(async move { drop(session.flush().await) });
        }
        TlsSend { session: Rc::clone(self), buf, outcome: Some(outcome) }
    }

    /// Waits until all that is to be sent was.
    async fn flush(&self) -> io::Result<()> {
        poll_fn(|cx| self.state.borrow_mut().poll_flush(cx, &self.below)).await
    }

    /// Tells the peer that nothing follows (RFC 8446 6.1), if that can be done without waiting. Whatever was sent must
    /// have left.
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

/// A receive of plain bytes.
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
    /// Ends what is under way below, in both directions: records that nobody waits for would hold the socket.
    pub(super) fn cancel(&self) {
        self.session.state.borrow().cancel();
    }
}

/// A send of plain bytes.
pub(crate) struct TlsSend {
    session: Rc<Session>,
    buf: Vec<u8>,
    /// How many were encrypted, until they have left.
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
    /// As [`TlsRecv::cancel`].
    pub(super) fn cancel(&self) {
        self.session.state.borrow().cancel();
    }
}
