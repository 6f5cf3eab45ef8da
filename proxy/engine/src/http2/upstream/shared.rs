//! A connection to an endpoint that several exchanges share, as seen by them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ::http::uri::Scheme;
use bytes::Bytes;
use h2::client::SendRequest;
use sluice_core::error::Reason;
use tokio::sync::Notify;

use super::STREAMS_MAX;
use super::channel::Channel;
use crate::shared_connection::Control;

/// The state of the connection.
enum State {
    /// The server has not responded yet.
    Opening,
    /// It accepts streams.
    Open(SendRequest<Bytes>),
    /// It could not be opened.
    Failed(Reason),
    /// It accepts no more streams; open ones may finish.
    Closed,
}

/// Shared by the task that drives a connection and its streams.
pub(crate) struct SharedConnection {
    state: RefCell<State>,
    changed: Notify,
    scheme: Scheme,
    pub(super) control: Control,
    /// Bytes received so far, modulo 2^32.
    pub(super) received: Cell<u32>,
}

impl SharedConnection {
    /// A connection that is being opened, over TLS if it is `secured`.
    pub(crate) fn opening(secured: bool) -> Rc<Self> {
        Rc::new(Self {
            state: RefCell::new(State::Opening),
            changed: Notify::new(),
            scheme: if secured { Scheme::HTTPS } else { Scheme::HTTP },
            control: Control::default(),
            received: Cell::new(0),
        })
    }

    /// Waits until it is open.
    ///
    /// # Errors
    /// Why it could not be opened.
    pub(crate) async fn opened(&self) -> Result<(), Reason> {
        loop {
            let changed = self.changed.notified();
            match *self.state.borrow() {
                State::Opening => {}
                State::Failed(reason) => return Err(reason),
                State::Open(_) | State::Closed => return Ok(()),
            }
            changed.await;
        }
    }

    /// Marks it as failed to open.
    pub(crate) fn fail(&self, reason: Reason) {
        self.put(State::Failed(reason));
    }

    /// Marks it as open for streams.
    pub(super) fn open(&self, sender: SendRequest<Bytes>) {
        self.put(State::Open(sender));
    }

    /// Marks it as closed for new streams.
    pub(super) fn close(&self) {
        if !matches!(*self.state.borrow(), State::Failed(_)) {
            self.put(State::Closed);
        }
    }

    fn put(&self, state: State) {
        // Dropping a handle wakes the driver task, which may read the state.
        let before = self.state.replace(state);
        drop(before);
        self.changed.notify_waiters();
    }

    pub(super) fn is_opening(&self) -> bool {
        matches!(*self.state.borrow(), State::Opening)
    }

    /// Whether it accepts streams, now or soon. If the server has announced its end, the connection is closed here.
    pub(super) fn is_of_use(&self) -> bool {
        let usable = match &mut *self.state.borrow_mut() {
            State::Opening => true,
            State::Open(sender) => is_usable(sender),
            State::Failed(_) | State::Closed => return false,
        };
        if !usable {
            self.close();
        }
        usable
    }

    /// Starts an exchange, if there is room for one.
    pub(super) fn begin(self: &Rc<Self>) -> Option<Rc<Channel>> {
        let mut state = self.state.borrow_mut();
        let State::Open(sender) = &mut *state else {
            return None;
        };
        let room = sender.current_max_send_streams().min(STREAMS_MAX);
        if self.control.live() >= room || !is_usable(sender) {
            return None;
        }
        Some(Channel::new(self, sender.clone(), self.scheme.clone()))
    }
}

/// Whether the connection has not failed, and its server has not sent a GOAWAY.
fn is_usable(sender: &mut SendRequest<Bytes>) -> bool {
    matches!(sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())))
}
