//! An in-memory connection that plays a network: it splits, stalls, resets, and holds only so much.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// How a connection behaves.
#[derive(Clone, Copy)]
pub(crate) struct Behaviour {
    /// Seed of all chance.
    pub(crate) seed: u64,
    /// Largest piece that one receive brings or one send takes.
    pub(crate) piece_max: usize,
    /// Bytes under way beyond which senders wait.
    pub(crate) capacity: usize,
}

/// One direction.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    ended: bool,
    reset: bool,
    /// The reading side is gone.
    abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

struct Side {
    incoming: Rc<RefCell<Pipe>>,
    outgoing: Rc<RefCell<Pipe>>,
    behaviour: Behaviour,
    random: RefCell<fastrand::Rng>,
    reset_on_close: Cell<bool>,
}

impl Side {
    /// Now and then nothing happens at first.
    fn stalls(&self, cx: &mut Context<'_>) -> bool {
        let stalls = self.random.borrow_mut().u8(..4) == 0;
        if stalls {
            cx.waker().wake_by_ref();
        }
        stalls
    }

    fn piece(&self, available: usize) -> usize {
        let most = available.min(self.behaviour.piece_max);
        self.random.borrow_mut().usize(1..=most.max(1))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let mut outgoing = self.outgoing.borrow_mut();
        outgoing.ended = true;
        if self.reset_on_close.get() {
            outgoing.reset = true;
            outgoing.bytes.clear();
        }
        outgoing.wake();
        let mut incoming = self.incoming.borrow_mut();
        incoming.abandoned = true;
        incoming.wake();
    }
}

/// One end of a connection; it closes when the last clone, and the last operation on it, is dropped.
#[derive(Clone)]
pub(crate) struct End(Rc<Side>);

/// A connection of two ends.
pub(crate) fn connection(behaviour: Behaviour) -> (End, End) {
    let (there, back) = (Rc::<RefCell<Pipe>>::default(), Rc::<RefCell<Pipe>>::default());
    let end = |incoming: &Rc<RefCell<Pipe>>, outgoing: &Rc<RefCell<Pipe>>, salt| {
        End(Rc::new(Side {
            incoming: Rc::clone(incoming),
            outgoing: Rc::clone(outgoing),
            behaviour,
            random: RefCell::new(fastrand::Rng::with_seed(behaviour.seed ^ salt)),
            reset_on_close: Cell::new(false),
        }))
    };
    (end(&back, &there, 0), end(&there, &back, 0x9e37_79b9))
}

impl End {
    pub(crate) fn recv(&self, buf: Vec<u8>) -> Recv {
        Recv { side: Rc::clone(&self.0), buf: Some(buf) }
    }

    /// A `whole` send proceeds without being polled, as in the kernel: its bytes go out at once.
    pub(crate) fn send(&self, buf: Vec<u8>, start: usize, whole: bool) -> Send {
        let mut done = None;
        if whole {
            let mut pipe = self.0.outgoing.borrow_mut();
            done = Some(if pipe.abandoned || pipe.reset {
                Err(io::ErrorKind::BrokenPipe)
            } else {
                pipe.bytes.extend(&buf[start..]);
                pipe.wake();
                Ok(buf.len() - start)
            });
        }
        Send { side: Rc::clone(&self.0), buf: Some(buf), start, done }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        let pipe = if how == Shutdown::Read { &self.0.incoming } else { &self.0.outgoing };
        let mut pipe = pipe.borrow_mut();
        pipe.ended = true;
        pipe.wake();
    }

    /// The close that follows is a reset.
    pub(crate) fn reset(&self) {
        self.0.reset_on_close.set(true);
    }

    /// Dropping a future calls it off here.
    pub(crate) fn cancel(&self) {}

    pub(crate) fn is_hung_up(&self) -> bool {
        let pipe = self.0.incoming.borrow();
        pipe.ended || pipe.reset
    }
}

pub(crate) struct Recv {
    side: Rc<Side>,
    buf: Option<Vec<u8>>,
}

impl Future for Recv {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let side = Rc::clone(&self.side);
        let mut pipe = side.incoming.borrow_mut();
        let mut buf = self.buf.take().expect("polled after it was done");
        if pipe.reset {
            return Poll::Ready((Err(io::ErrorKind::ConnectionReset.into()), buf));
        }
        if pipe.bytes.is_empty() && pipe.ended {
            return Poll::Ready((Ok(0), buf));
        }
        if pipe.bytes.is_empty() || side.stalls(cx) {
            pipe.reader = Some(cx.waker().clone());
            self.buf = Some(buf);
            return Poll::Pending;
        }
        let count = side.piece(pipe.bytes.len()).min(buf.capacity() - buf.len());
        buf.extend(pipe.bytes.drain(..count));
        pipe.wake();
        Poll::Ready((Ok(count), buf))
    }
}

pub(crate) struct Send {
    side: Rc<Side>,
    buf: Option<Vec<u8>>,
    start: usize,
    done: Option<Result<usize, io::ErrorKind>>,
}

impl Future for Send {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let side = Rc::clone(&self.side);
        let mut pipe = side.outgoing.borrow_mut();
        let buf = self.buf.take().expect("polled after it was done");
        if let Some(done) = self.done {
            return Poll::Ready((done.map_err(Into::into), buf));
        }
        if pipe.abandoned || pipe.reset {
            return Poll::Ready((Err(io::ErrorKind::BrokenPipe.into()), buf));
        }
        let room = side.behaviour.capacity.saturating_sub(pipe.bytes.len());
        if room == 0 || side.stalls(cx) {
            pipe.writer = Some(cx.waker().clone());
            self.buf = Some(buf);
            return Poll::Pending;
        }
        let count = side.piece((buf.len() - self.start).min(room));
        pipe.bytes.extend(&buf[self.start..self.start + count]);
        pipe.wake();
        Poll::Ready((Ok(count), buf))
    }
}
