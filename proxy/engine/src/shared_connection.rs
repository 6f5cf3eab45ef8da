//! State that a connection and its streams share, whatever the protocol.

use std::cell::{Cell, RefCell};
use std::task::{Context, Waker};

/// Shared by the task that drives a connection, its streams, and the drain.
#[derive(Default)]
pub(crate) struct Control {
    /// Streams that have not been dropped.
    live: Cell<usize>,
    /// Whether the connection accepts no more streams.
    ending: Cell<bool>,
    driver: RefCell<Option<Waker>>,
}

impl Control {
    /// Makes the connection accept no more streams, and end with its last one.
    pub(crate) fn end(&self) {
        if !self.ending.replace(true) {
            self.wake();
        }
    }

    /// Whether it accepts no more streams.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get()
    }

    /// Streams that are being served.
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    pub(crate) fn enter(&self) {
        self.live.set(self.live.get() + 1);
    }

    pub(crate) fn leave(&self) {
        self.live.set(self.live.get() - 1);
        if self.live.get() == 0 {
            self.wake();
        }
    }

    /// Registers the driver to be woken by changes here.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        let mut driver = self.driver.borrow_mut();
        if !driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *driver = Some(cx.waker().clone());
        }
    }

    /// Makes the driver run.
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.driver.borrow_mut().take() {
            waker.wake();
        }
    }
}
