//! The ring of a thread: what is under way on it, and when it is entered.
//!
//! tokio-uring, the other driver, goes through tokio's epoll for each batch of completions: to be woken, to
//! learn that the ring's descriptor is ready, and once more to find that nothing is left. Here completions that are there
//! are handed out without asking.
//!
//! A task, the pump, submits what the others have pushed and hands out what has completed, again and again, until there
//! is nothing of either; then the thread sleeps in tokio's epoll, where the ring's descriptor is. Whatever wakes it,
//! completions are handed out at once: the kernel interrupts the sleep to complete an operation (task work), so most of
//! them are there before epoll knows of them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep_until};

use super::Finished;
use super::table::{Abandoned, End, Id, Table};

/// The number of what nobody waits for: cancellations. No operation has it, for a table has no such place.
const NOBODY: u64 = u64::MAX;

/// How long the ring rests when the kernel had no memory for a request.
const REST: Duration = Duration::from_millis(1);

thread_local! {
    /// Leaked, as the operations on it would be.
    static DRIVER: Cell<Option<&'static Driver>> = const { Cell::new(None) };
}

/// The ring of a thread.
pub(super) struct Driver {
    ring: RefCell<IoUring>,
    table: RefCell<Table>,
    /// What the submission queue had no room for, in order.
    backlog: RefCell<VecDeque<squeue::Entry>>,
    /// Of the pump while it sleeps.
    pump: Cell<Option<Waker>>,
    /// Why the ring cannot be used any more.
    failed: Cell<Option<io::Error>>,
    has_lost: Cell<bool>,
}

/// What came of entering the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    /// The kernel has taken what there was.
    Well,
    /// It has not: completions have to be taken first, or memory is short.
    Stalled,
}

impl Driver {
    /// Makes `ring` that of this thread.
    pub(super) fn install(ring: IoUring) -> &'static Self {
        let driver: &'static Self = Box::leak(Box::new(Self {
            ring: RefCell::new(ring),
            table: RefCell::new(Table::new()),
            backlog: RefCell::default(),
            pump: Cell::new(None),
            failed: Cell::new(None),
            has_lost: Cell::new(false),
        }));
        DRIVER.set(Some(driver));
        driver
    }

    pub(super) fn current() -> &'static Self {
        #[expect(clippy::expect_used, reason = "a mistake of ours that the first operation shows")]
        DRIVER.get().expect("an operation outside of ring::run")
    }

    /// Puts an entry into the submission queue, behind all before it.
    ///
    /// # Safety
    /// As [`super::submit`].
    unsafe fn push(&self, entry: squeue::Entry) {
        // Beside what waits it would pass it.
        let waits = !self.backlog.borrow().is_empty();
        // SAFETY: the caller vouches for the entry.
        if waits || !unsafe { self.try_push(&entry) } {
            self.backlog.borrow_mut().push_back(entry);
            // The caller goes on in any case: the pump sees to what is left.
            self.flush();
        }
        if let Some(pump) = self.pump.take() {
            pump.wake();
        }
    }

    /// Whether there was room.
    ///
    /// # Safety
    /// As [`super::submit`].
    unsafe fn try_push(&self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller vouches for the entry.
        unsafe { self.ring.borrow_mut().submission().push(entry) }.is_ok()
    }

    /// Submits what there is, the backlog too, until the kernel takes no more.
    fn flush(&self) -> Entered {
        loop {
            let entered = self.enter();
            let mut backlog = self.backlog.borrow_mut();
            let before = backlog.len();
            while let Some(entry) = backlog.front() {
                // SAFETY: whoever pushed the entry vouched for it until its completion, which is still to come.
                if !unsafe { self.try_push(entry) } {
                    break;
                }
                backlog.pop_front();
            }
            if entered == Entered::Stalled || before == backlog.len() {
                return entered;
            }
        }
    }

    /// Cancels an operation by its number (5.5): the kernel finds it at once, however many there are. It may have ended
    /// meanwhile.
    fn cancel(&self, id: Id) {
        if self.table.borrow_mut().is_under_way(id) {
            let entry = opcode::AsyncCancel::new(id.user_data()).build().user_data(NOBODY);
            // SAFETY: it names no memory and no descriptor.
            unsafe { self.push(entry) };
        }
    }

    /// Whether there is something to submit, or to be had from the kernel.
    fn has_more(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        let queue = ring.submission();
        !queue.is_empty() || queue.cq_overflow() || !self.backlog.borrow().is_empty()
    }

    /// Submits what is in the queue; a part if there is no room for completions or no memory for requests.
    fn enter(&self) -> Entered {
        loop {
            let entered = self.ring.borrow().submit();
            match entered.map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) => return Entered::Well,
                Err((Some(libc::EINTR), _)) => {}
                Err((Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM), _)) => return Entered::Stalled,
                // No memory for completions that the queue had no room for (5.19).
                Err((Some(libc::EBADR), _)) => {
                    self.has_lost.set(true);
                    return Entered::Stalled;
                }
                Err((_, error)) => {
                    self.failed.set(Some(error));
                    return Entered::Stalled;
                }
            }
        }
    }

    /// Ends all that is under way: the kernel has lost completions, and does not say which. The worker goes on, with new
    /// connections.
    pub(super) fn recover(&self) {
        tracing::error!(
            "the kernel has lost completions for want of memory; this worker's connections are ended"
        );
        let every = types::CancelBuilder::any().all();
        let entry = opcode::AsyncCancel2::new(every).build().user_data(NOBODY);
        // SAFETY: it names no memory and no descriptor.
        unsafe { self.push(entry) };
        self.flush();
        self.dispatch();
        let wakers = self.table.borrow_mut().lose_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Hands out what has completed; whether anything had.
    pub(super) fn dispatch(&self) -> bool {
        let mut any = false;
        // One at a time: whoever is woken or dropped may come back to the ring.
        while let Some((user_data, result)) = self.next_completion() {
            any = true;
            if user_data != NOBODY {
                let due = self.table.borrow_mut().complete(Id::from_user_data(user_data), result);
                due.perform();
            }
        }
        any
    }

    fn next_completion(&self) -> Option<(u64, i32)> {
        let mut ring = self.ring.borrow_mut();
        let entry = ring.completion().next()?;
        Some((entry.user_data(), entry.result()))
    }

    /// Submits and hands out for as long as the thread runs; ends only if it cannot.
    ///
    /// # Errors
    /// The ring cannot be entered, or not be waited for.
    pub(super) async fn pump(&'static self) -> io::Result<()> {
        let ring = self.ring.borrow().as_raw_fd();
        // SAFETY: the ring is open, and never closed: whoever borrows it for ever has it from a leaked driver.
        let ready = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE) }?;
        let mut rest = pin!(sleep_until(Instant::now()));
        std::future::poll_fn(|cx| {
            let entered = if self.has_more() { self.flush() } else { Entered::Well };
            if let Some(error) = self.failed.take() {
                return Poll::Ready(Err(error));
            }
            if self.has_lost.replace(false) {
                self.recover();
            }
            let any = self.dispatch();
            if !any && entered == Entered::Stalled {
                // Whoever frees memory does not tell; trying on would only take the time that it needs.
                rest.as_mut().reset(Instant::now() + REST);
                if rest.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            } else if !any && !self.has_more() {
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

    /// Operations that have not ended, or whose end nobody has seen.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.table.borrow().len()
    }
}

/// An operation under way. Dropped, it goes on, and its data is kept until it has ended.
pub(super) struct InFlight<D: Finished> {
    /// The ring that it is on: another one of this thread knows its number as another's.
    driver: &'static Driver,
    id: Id,
    data: Option<D>,
    /// The ring is this thread's.
    _here: PhantomData<*const ()>,
}

/// Starts an operation.
///
/// # Safety
/// As [`super::submit`].
pub(super) unsafe fn submit<D: Finished>(data: D, entry: squeue::Entry) -> InFlight<D> {
    let driver = Driver::current();
    let id = driver.table.borrow_mut().begin();
    // SAFETY: `data` has what the entry names, as the caller says. `InFlight` keeps it until the completion has come, and
    // gives it to the table, which does, if it is dropped before.
    unsafe { driver.push(entry.user_data(id.user_data())) };
    InFlight { driver, id, data: Some(data), _here: PhantomData }
}

impl<D: Finished> InFlight<D> {
    /// Has the kernel end it soon. It may come to its own end all the same; that is waited for as ever.
    pub(super) fn cancel(&self) {
        if self.data.is_some() {
            self.driver.cancel(self.id);
        }
    }
}

impl<D: Finished> Future for InFlight<D> {
    type Output = D::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // Its number may be another's by then.
        assert!(self.data.is_some(), "polled after its end");
        let end = std::task::ready!(self.driver.table.borrow_mut().poll(self.id, cx));
        match (end, self.data.take()) {
            (End::Completed(result), Some(data)) => Poll::Ready(data.finish(result)),
            (End::Lost, data) => {
                // The kernel may not be done with it.
                std::mem::forget(data);
                Poll::Ready(D::lost())
            }
            (End::Completed(_), None) => Poll::Pending,
        }
    }
}

impl<D: Finished> Drop for InFlight<D> {
    fn drop(&mut self) {
        if let Some(data) = self.data.take() {
            let due = self.driver.table.borrow_mut().abandon(self.id, Box::new(data));
            due.perform();
        }
    }
}

impl<D: Finished> Abandoned for D {
    fn end(self: Box<Self>, result: i32) {
        // What it has brought, such as a new descriptor, goes with it.
        drop((*self).finish(result));
    }
}
