//! Whether an operation was cancelled, and the task that waits for it.

use std::cell::{Cell, RefCell};
use std::io;
use std::task::{Context, Waker};

/// The part of an operation that can be reached while it waits.
#[derive(Default)]
pub(super) struct Call {
    is_cancelled: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Call {
    /// Cancels the operation and wakes the task that waits for it.
    pub(super) fn cancel(&self) {
        self.is_cancelled.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.is_cancelled.get()
    }

    /// Stores the task that a cancellation wakes.
    pub(super) fn wait(&self, cx: &Context<'_>) {
        let mut waker = self.waker.borrow_mut();
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }
}

/// The result of a cancelled operation.
pub(super) fn cancelled() -> io::Error {
    io::Error::from_raw_os_error(libc::ECANCELED)
}

/// The result of a call; `None` if it would block. Interrupted calls are repeated.
pub(super) fn attempt<T>(mut call: impl FnMut() -> io::Result<T>) -> Option<io::Result<T>> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            outcome => return Some(outcome),
        }
    }
}
