//! The timer of a connection, which activity extends cheaply.
//!
//! Setting a tokio timer costs a lock and a wheel operation. Most deadlines only move away, so the timer stays where it
//! is and is checked when it fires. It is reset only for an earlier time.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A point in time that each activity postpones.
pub struct Deadline {
    at: Cell<Instant>,
    patience: Cell<Duration>,
    timer: RefCell<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// A deadline `patience` from now.
    pub fn new(patience: Duration) -> Self {
        let at = Instant::now() + patience;
        Self {
            at: Cell::new(at),
            patience: Cell::new(patience),
            timer: RefCell::new(Box::pin(sleep_until(at))),
        }
    }

    /// Changes how long inactivity may last, counted from now.
    pub fn set(&self, patience_ms: u64) {
        self.patience.set(Duration::from_millis(patience_ms));
        self.touch();
    }

    /// Like [`Deadline::set`], but counted from an activity that is noticed only now.
    pub fn set_from(&self, patience_ms: u64, last: std::time::Instant) {
        self.patience.set(Duration::from_millis(patience_ms));
        self.at.set(Instant::from_std(last) + self.patience.get());
    }

    /// Records activity.
    pub fn touch(&self) {
        self.at.set(Instant::now() + self.patience.get());
    }

    /// How long inactivity may last.
    pub fn patience(&self) -> Duration {
        self.patience.get()
    }

    /// Time of the last activity.
    pub fn last_activity(&self) -> Instant {
        self.at.get() - self.patience.get()
    }

    /// Ready once there was no activity for as long as allowed.
    pub fn poll_elapsed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut timer = self.timer.borrow_mut();
        loop {
            let at = self.at.get();
            if at < timer.deadline() {
                timer.as_mut().reset(at);
            }
            std::task::ready!(timer.as_mut().poll(cx));
            if Instant::now() >= self.at.get() {
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
    }

    /// Runs `future` until it completes, or until the deadline has passed (`None`).
    pub async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_elapsed(cx).map(|()| None),
        })
        .await
    }
}
