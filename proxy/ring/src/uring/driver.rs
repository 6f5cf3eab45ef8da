//! The ring of a thread: its operations in progress, and when the ring is entered.
//!
//! tokio-uring, the other driver, goes through tokio's epoll for each batch of completions: to be woken, to learn that
//! the ring's descriptor is ready, and once more to find that nothing is left. This driver delivers completions that
//! are already in the queue without a system call.
//!
//! A task, the pump, submits what other tasks have pushed and delivers completions, repeatedly, until there is nothing
//! of either. Then the thread sleeps in tokio's epoll, which watches the ring's descriptor. Whatever wakes the thread,
//! completions are delivered at once: the kernel interrupts the sleep to complete an operation (task work), so most
//! completions are in the queue before epoll reports them.

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

use super::lender::Lender;
use super::table::{Abandoned, Completion, End, Id, Table};
use super::{Engine, Finished};

/// `user_data` of entries whose completion is ignored. No operation has it, because no table has this place.
const NOBODY: u64 = u64::MAX;

/// Marks the `user_data` of a cancellation, next to the number of its operation: the highest bit of the place, which no
/// table has.
const CANCELLATION: u64 = 1 << 31;

/// How long the ring pauses after the kernel had no memory for a request.
const REST: Duration = Duration::from_millis(1);

thread_local! {
    /// Leaked, like the operations on it.
    static DRIVER: Cell<Option<&'static Driver>> = const { Cell::new(None) };
}

/// The ring of a thread.
pub(super) struct Driver {
    ring: RefCell<IoUring>,
    table: RefCell<Table>,
    /// Entries that did not fit into the submission queue, in order.
    backlog: RefCell<VecDeque<squeue::Entry>>,
    /// Entries pushed so far.
    pushed: Cell<u64>,
    /// Whether the kernel shows in the ring that it has completions to add.
    shows_work: bool,
    /// Wakes the pump while it sleeps.
    pump: Cell<Option<Waker>>,
    /// Why the ring can no longer be used.
    failed: Cell<Option<io::Error>>,
    has_lost: Cell<bool>,
    /// `None` if the kernel takes no buffers.
    lender: Option<Lender>,
}

/// The result of entering the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    /// The kernel took everything.
    Well,
    /// It did not: completions must be taken first, or memory is short.
    Stalled,
}

impl Driver {
    /// Makes `ring` the ring of this thread. `shows_work`: it was set up with TASKRUN_FLAG.
    pub(super) fn install(ring: IoUring, shows_work: bool) -> &'static Self {
        let driver: &'static Self = Box::leak(Box::new(Self {
            lender: Lender::new(&ring),
            ring: RefCell::new(ring),
            table: RefCell::new(Table::new()),
            backlog: RefCell::default(),
            pushed: Cell::new(0),
            shows_work,
            pump: Cell::new(None),
            failed: Cell::new(None),
            has_lost: Cell::new(false),
        }));
        DRIVER.set(Some(driver));
        driver
    }

    pub(super) fn current() -> &'static Self {
        #[expect(clippy::expect_used, reason = "a bug in sluice that the first operation would show")]
        DRIVER.get().expect("operation outside of ring::run")
    }

    /// The buffers of this thread's ring, if it is one of ours and has some.
    pub(super) fn lender_here() -> Option<&'static Lender> {
        DRIVER.get()?.lender.as_ref().filter(|_| Engine::current() == Engine::IoUring)
    }

    /// Adds an entry to the submission queue, after all earlier ones.
    ///
    /// # Safety
    /// The contract of [`super::submit`].
    unsafe fn push(&self, entry: squeue::Entry) {
        self.pushed.set(self.pushed.get() + 1);
        // An entry must not overtake the backlog.
        let waits = !self.backlog.borrow().is_empty();
        // SAFETY: the caller guarantees that the entry is valid until its completion.
        if waits || !unsafe { self.try_push(&entry) } {
            self.backlog.borrow_mut().push_back(entry);
            // The caller continues in any case; the pump submits the rest.
            self.flush();
        }
        if let Some(pump) = self.pump.take() {
            pump.wake();
        }
    }

    /// Adds an entry if there is room; returns whether there was.
    ///
    /// # Safety
    /// The contract of [`super::submit`].
    unsafe fn try_push(&self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller guarantees that the entry is valid until its completion.
        unsafe { self.ring.borrow_mut().submission().push(entry) }.is_ok()
    }

    /// Submits everything, including the backlog, until the kernel takes no more.
    fn flush(&self) -> Entered {
        loop {
            let entered = self.enter();
            let mut backlog = self.backlog.borrow_mut();
            let before = backlog.len();
            while let Some(entry) = backlog.front() {
                // SAFETY: the caller of `push` guaranteed that the entry is valid until its completion, which is still
                // to come.
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
    /// in the meantime.
    fn cancel(&self, id: Id) {
        if self.table.borrow_mut().is_under_way(id) {
            let own = id.user_data() | CANCELLATION;
            let entry = opcode::AsyncCancel::new(id.user_data()).build().user_data(own);
            // SAFETY: the entry names no memory and no descriptor.
            unsafe { self.push(entry) };
        }
    }

    /// Whether there is something to submit, or to take from the kernel.
    fn has_more(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        let queue = ring.submission();
        !queue.is_empty() || queue.cq_overflow() || !self.backlog.borrow().is_empty()
    }

    /// Submits the entries in the queue, or only some if there is no room for completions or no memory for requests.
    fn enter(&self) -> Entered {
        loop {
            let entered = self.ring.borrow().submit();
            match entered.map_err(|error| (error.raw_os_error(), error)) {
                Ok(_) => return Entered::Well,
                Err((Some(libc::EINTR), _)) => {}
                Err((Some(libc::EBUSY | libc::EAGAIN | libc::ENOMEM), _)) => return Entered::Stalled,
                // No memory for completions that did not fit into the queue (5.19).
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

    /// Ends all operations in progress: the kernel lost completions and does not report which. The worker continues
    /// with new connections.
    pub(super) fn recover(&self) {
        tracing::error!(
            "the kernel lost completions because memory is short; closing this worker's connections"
        );
        let every = types::CancelBuilder::any().all();
        let entry = opcode::AsyncCancel2::new(every).build().user_data(NOBODY);
        // SAFETY: the entry names no memory and no descriptor.
        unsafe { self.push(entry) };
        self.flush();
        self.dispatch();
        let wakers = self.table.borrow_mut().lose_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Delivers the completions of everything that has happened by now to a submitted operation. Returns false if the
    /// kernel does not show whether there is more.
    ///
    /// An operation that waits for a socket becomes ready in the same moment as the socket, and the kernel then sets a
    /// flag in the ring, until it has completed the operation: the next time that this thread enters the kernel.
    fn catch_up(&self) -> bool {
        if !self.shows_work {
            return false;
        }
        let has_work = {
            let mut ring = self.ring.borrow_mut();
            let queue = ring.submission();
            queue.taskrun() || queue.cq_overflow()
        };
        if has_work {
            self.flush();
        }
        self.dispatch();
        !self.ring.borrow_mut().submission().cq_overflow()
    }

    /// Whether the kernel has taken the entry that was pushed as the given one, counted from 1.
    fn has_submitted(&self, number: u64) -> bool {
        let waiting = self.ring.borrow_mut().submission().len() + self.backlog.borrow().len();
        number + waiting as u64 <= self.pushed.get()
    }

    /// Delivers completions; returns whether there were any.
    pub(super) fn dispatch(&self) -> bool {
        let mut any = false;
        // One at a time: the code that is woken or dropped may use the ring again.
        while let Some((user_data, completion)) = self.next_completion() {
            any = true;
            let id = Id::from_user_data(user_data & !CANCELLATION);
            match (user_data, user_data & CANCELLATION) {
                (NOBODY, _) => {}
                (_, 0) => {
                    let due = self.table.borrow_mut().complete(id, completion);
                    due.perform();
                }
                _ => self.cancelled(id, completion.result),
            }
        }
        any
    }

    /// The kernel finds no operation that it is about to try again, because its descriptor became ready just when the
    /// kernel began to wait for that. The cancellation is then lost, so it is repeated until the operation has ended.
    fn cancelled(&self, id: Id, result: i32) {
        if result == -libc::ENOENT {
            self.cancel(id);
        }
    }

    fn next_completion(&self) -> Option<(u64, Completion)> {
        let mut ring = self.ring.borrow_mut();
        let entry = ring.completion().next()?;
        Some((entry.user_data(), Completion { result: entry.result(), flags: entry.flags() }))
    }

    /// Submits and delivers for as long as the thread runs. Ends only with an error.
    ///
    /// # Errors
    /// The ring cannot be entered, or waiting on it failed.
    pub(super) async fn pump(&'static self) -> io::Result<()> {
        let ring = self.ring.borrow().as_raw_fd();
        // SAFETY: the driver owns the ring and is leaked (`&'static self`), so the ring's descriptor stays open for as
        // long as it is registered.
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
                // Nothing reports that memory was freed, and retrying at once would only take CPU time from whatever
                // frees it.
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
                // Completions that arrived before the descriptor was watched.
                if !self.dispatch() {
                    self.pump.set(Some(cx.waker().clone()));
                    return Poll::Pending;
                }
            }
            // Run again after the tasks just woken, because they will push more entries.
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// Operations that have not ended, or whose end has not been observed.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        self.table.borrow().len()
    }
}

/// An operation in progress. If dropped, it continues, and its data is kept until it has ended.
pub(super) struct InFlight<D: Finished> {
    /// The operation's ring. On another ring of this thread, the number may belong to another operation.
    driver: &'static Driver,
    id: Id,
    /// Which of the pushed entries it is, counted from 1.
    number: u64,
    data: Option<D>,
    /// Not `Send`: the ring belongs to this thread.
    _here: PhantomData<*const ()>,
}

/// Starts an operation.
///
/// # Safety
/// The contract of [`super::submit`].
pub(super) unsafe fn submit<D: Finished>(data: D, entry: squeue::Entry) -> InFlight<D> {
    let driver = Driver::current();
    let id = driver.table.borrow_mut().begin();
    // SAFETY: the caller guarantees that `data` owns everything that the entry names. `InFlight` keeps `data` until the
    // completion has arrived; if it is dropped earlier, it gives `data` to the table, which keeps it until then.
    unsafe { driver.push(entry.user_data(id.user_data())) };
    InFlight { driver, id, number: driver.pushed.get(), data: Some(data), _here: PhantomData }
}

impl<D: Finished> InFlight<D> {
    /// Asks the kernel to end it soon. It may still complete normally; either way its end is awaited.
    pub(super) fn cancel(&self) {
        if self.data.is_some() {
            self.driver.cancel(self.id);
        }
    }

    /// Whether the kernel has it.
    pub(super) fn is_submitted(&self) -> bool {
        self.driver.has_submitted(self.number)
    }

    /// Makes what has happened by now visible to the next poll. Returns false if it may not be.
    pub(super) fn catch_up(&self) -> bool {
        self.is_submitted() && self.driver.catch_up()
    }
}

impl<D: Finished> Future for InFlight<D> {
    type Output = D::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // After its end, the number may belong to another operation.
        assert!(self.data.is_some(), "polled after completion");
        let end = std::task::ready!(self.driver.table.borrow_mut().poll(self.id, cx));
        match (end, self.data.take()) {
            (End::Completed(completion), Some(data)) => Poll::Ready(data.finish(completion)),
            (End::Lost, data) => {
                // The kernel may still access the data, so it is leaked.
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
    fn end(self: Box<Self>, completion: Completion) {
        // Also drops what the operation returned, such as a new descriptor.
        drop((*self).finish(completion));
    }
}
