//! An in-memory connection that simulates a kernel and a network: it splits, stalls, resets, and buffers a limited
//! number of bytes. Like a ring, it continues a send that is not polled, and takes only part of a send that is not
//! `whole`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tokio::time::Instant;

/// How a connection behaves.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Most bytes that one receive returns or one send takes; at least 1.
    pub piece_max: usize,
    /// Bytes in flight above which senders wait; at least 1.
    pub capacity: usize,
    /// One in how many results is not ready at the first poll. At 0 there are no stalls, and pieces are as large as
    /// possible.
    pub stall_of: u8,
}

/// The send in progress in one direction.
struct Sending {
    rest: VecDeque<u8>,
    taken: usize,
    whole: bool,
    done: bool,
    /// Time of its last progress.
    at: Instant,
}

/// One direction.
struct Pipe {
    behaviour: Behaviour,
    random: fastrand::Rng,
    bytes: VecDeque<u8>,
    sending: Option<Sending>,
    /// The sending side has ended the stream properly.
    ended: bool,
    /// The reading side sees a reset.
    reset: bool,
    /// The reading side has closed.
    abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn new(behaviour: Behaviour, salt: u64) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            behaviour,
            random: fastrand::Rng::with_seed(behaviour.seed ^ salt),
            bytes: VecDeque::new(),
            sending: None,
            ended: false,
            reset: false,
            abandoned: false,
            reader: None,
            writer: None,
        }))
    }

    /// Randomly returns nothing at the first poll.
    fn stalls(&mut self, cx: &mut Context<'_>) -> bool {
        let stalls = !self.is_calm() && self.random.u8(..self.behaviour.stall_of) == 0;
        if stalls {
            cx.waker().wake_by_ref();
        }
        stalls
    }

    /// All available bytes, or a random part of them.
    fn piece(&mut self, available: usize) -> usize {
        let most = available.min(self.behaviour.piece_max).max(1);
        if self.is_calm() || self.random.bool() { most } else { self.random.usize(1..=most) }
    }

    fn is_calm(&self) -> bool {
        self.behaviour.stall_of == 0
    }

    /// Whether the writing side can send nothing more.
    fn is_broken(&self) -> bool {
        self.abandoned || self.ended || self.reset
    }

    /// Continues the send in progress as far as there is room.
    fn advance(&mut self) {
        let Some(mut sending) = self.sending.take() else {
            return;
        };
        if !sending.done {
            sending.at = Instant::now();
        }
        sending.done |= self.is_broken();
        while !sending.done && self.bytes.len() < self.behaviour.capacity {
            let room = self.behaviour.capacity - self.bytes.len();
            let count = self.piece(room.min(sending.rest.len()));
            self.bytes.extend(sending.rest.drain(..count));
            sending.taken += count;
            sending.done = sending.rest.is_empty() || !sending.whole;
        }
        self.sending = Some(sending);
        self.wake();
    }

    /// Resets the connection. Only part of the unread bytes have arrived.
    fn break_off(&mut self) {
        if !self.ended {
            self.reset = true;
            let arrived = self.random.usize(..=self.bytes.len());
            self.bytes.truncate(arrived);
        }
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

struct Side {
    incoming: Rc<RefCell<Pipe>>,
    outgoing: Rc<RefCell<Pipe>>,
    reset_on_close: Cell<bool>,
}

impl Drop for Side {
    fn drop(&mut self) {
        let mut incoming = self.incoming.borrow_mut();
        let mut outgoing = self.outgoing.borrow_mut();
        // As in Linux: closing with unread data sends a reset, and discards what has not left yet.
        if self.reset_on_close.get() || !incoming.bytes.is_empty() {
            outgoing.break_off();
        } else {
            outgoing.ended = true;
        }
        outgoing.advance();
        outgoing.wake();
        incoming.abandoned = true;
        incoming.advance();
        incoming.wake();
    }
}

/// One end of a connection. It closes when its last clone and its last operation are dropped.
#[derive(Clone)]
pub struct End(Rc<Side>);

/// A connection with two ends.
pub fn connection(behaviour: Behaviour) -> (End, End) {
    let (there, back) = (Pipe::new(behaviour, 0), Pipe::new(behaviour, 0x9e37_79b9));
    let end = |incoming: &Rc<RefCell<Pipe>>, outgoing: &Rc<RefCell<Pipe>>| {
        End(Rc::new(Side {
            incoming: Rc::clone(incoming),
            outgoing: Rc::clone(outgoing),
            reset_on_close: Cell::new(false),
        }))
    };
    (end(&back, &there), end(&there, &back))
}

impl End {
    /// Starts a receive that appends to `buf`.
    pub fn recv(&self, buf: Vec<u8>) -> MemoryRecv {
        assert!(buf.len() < buf.capacity(), "a receive of no bytes looks like the end of the stream");
        MemoryRecv { side: Rc::clone(&self.0), buf: Some(buf) }
    }

    /// Starts a send. A `whole` send continues until everything is sent; any other until something is.
    pub fn send(&self, buf: Vec<u8>, start: usize, whole: bool) -> MemorySend {
        let mut pipe = self.0.outgoing.borrow_mut();
        let idle = pipe.sending.as_ref().is_none_or(|sending| sending.done);
        assert!(idle, "two sends at once could be reordered");
        let rest = VecDeque::from(buf[start..].to_vec());
        // The first send to a closed peer may succeed; the reset follows.
        let vanishes = pipe.abandoned && !pipe.ended && !pipe.reset && pipe.random.bool();
        let taken = if vanishes { rest.len() } else { 0 };
        pipe.sending = Some(Sending { rest, taken, whole, done: vanishes, at: Instant::now() });
        if vanishes {
            pipe.reset = true;
            let mut incoming = self.0.incoming.borrow_mut();
            incoming.reset = true;
            incoming.wake();
        }
        pipe.advance();
        MemorySend { side: Rc::clone(&self.0), buf: Some(buf) }
    }

    /// Ends the sending direction, like shutdown(2).
    pub fn shutdown_write(&self) {
        let mut pipe = self.0.outgoing.borrow_mut();
        let idle = pipe.sending.as_ref().is_none_or(|sending| sending.done);
        assert!(idle, "the send in progress would be cut off");
        pipe.ended = true;
        pipe.wake();
    }

    /// Turns the following close into a reset.
    pub fn reset(&self) {
        self.0.reset_on_close.set(true);
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.0.incoming.borrow().reset
    }

    pub(crate) fn is_hung_up(&self) -> bool {
        let pipe = self.0.incoming.borrow();
        pipe.ended || pipe.reset
    }
}

/// A receive in progress.
pub struct MemoryRecv {
    side: Rc<Side>,
    buf: Option<Vec<u8>>,
}

impl Future for MemoryRecv {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let side = Rc::clone(&self.side);
        let mut pipe = side.incoming.borrow_mut();
        let mut buf = self.buf.take().expect("polled after completion");
        let ready = !pipe.bytes.is_empty() || pipe.ended || pipe.reset;
        if !ready || pipe.stalls(cx) {
            pipe.reader = Some(cx.waker().clone());
            self.buf = Some(buf);
            return Poll::Pending;
        }
        match (pipe.bytes.len(), pipe.ended) {
            (0, true) => Poll::Ready((Ok(0), buf)),
            (0, false) => Poll::Ready((Err(io::ErrorKind::ConnectionReset.into()), buf)),
            (available, _) => {
                let count = pipe.piece(available.min(buf.capacity() - buf.len()));
                buf.extend(pipe.bytes.drain(..count));
                pipe.advance();
                pipe.wake();
                Poll::Ready((Ok(count), buf))
            }
        }
    }
}

/// A send in progress, which continues without being polled.
pub struct MemorySend {
    side: Rc<Side>,
    buf: Option<Vec<u8>>,
}

impl MemorySend {
    /// Cancels it. A receive ends with its future.
    pub(crate) fn cancel(&self) {
        self.side.outgoing.borrow_mut().sending = None;
    }
}

impl Future for MemorySend {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let side = Rc::clone(&self.side);
        let mut pipe = side.outgoing.borrow_mut();
        let buf = self.buf.take().expect("polled after completion");
        let done = pipe.sending.as_ref().is_none_or(|sending| sending.done);
        // A completion may be late, but not later than any other event.
        let recent = pipe.sending.as_ref().is_some_and(|sending| sending.at == Instant::now());
        if !done || recent && pipe.stalls(cx) {
            pipe.writer = Some(cx.waker().clone());
            self.buf = Some(buf);
            return Poll::Pending;
        }
        let taken = pipe.sending.take().map_or(0, |sending| sending.taken);
        let outcome = if taken > 0 { Ok(taken) } else { Err(io::ErrorKind::BrokenPipe.into()) };
        Poll::Ready((outcome, buf))
    }
}
