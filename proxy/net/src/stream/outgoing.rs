//! A stream's send in progress, visible to both of its directions.
//!
//! The kernel reports a reset only once. If our send gets it, the receive sees an end of stream, and a message that the
//! peer broke off would look complete. So a reader that sees an end checks the send first.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::StreamSend;

/// The result of a send: how much the socket took, and the buffer.
type Outcome = (io::Result<usize>, Vec<u8>);

/// At most one send, and whether any send failed with a reset.
#[derive(Default)]
pub(super) struct Outgoing {
    send: RefCell<Option<StreamSend>>,
    /// Its result, if the receiving direction saw it first.
    outcome: Cell<Option<Outcome>>,
    reset: Cell<bool>,
}

impl Outgoing {
    /// Stores a send in progress. There must not be one already.
    pub(super) fn begin(&self, send: StreamSend) {
        self.send.replace(Some(send));
    }

    /// Cancels the send in progress, if there is one.
    pub(super) fn cancel(&self) {
        if let Some(send) = &*self.send.borrow() {
            send.cancel();
        }
    }

    /// The result of the send in progress; pending if there is none.
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

    /// Whether a send failed with a reset. EPIPE does not count: it means that an end had arrived before.
    pub(super) fn was_reset(&self, cx: &mut Context<'_>) -> bool {
        if !self.reset.get()
            && let Poll::Ready(outcome) = self.poll(cx)
        {
            self.outcome.set(Some(outcome));
        }
        self.reset.get()
    }
}
