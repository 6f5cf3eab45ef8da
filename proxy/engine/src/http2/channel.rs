//! One HTTP/2 stream as a [`stream::Channel`]: a connection of one exchange.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ::http::{Method, Request};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use sluice_net::stream::{self, Peer};

use super::control::Control;
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::request::{self, Framing};

struct Directions {
    incoming: Incoming,
    outgoing: Outgoing,
}

/// What comes of an accepted stream.
pub(super) enum Opened {
    Channel(Rc<Channel>),
    /// Its head could not be said; it has been reset.
    Malformed,
    /// It was reset before we saw it, so nobody is asked for anything.
    Gone,
}

/// A stream of a connection; without ways, the connection itself, for who asks it to end.
pub(crate) struct Channel {
    ways: Option<RefCell<Directions>>,
    control: Rc<Control>,
    /// Whether the close that follows is meant as a break.
    broken: Cell<bool>,
}

impl Channel {
    /// Takes an accepted stream.
    pub(super) fn open(
        control: &Rc<Control>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        key: [u8; 16],
    ) -> Opened {
        if respond.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready() {
            return Opened::Gone;
        }
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, ());
        let Ok(framing) = request::check(&request, body.is_end_stream()) else {
            respond.send_reset(Reason::PROTOCOL_ERROR);
            return Opened::Malformed;
        };
        let outgoing = Outgoing::new(respond, request.method() == Method::HEAD, framing == Framing::Tunnel);
        let incoming = Incoming::new(request, framing, body, key);
        control.enter();
        Opened::Channel(Rc::new(Self {
            ways: Some(RefCell::new(Directions { incoming, outgoing })),
            control: Rc::clone(control),
            broken: Cell::new(false),
        }))
    }

    /// The connection as those know it who may ask it to end.
    pub(crate) fn of_connection(control: &Rc<Control>) -> Rc<Self> {
        Rc::new(Self { ways: None, control: Rc::clone(control), broken: Cell::new(false) })
    }
}

impl stream::Channel for Channel {
    fn peer(&self) -> Peer {
        Peer::Client
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let Some(ways) = &self.ways else {
            return Poll::Ready(Ok(0));
        };
        let Directions { incoming, outgoing } = &mut *ways.borrow_mut();
        incoming.poll(cx, buf, outgoing)
    }

    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize> {
        let ways = self.ways.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        ways.borrow_mut().outgoing.push(buf, start)
    }

    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>> {
        match &self.ways {
            Some(ways) => ways.borrow_mut().outgoing.poll_room(cx, wanted),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        match &self.ways {
            Some(ways) => ways.borrow_mut().outgoing.poll_reset(cx),
            None => Poll::Pending,
        }
    }

    fn shutdown(&self, how: Shutdown) {
        match (&self.ways, how) {
            (Some(ways), Shutdown::Write) => ways.borrow_mut().outgoing.finish(),
            (None, Shutdown::Read) => self.control.end(),
            _ => {}
        }
    }

    fn reset_on_close(&self) {
        self.broken.set(true);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let Some(ways) = &mut self.ways {
            let reason = if self.broken.get() { Reason::CANCEL } else { Reason::INTERNAL_ERROR };
            ways.get_mut().outgoing.break_off(reason);
            self.control.leave();
        }
    }
}
