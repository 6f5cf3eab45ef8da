//! One exchange on a shared connection, as a [`stream::Channel`].

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ::http::uri::Scheme;
use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use sluice_http::{FieldBlock, HeadLimits, ParseError, ResponseHead, Trailers};
use sluice_net::stream::{self, Verdict};

use super::super::outbound::{Outbound, gone};
use super::super::{broken, fields, invalid};
use super::SharedConnection;
use super::response::Response;

/// If an exchange is given up after nothing was received for this long, its connection becomes suspect.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);

/// The state of the exchange.
#[expect(clippy::large_enum_variant, reason = "the exchange has begun for nearly all of its life")]
enum State {
    /// Nothing was sent.
    Ready(SendRequest<Bytes>),
    Begun(Exchange),
    /// The head could not be sent, so nothing was sent.
    Failed,
}

struct Exchange {
    request: Outbound,
    response: Response,
    /// When the head was sent, and how many bytes the connection had received by then.
    begun: (Instant, u32),
}

/// A stream of a shared connection: it is opened when its request is sent.
pub(crate) struct Channel {
    shared: Rc<SharedConnection>,
    scheme: Scheme,
    state: RefCell<State>,
    /// Wakes the task that waits for the head to be sent.
    reader: RefCell<Option<Waker>>,
}

impl Channel {
    pub(super) fn new(shared: &Rc<SharedConnection>, sender: SendRequest<Bytes>, scheme: Scheme) -> Rc<Self> {
        shared.control.enter();
        let (state, reader) = (RefCell::new(State::Ready(sender)), RefCell::default());
        Rc::new(Self { shared: Rc::clone(shared), scheme, state, reader })
    }

    /// Starts the exchange.
    fn begin(&self, state: &mut State, head: &FieldBlock, ends: bool) -> io::Result<()> {
        let State::Ready(sender) = state else {
            return Err(invalid());
        };
        let request = fields::request(head, &self.scheme).ok_or_else(invalid)?;
        let is_head = request.method() == ::http::Method::HEAD;
        let (response, stream) = sender.send_request(request, ends).map_err(gone)?;
        *state = State::Begun(Exchange {
            request: Outbound::new(stream, ends),
            response: Response::new(response, is_head),
            begun: (Instant::now(), self.shared.received.get()),
        });
        Ok(())
    }

    /// The started exchange; waits for its start.
    fn poll_exchange<T>(
        &self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(&mut Exchange, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match &mut *self.state.borrow_mut() {
            State::Begun(exchange) => poll(exchange, cx),
            State::Failed => Poll::Ready(Err(broken())),
            State::Ready(_) => {
                *self.reader.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn with_request<T>(&self, with: impl FnOnce(&mut Outbound) -> io::Result<T>) -> io::Result<T> {
        match &mut *self.state.borrow_mut() {
            State::Begun(exchange) => with(&mut exchange.request),
            State::Ready(_) | State::Failed => Err(invalid()),
        }
    }
}

impl Exchange {
    /// Whether the connection has received nothing at all since the request was sent, for so long that it may be dead
    /// without notice.
    fn is_suspect(&self, received: u32) -> bool {
        let (at, before) = self.begun;
        self.response.is_awaited() && before == received && at.elapsed() >= SUSPECT_AFTER
    }
}

impl stream::Channel for Channel {
    fn send_head(&self, head: &FieldBlock, ends: bool) -> io::Result<()> {
        let state = &mut *self.state.borrow_mut();
        let begun = self.begin(state, head, ends);
        if begun.is_err() {
            *state = State::Failed;
        }
        self.reader.take().into_iter().for_each(Waker::wake);
        begun
    }

    fn poll_head(
        &self,
        cx: &mut Context<'_>,
        head: &mut ResponseHead,
        limits: &HeadLimits,
    ) -> Poll<io::Result<Result<(), ParseError>>> {
        self.poll_exchange(cx, |exchange, cx| exchange.response.poll_head(cx, head, limits))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        self.poll_exchange(cx, |exchange, cx| exchange.response.poll_body(cx, buf))
    }

    fn has_ended(&self) -> bool {
        matches!(&*self.state.borrow(), State::Begun(exchange) if exchange.response.is_whole())
    }

    fn trailers(&self, show: &mut dyn FnMut(&[u8], &[u8])) {
        if let State::Begun(exchange) = &*self.state.borrow() {
            let trailers = exchange.response.trailers().into_iter().flat_map(fields::shown);
            trailers.for_each(|(name, value)| show(name, value));
        }
    }

    /// The buffer stays unchanged: the request may have to be sent again.
    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize> {
        self.with_request(|request| request.push(buf, start, true))
    }

    fn end_after(&self, bytes: usize, trailers: &Trailers) -> io::Result<()> {
        self.with_request(|request| request.end_after(bytes, trailers))
    }

    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>> {
        match &mut *self.state.borrow_mut() {
            State::Begun(exchange) => exchange.request.poll_room(cx, wanted),
            State::Ready(_) | State::Failed => Poll::Ready(Err(invalid())),
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        match &*self.state.borrow() {
            State::Ready(_) => None,
            State::Failed => Some(Verdict::Refused),
            State::Begun(exchange) => exchange.response.verdict(),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if let State::Begun(exchange) = self.state.get_mut() {
            if exchange.is_suspect(self.shared.received.get()) {
                self.shared.control.end();
            }
            // The response is not wanted any more, or the request will stay incomplete.
            if !(exchange.request.is_done() && exchange.response.is_whole()) {
                exchange.request.reset(Reason::CANCEL);
            }
        }
        self.shared.control.leave();
    }
}
