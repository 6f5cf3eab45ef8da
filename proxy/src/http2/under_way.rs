//! A receive and a send under way on a stream, towards clients and towards endpoints alike.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What is sent in one piece may wait for a window; a larger one is not asked for at once.
const ROOM_BYTES: usize = 64 * 1024;

/// What both ask of a stream.
pub(crate) trait Ways {
    /// Puts what has come behind what is in `buf`; 0 is the end.
    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>>;

    /// Takes as much of `buf[start..]` as has room.
    fn push(&self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize>;

    /// Waits for room, `wanted` bytes of it if that many can be had.
    fn poll_room(&self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>>;
}

/// A receive under way.
pub(crate) struct Recv<C> {
    channel: Rc<C>,
    buf: Option<Vec<u8>>,
}

impl<C: Ways> Recv<C> {
    /// Starts receiving behind what is in `buf`.
    pub(super) fn new(channel: &Rc<C>, buf: Vec<u8>) -> Self {
        Self { channel: Rc::clone(channel), buf: Some(buf) }
    }
}

impl<C: Ways> Future for Recv<C> {
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
pub(crate) struct Send<C> {
    channel: Rc<C>,
    buf: Option<Vec<u8>>,
    start: usize,
    outcome: Option<io::Result<usize>>,
}

impl<C: Ways> Send<C> {
    /// Starts sending `buf[start..]`: as much as has room goes at once, and is what it comes to.
    pub(super) fn new(channel: &Rc<C>, mut buf: Vec<u8>, start: usize) -> Self {
        let outcome = channel.push(&mut buf, start);
        let outcome = (!matches!(outcome, Ok(0))).then_some(outcome);
        Self { channel: Rc::clone(channel), buf: Some(buf), start, outcome }
    }
}

impl<C: Ways> Future for Send<C> {
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
            // Who only looks must not take the place of who waits: the crate knows one of them.
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
