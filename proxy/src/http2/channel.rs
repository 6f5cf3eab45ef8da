//! One HTTP/2 stream as an engine of [`crate::stream::Stream`]: a connection of one exchange.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ::http::{Method, Request};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};

use super::control::Control;
use super::incoming::Incoming;
use super::outgoing::Outgoing;
use super::request::{self, Framing};

/// What is sent to a tunnel's client in one piece may wait for a window; a larger one is not asked for at once.
const ROOM_BYTES: usize = 64 * 1024;

struct Ways {
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
    ways: Option<RefCell<Ways>>,
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
            ways: Some(RefCell::new(Ways { incoming, outgoing })),
            control: Rc::clone(control),
            broken: Cell::new(false),
        }))
    }

    /// The connection as those know it who may ask it to end.
    pub(crate) fn of_connection(control: &Rc<Control>) -> Rc<Self> {
        Rc::new(Self { ways: None, control: Rc::clone(control), broken: Cell::new(false) })
    }

    /// Starts receiving behind what is in `buf`.
    pub(crate) fn recv(self: &Rc<Self>, buf: Vec<u8>) -> Recv {
        Recv { channel: Rc::clone(self), buf: Some(buf) }
    }

    /// Starts sending `buf[start..]`: as much as has room goes at once, and is what it comes to.
    pub(crate) fn send(self: &Rc<Self>, mut buf: Vec<u8>, start: usize) -> Send {
        let outcome = match &self.ways {
            Some(ways) => ways.borrow_mut().outgoing.push(&mut buf, start),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        let outcome = (!matches!(outcome, Ok(0))).then_some(outcome);
        Send { channel: Rc::clone(self), buf: Some(buf), start, outcome }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        match (&self.ways, how) {
            (Some(ways), Shutdown::Write) => ways.borrow_mut().outgoing.finish(),
            (None, Shutdown::Read) => self.control.end(),
            _ => {}
        }
    }

    /// The close that follows is a break, even behind an answer that only the close would end.
    pub(crate) fn reset_on_close(&self) {
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

/// A receive under way.
pub(crate) struct Recv {
    channel: Rc<Channel>,
    buf: Option<Vec<u8>>,
}

impl Future for Recv {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut buf = this.buf.take().expect("polled after it was done");
        let Some(ways) = &this.channel.ways else {
            return Poll::Ready((Ok(0), buf));
        };
        let Ways { incoming, outgoing } = &mut *ways.borrow_mut();
        match incoming.poll(cx, &mut buf, outgoing) {
            Poll::Ready(outcome) => Poll::Ready((outcome, buf)),
            Poll::Pending => {
                this.buf = Some(buf);
                Poll::Pending
            }
        }
    }
}

/// A send under way. It goes on only while it is polled.
pub(crate) struct Send {
    channel: Rc<Channel>,
    buf: Option<Vec<u8>>,
    start: usize,
    outcome: Option<io::Result<usize>>,
}

impl Future for Send {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut buf = this.buf.take().expect("polled after it was done");
        if let Some(outcome) = this.outcome.take() {
            return Poll::Ready((outcome, buf));
        }
        let Some(ways) = &this.channel.ways else {
            return Poll::Ready((Err(io::ErrorKind::NotConnected.into()), buf));
        };
        let outgoing = &mut ways.borrow_mut().outgoing;
        loop {
            match outgoing.push(&mut buf, this.start) {
                Ok(0) => {}
                outcome => return Poll::Ready((outcome, buf)),
            }
            // Who only looks must not take the place of who waits: the crate knows one of them.
            let looks = cx.waker().will_wake(Waker::noop());
            let wanted = (buf.len() - this.start).min(ROOM_BYTES);
            match if looks { Poll::Pending } else { outgoing.poll_room(cx, wanted) } {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready((Err(error), buf)),
                Poll::Pending => {
                    this.buf = Some(buf);
                    return Poll::Pending;
                }
            }
        }
    }
}
