//! One exchange on a shared connection, as an engine of [`crate::stream::Stream`].

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use ::http::uri::Scheme;
use bytes::Bytes;
use h2::client::SendRequest;

use super::Shared;
use super::receiving::Receiving;
use super::sending::Sending;

/// What is sent in one piece may wait for a window; a larger one is not asked for at once.
const ROOM_BYTES: usize = 64 * 1024;
/// An exchange that is given up after hearing nothing for as long makes its connection suspect.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);

struct Ways {
    sending: Sending,
    /// Since the head has gone out.
    receiving: Option<Receiving>,
    /// The head could not be sent, so nothing was.
    failed: bool,
    /// Who waits for the head to be sent.
    reader: Option<Waker>,
    /// When the head was sent, and how much the connection had received by then.
    begun: Option<(Instant, u32)>,
}

/// A stream of a shared connection: it is there when its request is sent.
pub(crate) struct Channel {
    shared: Rc<Shared>,
    ways: RefCell<Ways>,
}

impl Channel {
    pub(super) fn new(shared: &Rc<Shared>, sender: SendRequest<Bytes>, scheme: Scheme) -> Rc<Self> {
        shared.control.enter();
        let sending = Sending::new(sender, scheme);
        let ways = Ways { sending, receiving: None, failed: false, reader: None, begun: None };
        Rc::new(Self { shared: Rc::clone(shared), ways: RefCell::new(ways) })
    }

    /// Starts receiving behind what is in `buf`.
    pub(crate) fn recv(self: &Rc<Self>, buf: Vec<u8>) -> Recv {
        Recv { channel: Rc::clone(self), buf: Some(buf) }
    }

    /// Starts sending `buf[start..]`: as much as has room goes at once, and is what it comes to.
    pub(crate) fn send(self: &Rc<Self>, buf: Vec<u8>, start: usize) -> Send {
        let outcome = self.push(&buf[start..]);
        let outcome = (!matches!(outcome, Ok(0))).then_some(outcome);
        Send { channel: Rc::clone(self), buf: Some(buf), start, outcome }
    }

    /// Whether the server has not looked at the request, so that it may be sent again whatever it is.
    pub(crate) fn is_refused(&self) -> bool {
        let ways = self.ways.borrow();
        ways.failed || ways.receiving.as_ref().is_some_and(Receiving::is_refused)
    }

    fn push(&self, bytes: &[u8]) -> io::Result<usize> {
        let ways = &mut *self.ways.borrow_mut();
        let mut begun = None;
        let outcome = ways.sending.push(bytes, &mut begun);
        if let Some(begun) = begun {
            ways.receiving = Some(Receiving::new(begun));
            ways.begun = Some((Instant::now(), self.shared.received.get()));
        }
        ways.failed = ways.receiving.is_none();
        ways.reader.take().into_iter().for_each(Waker::wake);
        outcome
    }

    /// Whether the connection has said nothing at all since the request was sent on it, for so long that it may be dead
    /// without our knowing.
    fn is_suspect(&self, ways: &Ways) -> bool {
        let awaited = ways.receiving.as_ref().is_some_and(Receiving::is_awaited);
        let silent = |(at, received): (Instant, u32)| {
            received == self.shared.received.get() && at.elapsed() >= SUSPECT_AFTER
        };
        awaited && ways.begun.is_some_and(silent)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let suspect = self.is_suspect(&self.ways.borrow());
        let ways = self.ways.get_mut();
        if !(ways.sending.is_done() && ways.receiving.as_ref().is_some_and(Receiving::is_whole)) {
            ways.sending.cancel();
        }
        if suspect {
            self.shared.control.end();
        }
        self.shared.control.leave();
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
        let ways = &mut *this.channel.ways.borrow_mut();
        let polled = match &mut ways.receiving {
            Some(receiving) => receiving.poll(cx, &mut buf),
            None if ways.failed => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            None => {
                ways.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        };
        match polled {
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
        let buf = this.buf.take().expect("polled after it was done");
        if let Some(outcome) = this.outcome.take() {
            return Poll::Ready((outcome, buf));
        }
        loop {
            match this.channel.push(&buf[this.start..]) {
                Ok(0) => {}
                outcome => return Poll::Ready((outcome, buf)),
            }
            // Who only looks must not take the place of who waits: the crate knows one of them.
            let looks = cx.waker().will_wake(Waker::noop());
            let wanted = (buf.len() - this.start).min(ROOM_BYTES);
            let sending = &mut this.channel.ways.borrow_mut().sending;
            match if looks { Poll::Pending } else { sending.poll_room(cx, wanted) } {
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
