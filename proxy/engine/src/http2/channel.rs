//! One HTTP/2 stream of a client as a [`stream::Channel`].

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use ::http::header::SEC_WEBSOCKET_ACCEPT;
use ::http::{Method, Request, StatusCode};
use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use sluice_http::{FieldBlock, HeadLimits, ParseError, RequestHead, StreamFraming as Framing, Trailers};
use sluice_net::stream;

use super::inbound::Inbound;
use super::outbound::{Outbound, gone};
use super::request;
use super::{broken, fields, invalid};
use crate::shared_connection::Control;

/// A stream that a client has opened.
pub(crate) struct Accepted {
    /// The rest of the exchange.
    pub(crate) channel: Rc<Channel>,
    request: Request<()>,
    framing: Framing,
}

impl Accepted {
    /// Reads the request into `head`. `key` generates the nonce of a WebSocket.
    ///
    /// # Errors
    /// What is wrong with the request.
    pub(crate) fn read(
        &self,
        head: &mut RequestHead,
        limits: &HeadLimits,
        key: impl FnOnce() -> [u8; 16],
    ) -> Result<(), ParseError> {
        request::read(&self.request, self.framing, head, limits, key)
    }

    /// Whether it is a HEAD, even if it is invalid.
    pub(crate) fn is_head(&self) -> bool {
        self.request.method() == Method::HEAD
    }
}

/// Why a stream does not become an exchange.
pub(super) enum Declined {
    /// Its head cannot be expressed in HTTP/1.1; it was reset.
    Malformed,
    /// It was reset before sluice saw it; there is nothing to do.
    Gone,
}

/// The response.
enum Answer {
    /// No final head was sent.
    Awaited(SendResponse<Bytes>),
    Begun(Outbound),
}

struct Directions {
    framing: Framing,
    request: Inbound,
    answer: Answer,
    /// Whether both directions are opaque from now on; the other direction stays open when this one has ended.
    is_tunnel: bool,
}

/// A stream of a connection.
pub(crate) struct Channel {
    ways: RefCell<Directions>,
    control: Rc<Control>,
    /// Whether the close that follows is an abort.
    broken: Cell<bool>,
}

impl Channel {
    /// Creates the channel of an accepted stream.
    pub(super) fn open(
        control: &Rc<Control>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Result<Accepted, Declined> {
        if respond.poll_reset(&mut Context::from_waker(Waker::noop())).is_ready() {
            return Err(Declined::Gone);
        }
        let (head, body) = request.into_parts();
        let request = Request::from_parts(head, ());
        let Ok(framing) = request::check(&request, body.is_end_stream()) else {
            respond.send_reset(Reason::PROTOCOL_ERROR);
            return Err(Declined::Malformed);
        };
        let answer = Answer::Awaited(respond);
        let ways = Directions { framing, request: Inbound::new(body), answer, is_tunnel: false };
        control.enter();
        let (ways, control) = (RefCell::new(ways), Rc::clone(control));
        let channel = Rc::new(Self { ways, control, broken: Cell::new(false) });
        Ok(Accepted { channel, request, framing })
    }
}

impl Directions {
    fn has_answered(&self) -> bool {
        matches!(&self.answer, Answer::Begun(answer) if answer.is_done())
    }

    fn answer(&mut self) -> io::Result<&mut Outbound> {
        match &mut self.answer {
            Answer::Awaited(_) => Err(invalid()),
            Answer::Begun(answer) => Ok(answer),
        }
    }

    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        match self.framing {
            Framing::Tunnel if self.is_tunnel => self.request.poll(cx, buf).map_err(gone),
            // The client's bytes are read once the endpoint has accepted the upgrade.
            Framing::Tunnel => self.poll_silent(cx),
            // The rest of a request that has its response is not needed.
            _ if self.has_answered() => Poll::Ready(Ok(0)),
            _ if self.request.has_ended() => self.poll_silent(cx),
            Framing::Stream => self.request.poll(cx, buf).map_err(gone),
            // The receiver knows where it ends.
            Framing::None | Framing::Length => match ready!(self.request.poll(cx, buf)) {
                Ok(0) => self.poll_silent(cx),
                outcome => Poll::Ready(outcome.map_err(gone)),
            },
        }
    }

    /// After the request: the end once the response is complete, or an error when the client cancels it.
    fn poll_silent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.has_answered() {
            return Poll::Ready(Ok(0));
        }
        self.poll_reset(cx).map(|()| Err(broken()))
    }

    fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.answer {
            Answer::Awaited(respond) => respond.poll_reset(cx).map(drop),
            Answer::Begun(answer) => answer.poll_reset(cx),
        }
    }

    fn send_head(&mut self, head: &FieldBlock, ends: bool) -> io::Result<()> {
        let Answer::Awaited(respond) = &mut self.answer else {
            return Err(invalid());
        };
        let mut response = fields::response(head).ok_or_else(invalid)?;
        let opens_tunnel =
            response.status() == StatusCode::SWITCHING_PROTOCOLS && self.framing == Framing::Tunnel;
        if opens_tunnel {
            *response.status_mut() = StatusCode::OK;
            response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
        } else if response.status().is_informational() {
            return respond.send_informational(response).map_err(gone);
        }
        let stream = respond.send_response(response, ends).map_err(gone)?;
        self.answer = Answer::Begun(Outbound::new(stream, ends));
        self.is_tunnel = opens_tunnel;
        Ok(())
    }

    /// Aborts an incomplete message, so that nobody takes it for a complete one.
    fn break_off(&mut self, reason: Reason) {
        match &mut self.answer {
            Answer::Awaited(respond) => respond.send_reset(reason),
            Answer::Begun(answer) if !answer.is_done() => answer.reset(reason),
            Answer::Begun(_) => {}
        }
    }
}

impl stream::Channel for Channel {
    fn send_head(&self, head: &FieldBlock, ends: bool) -> io::Result<()> {
        self.ways.borrow_mut().send_head(head, ends)
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        self.ways.borrow_mut().poll_recv(cx, buf)
    }

    fn has_ended(&self) -> bool {
        self.ways.borrow().request.has_ended()
    }

    fn trailers(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        let ways = self.ways.borrow();
        let trailers = ways.request.trailers().into_iter().flat_map(fields::shown);
        trailers.for_each(|(name, value)| show(name, value));
    }

    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize> {
        self.ways.borrow_mut().answer()?.push(buf, start, false)
    }

    fn end_after(&self, bytes: usize, trailers: &Trailers) -> io::Result<()> {
        self.ways.borrow_mut().answer()?.end_after(bytes, trailers)
    }

    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>> {
        self.ways.borrow_mut().answer()?.poll_room(cx, wanted)
    }

    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.ways.borrow_mut().poll_reset(cx)
    }

    fn shutdown_write(&self) {
        let ways = &mut *self.ways.borrow_mut();
        if let (Answer::Begun(answer), true) = (&mut ways.answer, ways.is_tunnel) {
            answer.finish();
        }
    }

    fn reset_on_close(&self) {
        self.broken.set(true);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let reason = if self.broken.get() { Reason::CANCEL } else { Reason::INTERNAL_ERROR };
        self.ways.get_mut().break_off(reason);
        self.control.leave();
    }
}
