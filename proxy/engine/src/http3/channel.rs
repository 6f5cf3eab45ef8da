//! One request stream of a client as a [`stream::Channel`].

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use sluice_core::metrics::Event;
use sluice_http::http3::{FieldSection, Http3Code, Http3Request, qpack};
use sluice_http::{FieldBlock, HeadLimits, ParseError, RequestHead, StreamFraming, Trailers};
use sluice_net::quic::StreamId;
use sluice_net::stream;

use super::inbound::{Fault, Head, Inbound};
use super::link::Link;
use super::outbound::Outbound;
use super::{broken, invalid};

/// A field of HTTP/1.1 that answers another one which HTTP/3 has not.
const WEBSOCKET_ACCEPT: &[u8] = b"sec-websocket-accept";

/// Methods that change nothing (RFC 9110 section 9.2.1).
const SAFE_METHODS: [&[u8]; 4] = [b"GET", b"HEAD", b"OPTIONS", b"TRACE"];

/// How long the end of a request is awaited of which only the head has arrived. Without it, the application gets a body,
/// if an empty one.
const END_PATIENCE: Duration = Duration::from_millis(20);

/// A request whose head has arrived.
pub(crate) struct Accepted {
    /// The rest of the exchange.
    pub(crate) channel: Rc<Channel>,
    /// `None` if the head is too large.
    request: Option<Http3Request>,
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
        let Some(request) = &self.request else { return Err(ParseError::HeadTooLarge) };
        let key = match request.framing() {
            StreamFraming::Tunnel => data_encoding::BASE64.encode(&key()),
            _ => String::new(),
        };
        request.read(head, limits, key.as_bytes())
    }

    /// Whether its method is safe, and it has no body (RFC 9110 section 9.2.1).
    pub(crate) fn is_safe(&self) -> bool {
        self.request.as_ref().is_some_and(|request| {
            request.framing() == StreamFraming::None && SAFE_METHODS.contains(&request.method())
        })
    }

    /// Whether it is a HEAD, even if it is invalid.
    pub(crate) fn is_head(&self) -> bool {
        self.request.as_ref().is_some_and(Http3Request::is_head)
    }
}

/// Whether a request with this head has no body as a rule.
fn is_usually_whole(head: &FieldSection) -> bool {
    let has = |wanted: &[u8], values: &[&[u8]]| {
        head.iter().any(|(name, value)| name == wanted && (values.is_empty() || values.contains(&value)))
    };
    has(b":method", &[b"GET", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE"]) && !has(b"content-length", &[])
}

/// A stream that does not become an exchange. It was reset.
pub(crate) struct Declined;

struct Ways {
    framing: StreamFraming,
    request: Inbound,
    answer: Outbound,
    /// Whether both directions are opaque from now on; the other direction stays open when this one has ended.
    is_tunnel: bool,
}

/// A request stream of a connection.
pub(crate) struct Channel {
    /// For the driver, which may have to send a head.
    own: Weak<Self>,
    link: Rc<Link>,
    id: StreamId,
    ways: RefCell<Ways>,
    /// Whether the close that follows is an abort.
    broken: Cell<bool>,
    /// Whether the request took too long to arrive.
    is_late: Cell<bool>,
}

impl Channel {
    /// The channel of a stream that the client has opened.
    pub(crate) fn open(link: &Rc<Link>, id: StreamId) -> Rc<Self> {
        let (request, answer) = (Inbound::new(link), Outbound::new(id));
        let ways = Ways { framing: StreamFraming::None, request, answer, is_tunnel: false };
        link.control.enter();
        let link = Rc::clone(link);
        Rc::new_cyclic(|own| Self {
            own: Weak::clone(own),
            link,
            id,
            ways: RefCell::new(ways),
            broken: Cell::new(false),
            is_late: Cell::new(false),
        })
    }

    /// Reads the head of its request.
    pub(crate) async fn accept(self: Rc<Self>) -> Result<Accepted, Declined> {
        let head = poll_fn(|cx| self.ways.borrow_mut().request.poll_head(cx, &self.link, self.id)).await;
        let section = match head {
            Ok(Head::Fields(section)) => section,
            Ok(Head::TooLarge) => return Ok(Accepted { channel: self, request: None }),
            Err(_) => return Err(Declined),
        };
        if !self.knows_its_end() && is_usually_whole(&section) {
            // Many clients send the end of a request without a body apart from its head.
            let _ = tokio::time::timeout(END_PATIENCE, poll_fn(|cx| self.poll_end(cx))).await;
        }
        let ways = &mut *self.ways.borrow_mut();
        let ended = ways.request.has_ended();
        let request = match Http3Request::check(section, ended) {
            Ok(request) if ways.request.fault().is_none() => request,
            _ => {
                ways.request.refuse();
                return Err(Declined);
            }
        };
        self.link.apply_priority(self.id, request.priority());
        ways.framing = request.framing();
        ways.request.expect(request.declared_length());
        if ways.request.fault().is_some() {
            return Err(Declined);
        }
        Ok(Accepted { channel: Rc::clone(&self), request: Some(request) })
    }

    /// Whether the request has ended, or its body has begun.
    fn knows_its_end(&self) -> bool {
        self.poll_end(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        let request = &mut self.ways.borrow_mut().request;
        request.ends_now(cx, &self.link, self.id);
        if request.is_known() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Sends a head that waits for room. Returns whether nothing is left to send.
    pub(super) fn flush(&self, cx: &Context<'_>) -> bool {
        let is_sent = self.ways.borrow_mut().answer.flush(&self.link.connection).unwrap_or(true);
        if !is_sent {
            self.link.connection.wait_to_flush(cx, self.id);
        }
        is_sent
    }

    /// The request took too long to arrive.
    pub(crate) fn time_out(&self) {
        self.is_late.set(true);
    }
}

impl Ways {
    fn has_answered(&self) -> bool {
        self.answer.is_done()
    }
}

impl Channel {
    /// After the request: the end once the response is complete, or an error when the client cancels it.
    fn poll_silent(&self, ways: &mut Ways, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if ways.has_answered() {
            return Poll::Ready(Ok(0));
        }
        self.poll_cancelled(ways, cx).map(|()| Err(broken()))
    }

    fn poll_cancelled(&self, ways: &mut Ways, cx: &mut Context<'_>) -> Poll<()> {
        if !ways.request.has_ended() && self.link.connection.was_reset(self.id) {
            ways.request.give_up();
        }
        if ways.request.fault().is_some() {
            return Poll::Ready(());
        }
        self.link.connection.poll_stopped(cx, self.id)
    }

    fn poll_body(&self, ways: &mut Ways, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let polled = ready!(ways.request.poll_body(cx, &self.link, self.id, buf));
        // What is wrong decides about the reset.
        Poll::Ready(polled.map_err(|_| broken()))
    }
}

impl stream::Channel for Channel {
    fn send_head(&self, head: &FieldBlock, ends: bool) -> io::Result<()> {
        let ways = &mut *self.ways.borrow_mut();
        if let Some(Fault::Stream(_)) = ways.request.fault() {
            // It is answered by the reset (RFC 9114 section 4.1.2).
            return Err(broken());
        }
        let status = head.as_response().ok_or_else(invalid)?;
        let opens_tunnel = status == 101 && ways.framing == StreamFraming::Tunnel;
        let status = if opens_tunnel { 200 } else { status };
        let mut section = qpack::Encoder::new();
        section.field(b":status", status.to_string().as_bytes());
        for (name, value) in head.fields() {
            if !(opens_tunnel && name.eq_ignore_ascii_case(WEBSOCKET_ACCEPT)) {
                section.field(name, value);
            }
        }
        ways.answer.send_head(&self.link.connection, status, section.bytes(), ends)?;
        ways.is_tunnel |= opens_tunnel;
        if opens_tunnel {
            ways.request.refuse_trailers();
        }
        if ways.answer.has_queue() {
            self.link.send_later(Weak::clone(&self.own));
        }
        Ok(())
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let ways = &mut *self.ways.borrow_mut();
        match ways.framing {
            StreamFraming::Tunnel if ways.is_tunnel => self.poll_body(ways, cx, buf),
            // The client's bytes are read once the endpoint has accepted the upgrade.
            StreamFraming::Tunnel => self.poll_silent(ways, cx),
            // The rest of a request that has its response is not needed.
            _ if ways.has_answered() => Poll::Ready(Ok(0)),
            _ if ways.request.has_ended() => self.poll_silent(ways, cx),
            StreamFraming::Stream => self.poll_body(ways, cx, buf),
            // The receiver knows where it ends.
            StreamFraming::None | StreamFraming::Length => match ready!(self.poll_body(ways, cx, buf)) {
                Ok(0) => self.poll_silent(ways, cx),
                outcome => Poll::Ready(outcome),
            },
        }
    }

    fn has_ended(&self) -> bool {
        self.ways.borrow().request.has_ended()
    }

    fn trailers(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        let ways = self.ways.borrow();
        let trailers = ways.request.trailers().into_iter().flat_map(|trailers| trailers.iter());
        trailers.for_each(|(name, value)| show(name, value));
    }

    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize> {
        self.ways.borrow_mut().answer.push(&self.link.connection, &buf[start..])
    }

    fn end_after(&self, bytes: usize, trailers: &Trailers) -> io::Result<()> {
        self.ways.borrow_mut().answer.end_after(&self.link.connection, bytes, trailers)
    }

    fn poll_room(&self, cx: &mut Context<'_>, _: usize) -> Poll<io::Result<()>> {
        // It is called after a push that found no room, so the transport reports when there is some.
        self.link.connection.wait_for_room(cx, self.id);
        Poll::Pending
    }

    fn poll_reset(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_cancelled(&mut self.ways.borrow_mut(), cx)
    }

    fn shutdown_write(&self) {
        let ways = &mut *self.ways.borrow_mut();
        if ways.is_tunnel {
            ways.answer.finish(&self.link.connection);
        }
    }

    fn reset_on_close(&self) {
        self.broken.set(true);
    }
}

impl Channel {
    /// Why the stream is reset if its exchange has not ended, and counts what the client did.
    fn reason(&self, request: &Inbound, was_done: bool) -> Http3Code {
        match request.fault() {
            Some(Fault::Stream(code)) => {
                self.link.metrics.count(Event::Http3Malformed);
                self.link.meter.count_fault();
                code
            }
            Some(Fault::Gone) if !was_done => {
                self.link.meter.count_reset();
                Http3Code::RequestCancelled
            }
            // It wants no response any more.
            _ if !was_done && self.link.connection.was_stopped(self.id) => {
                self.link.meter.count_reset();
                Http3Code::RequestCancelled
            }
            _ if self.is_late.get() => Http3Code::RequestIncomplete,
            _ if self.broken.get() => Http3Code::RequestCancelled,
            _ => Http3Code::InternalError,
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let ways = &mut *self.ways.borrow_mut();
        let was_done = ways.answer.is_done();
        let code = self.reason(&ways.request, was_done);
        let connection = &self.link.connection;
        ways.answer.break_off(connection, code);
        if !ways.request.has_ended() {
            // RFC 9114 section 4.1: the response is complete without the rest of the request.
            let code = if was_done { Http3Code::NoError } else { code };
            connection.stop(self.id, code.number());
        }
        connection.forget(self.id);
        self.link.forget_priority(self.id);
        if let Some(rest) = ways.answer.rest() {
            self.link.leave(rest);
        }
        self.link.control.leave();
    }
}
