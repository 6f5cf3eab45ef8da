//! One exchange on a shared connection, as a separate stream.
//!
//! The HTTP/2 code implements [`Channel`]. Body bytes pass through it as through a socket: [`ChannelRecv`] and
//! [`ChannelSend`] turn it into the receive and the send in progress that every stream has. Heads, trailers and ends of
//! messages are not bytes there, so each has a separate method.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use sluice_http::{FieldBlock, HeadLimits, ParseError, ResponseHead, Trailers};

/// Most bytes of window to wait for at a time. A larger message waits for the rest later.
const ROOM_BYTES: usize = 64 * 1024;

/// Why the peer ended an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It did not process the message, which may be sent again (RFC 9113 section 8.7).
    Refused,
    /// It no longer needs the exchange: CANCEL.
    Cancelled,
}

/// An exchange on a shared connection.
pub trait Channel {
    /// Sends a head. `ends` tells whether the message ends with it.
    fn send_head(&self, head: &FieldBlock, ends: bool) -> io::Result<()>;

    /// Reads the next head from an endpoint into `head`, including interim ones.
    fn poll_head(
        &self,
        _: &mut Context<'_>,
        _head: &mut ResponseHead,
        _limits: &HeadLimits,
    ) -> Poll<io::Result<Result<(), ParseError>>> {
        Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
    }

    /// Appends bytes of the body to `buf`. 0 is the end of the message.
    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Whether the received message has ended and all of it has been read.
    fn has_ended(&self) -> bool;

    /// Shows the trailers of a message that has ended.
    fn trailers(&self, show: &mut dyn FnMut(&[u8], &[u8]));

    /// Takes as much of `buf[start..]` as there is room for, and returns how much.
    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize>;

    /// Ends the message after the next `bytes` pushed bytes, with `trailers`.
    fn end_after(&self, bytes: usize, trailers: &Trailers) -> io::Result<()>;

    /// Waits for room for `wanted` bytes, or less if that much is impossible.
    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>>;

    /// Ready when the peer has reset the exchange, if this is visible without reading.
    fn poll_reset(&self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    /// Ends the message being sent, if the protocol does not already end it.
    fn shutdown_write(&self) {}

    /// Turns the following close into a reset, if the protocol does not reset incomplete messages anyway.
    fn reset_on_close(&self) {}

    /// The reason that the peer gave for ending an exchange early.
    fn verdict(&self) -> Option<Verdict> {
        None
    }
}

/// A receive in progress.
pub(crate) struct ChannelRecv {
    channel: Rc<dyn Channel>,
    buf: Option<Vec<u8>>,
}

impl ChannelRecv {
    /// Starts a receive that appends to `buf`.
    pub(super) fn new(channel: &Rc<dyn Channel>, buf: Vec<u8>) -> Self {
        Self { channel: Rc::clone(channel), buf: Some(buf) }
    }
}

impl Future for ChannelRecv {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut buf = self.buf.take().expect("polled after completion");
        match self.channel.poll_recv(cx, &mut buf) {
            Poll::Ready(outcome) => Poll::Ready((outcome, buf)),
            Poll::Pending => {
                self.buf = Some(buf);
                Poll::Pending
            }
        }
    }
}

/// A send in progress. It continues only while it is polled.
pub(crate) struct ChannelSend {
    channel: Rc<dyn Channel>,
    buf: Option<Vec<u8>>,
    start: usize,
    outcome: Option<io::Result<usize>>,
}

impl ChannelSend {
    /// Starts sending `buf[start..]`. What fits is sent at once and is the result.
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
        let mut buf = this.buf.take().expect("polled after completion");
        if let Some(outcome) = this.outcome.take() {
            return Poll::Ready((outcome, buf));
        }
        loop {
            match this.channel.push(&mut buf, this.start) {
                Ok(0) => {}
                outcome => return Poll::Ready((outcome, buf)),
            }
            // A poll with the no-op waker must not replace a registered waker: the HTTP/2 library stores only one.
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
