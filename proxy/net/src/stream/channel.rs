//! One exchange of a connection that many share, as a stream of its own.
//!
//! What speaks HTTP/2 implements [`Channel`]. Bytes of bodies pass it like those of a socket: [`ChannelRecv`] and
//! [`ChannelSend`] make of it the receive and the send under way that every stream has. Heads, trailers and ends of
//! messages are no bytes there, so each has a way of its own.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sluice_http::{FieldBlock, HeadLimits, ParseError, ResponseHead, Trailers};

/// What is sent in one piece may wait for a window; a larger one is not asked for at once.
const ROOM_BYTES: usize = 64 * 1024;

/// Why the other side ended an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It did nothing about what was sent, so it may be sent again (RFC 9113 section 8.7).
    Refused,
    /// It does not want it any more: CANCEL.
    Cancelled,
}

/// An exchange on a shared connection.
pub trait Channel {
    /// Sends a head; `ends` tells that nothing follows it.
    fn send_head(&self, head: &FieldBlock, ends: bool) -> io::Result<()>;

    /// Reads the next head that an endpoint sends into `head`, interim ones included.
    fn poll_head(
        &self,
        _: &mut Context<'_>,
        _head: &mut ResponseHead,
        _limits: &HeadLimits,
    ) -> Poll<io::Result<Result<(), ParseError>>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }

    /// Appends bytes of the body to `buf`; 0 is the end of the message.
    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Whether the message that is received has ended, and all of it has been given out.
    fn has_ended(&self) -> bool;

    /// Shows the trailers of a message that has ended.
    fn trailers(&self, show: &mut dyn FnMut(&[u8], &[u8]));

    /// Takes as much of `buf[start..]` as has room, and returns how much.
    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize>;

    /// Has the message end behind the next `bytes` that are pushed, with `trailers`.
    fn end_after(&self, bytes: usize, trailers: &Trailers) -> io::Result<()>;

    /// Waits for room, of `wanted` bytes if that much is possible.
    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>>;

    /// Ready when the other side has broken off, as far as that is seen without reading.
    fn poll_reset(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Ends a direction, where the protocol does not say by itself where it ends.
    fn shutdown(&self, _: Shutdown) {}

    /// Makes the close that follows a reset, where it is not one by itself whenever something is missing.
    fn reset_on_close(&self) {}

    /// What the other side has said about an exchange that it ended early.
    fn verdict(&self) -> Option<Verdict> {
        None
    }
}

/// A receive under way.
pub(crate) struct ChannelRecv {
    channel: Rc<dyn Channel>,
    buf: Option<Vec<u8>>,
}

impl ChannelRecv {
    /// Starts receiving behind what is in `buf`.
    pub(super) fn new(channel: &Rc<dyn Channel>, buf: Vec<u8>) -> Self {
        Self { channel: Rc::clone(channel), buf: Some(buf) }
    }
}

impl Future for ChannelRecv {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut buf = self.buf.take().expect("polled after it was done");
        match self.channel.poll_recv(cx, &mut buf) {
            Poll::Ready(outcome) => Poll::Ready((outcome, buf)),
            Poll::Pending => {
                self.buf = Some(buf);
                Poll::Pending
            }
        }
    }
}

/// A send under way. It goes on only while it is polled.
pub(crate) struct ChannelSend {
    channel: Rc<dyn Channel>,
    buf: Option<Vec<u8>>,
    start: usize,
    outcome: Option<io::Result<usize>>,
}

impl ChannelSend {
    /// Starts sending `buf[start..]`: as much as has room goes at once, and is what it comes to.
    pub(super) fn new(channel: &Rc<dyn Channel>, mut buf: Vec<u8>, start: usize) -> Self {
        let outcome = channel.push(&mut buf, start);
        let outcome = (!matches!(outcome, Ok(0))).then_some(outcome);
        Self { channel: Rc::clone(channel), buf: Some(buf), start, outcome }
    }
}

impl Future for ChannelSend {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut buf = this.buf.take().expect("polled after it was done");
        if let Some(outcome) = this.outcome.take() {
            return Poll::Ready((outcome, buf));
        }
        loop {
            match this.channel.push(&mut buf, this.start) {
                Ok(0) => {}
                outcome => return Poll::Ready((outcome, buf)),
            }
            // A look must not take the place of a wait: the HTTP/2 library knows one waker.
            let looks = cx.waker().will_wake(Waker::noop());
            let wanted = (buf.len() - this.start).min(ROOM_BYTES);
            match if looks { Poll::Pending } else { this.channel.poll_room(cx, wanted) } {
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
