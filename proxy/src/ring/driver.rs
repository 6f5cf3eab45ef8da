//! The ring of a thread: what is under way on it, and when it is entered.
//!
//! tokio-uring, which this takes the place of, goes through tokio's epoll for each batch of completions: to be woken, to
//! learn that the ring's descriptor is ready, and once more to find that nothing is left. Here completions that are there
//! are handed out without asking.
//!
//! A task, the pump, submits what the others have pushed and hands out what has completed, again and again, until there
//! is nothing of either; then the thread sleeps in tokio's epoll, where the ring's descriptor is. Whatever wakes it,
//! completions are handed out at once: the kernel interrupts the sleep to complete an operation (task work), so most of
//! them are there before epoll knows of them.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use io_uring::{IoUring, cqueue, squeue};
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Finished;

/// Operations that there is room for without growing.
const OPERATIONS: usize = 256;

thread_local! {
    /// Leaked, as the operations on it would be.
    static DRIVER: Cell<Option<&'static Driver>> = const { Cell::new(None) };
}

/// The ring of a thread.
pub(super) struct Driver {
    inner: RefCell<Inner>,
    /// Of the pump while it sleeps.
    pump: Cell<Option<Waker>>,
}

struct Inner {
    ring: IoUring,
    operations: Slab<State>,
}

/// How far an operation has got.
enum State {
    Submitted,
    Waiting(Waker),
    Completed(cqueue::Entry),
    /// Nobody waits for it any more; its data is kept until it has ended.
    Abandoned(#[expect(dead_code, reason = "held until the operation has ended")] Box<dyn Any>),
}

impl Driver {
    /// Makes `ring` that of this thread.
    pub(super) fn install(ring: IoUring) -> &'static Self {
        let inner = RefCell::new(Inner { ring, operations: Slab::with_capacity(OPERATIONS) });
        let driver: &'static Self = Box::leak(Box::new(Self { inner, pump: Cell::new(None) }));
        DRIVER.set(Some(driver));
        driver
    }

    pub(super) fn current() -> &'static Self {
        #[expect(clippy::expect_used, reason = "a mistake of ours that the first operation shows")]
        DRIVER.get().expect("an operation outside of ring::run")
    }

    /// Puts an operation into the submission queue; its number.
    fn push(&self, entry: squeue::Entry) -> usize {
        let number = self.inner.borrow_mut().operations.insert(State::Submitted);
        let entry = entry.user_data(number as u64);
        // SAFETY: the descriptor and the buffers that the entry names belong to the operation's data, which is kept
        // until its completion has come: by `InFlight`, or here if that is dropped first.
        while unsafe { self.inner.borrow_mut().ring.submission().push(&entry) }.is_err() {
            self.enter();
            self.dispatch();
        }
        if let Some(pump) = self.pump.take() {
            pump.wake();
        }
        number
    }

    /// Whether there is something to submit, or to be had from the kernel.
    fn has_more(&self) -> bool {
        let mut inner = self.inner.borrow_mut();
        let queue = inner.ring.submission();
        !queue.is_empty() || queue.cq_overflow()
    }

    /// Submits what was pushed; a part if there is no room for completions or no memory for requests.
    fn enter(&self) {
        loop {
            let entered = self.inner.borrow().ring.submit();
            match entered.map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(libc::EBUSY | libc::EAGAIN)) => return,
                Err(Some(libc::EINTR)) => {}
                // Nothing that a peer can bring about; without its ring the worker is of no use.
                Err(error) => panic!("io_uring_enter failed: {error:?}"),
            }
        }
    }

    /// Hands out what has completed; whether anything had.
    pub(super) fn dispatch(&self) -> bool {
        let mut any = false;
        // One at a time: whoever is woken or dropped may come back to the ring.
        while let Some((before, waker)) = self.next_completion() {
            any = true;
            drop(before);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        any
    }

    fn next_completion(&self) -> Option<(Option<State>, Option<Waker>)> {
        let inner = &mut *self.inner.borrow_mut();
        let entry = inner.ring.completion().next()?;
        let number = usize::try_from(entry.user_data()).unwrap_or(usize::MAX);
        let state = &mut inner.operations[number];
        Some(match std::mem::replace(state, State::Completed(entry)) {
            State::Waiting(waker) => (None, Some(waker)),
            abandoned @ State::Abandoned(_) => {
                inner.operations.remove(number);
                (Some(abandoned), None)
            }
            State::Submitted | State::Completed(_) => (None, None),
        })
    }

    fn poll(&self, number: usize, cx: &Context<'_>) -> Poll<cqueue::Entry> {
        let mut inner = self.inner.borrow_mut();
        let state = &mut inner.operations[number];
        match state {
            State::Waiting(waker) if waker.will_wake(cx.waker()) => {}
            State::Submitted | State::Waiting(_) => *state = State::Waiting(cx.waker().clone()),
            State::Abandoned(_) => unreachable!("nobody has its number any more"),
            State::Completed(entry) => {
                let entry = entry.clone();
                inner.operations.remove(number);
                return Poll::Ready(entry);
            }
        }
        Poll::Pending
    }

    fn abandon(&self, number: usize, data: impl Any) {
        let mut inner = self.inner.borrow_mut();
        let before = match inner.operations[number] {
            State::Completed(_) => inner.operations.remove(number),
            _ => std::mem::replace(&mut inner.operations[number], State::Abandoned(Box::new(data))),
        };
        drop(inner);
        drop(before);
    }

    /// Submits and hands out for as long as the thread runs; ends only if it cannot.
    ///
    /// # Errors
    /// The ring cannot be waited for.
    pub(super) async fn pump(&'static self) -> io::Result<()> {
        let ring = self.inner.borrow().ring.as_raw_fd();
        // SAFETY: the ring is open, and never closed: whoever borrows it for ever has it from a leaked driver.
        let ready = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?;
        std::future::poll_fn(|cx| {
            if self.has_more() {
                self.enter();
            }
            if !self.dispatch() && !self.has_more() {
                while let Poll::Ready(guard) = ready.poll_read_ready(cx) {
                    match guard {
                        Ok(mut guard) => guard.clear_ready(),
                        Err(error) => return Poll::Ready(Err(error)),
                    }
                }
                // What has come before the descriptor was watched.
                if !self.dispatch() {
                    self.pump.set(Some(cx.waker().clone()));
                    return Poll::Pending;
                }
            }
            // Behind those who were woken, for they will push more.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

/// An operation under way. Dropped, it goes on, and its data is kept until it has ended.
pub(super) struct InFlight<D: Finished> {
    number: usize,
    data: Option<D>,
    /// It is this thread's ring that knows the number.
    _here: PhantomData<*const ()>,
}

/// Starts an operation whose descriptor and buffers belong to `data`.
pub(super) fn submit<D: Finished>(data: D, entry: squeue::Entry) -> InFlight<D> {
    InFlight { number: Driver::current().push(entry), data: Some(data), _here: PhantomData }
}

impl<D: Finished> Future for InFlight<D> {
    type Output = D::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Its number may be another's by then.
        assert!(self.data.is_some(), "polled after its end");
        let entry = std::task::ready!(Driver::current().poll(self.number, cx));
        self.data.take().map_or(Poll::Pending, |data| Poll::Ready(data.finish(entry)))
    }
}

impl<D: Finished> Drop for InFlight<D> {
    fn drop(&mut self) {
        if let Some(data) = self.data.take() {
            Driver::current().abandon(self.number, data);
        }
    }
}
