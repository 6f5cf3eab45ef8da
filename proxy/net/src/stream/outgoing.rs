//! The send under way of a stream, where both of its directions can see it.
//!
//! The kernel reports a reset once. If a send of ours is told of it, the receive is told of an end, and what the peer
//! broke off would pass for whole. So whoever receives an end looks at the send first.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::StreamSend;

/// What a send came to: how much the socket took, and the buffer.
type Outcome = (io::Result<usize>, Vec<u8>);

/// At most one send, and whether any was told of a reset.
#[derive(Default)]
pub(super) struct Outgoing {
    send: RefCell<Option<StreamSend>>,
    /// What it came to, if the receiving direction saw that first.
    outcome: Cell<Option<Outcome>>,
    reset: Cell<bool>,
}

impl Outgoing {
    /// Puts a send under way. There must be none.
    pub(super) fn begin(&self, send: StreamSend) {
        self.send.replace(Some(send));
    }

    /// Ends the send under way, if there is one.
    pub(super) fn cancel(&self) {
        if let Some(send) = &*self.send.borrow() {
            send.cancel();
        }
    }

    /// The outcome of the send under way; pending without one.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Outcome> {
        if let Some(outcome) = self.outcome.take() {
            return Poll::Ready(outcome);
        }
        let mut send = self.send.borrow_mut();
        let Some(pending) = send.as_mut() else {
            return Poll::Pending;
        };
        let outcome = std::task::ready!(Pin::new(pending).poll(cx));
        *send = None;
        if outcome.0.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset) {
            self.reset.set(true);
        }
        Poll::Ready(outcome)
    }

    /// Whether a send was told of a reset. One that was told EPIPE was not: an end had come before it.
    pub(super) fn was_reset(&self, cx: &mut Context<'_>) -> bool {
        if !self.reset.get()
            && let Poll::Ready(outcome) = self.poll(cx)
        {
            self.outcome.set(Some(outcome));
        }
        self.reset.get()
    }
}
