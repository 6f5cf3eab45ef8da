//! The one timer of a connection: moved on by activity, cheaply.
//!
//! A tokio timer costs a lock and a wheel operation when it is set. Most deadlines only move away, so the
//! timer is left where it is and looked at again when it fires; it is set anew only for an earlier time.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A point in time that moves on with each sign of life.
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

    /// Changes how long silence may last, counted from now.
    pub fn set(&self, patience_ms: u64) {
        self.patience.set(Duration::from_millis(patience_ms));
        self.touch();
    }

    /// The same, counted from a sign of life that is seen only now.
    pub fn set_from(&self, patience_ms: u64, last: std::time::Instant) {
        self.patience.set(Duration::from_millis(patience_ms));
        self.at.set(Instant::from_std(last) + self.patience.get());
    }

    /// Notes a sign of life.
    pub fn touch(&self) {
        self.at.set(Instant::now() + self.patience.get());
    }

    /// How long silence may last.
    pub fn patience(&self) -> Duration {
        self.patience.get()
    }

    /// When the last sign of life was.
    pub fn last_activity(&self) -> Instant {
        self.at.get() - self.patience.get()
    }

    /// Ready once there was no sign of life for as long as allowed.
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

    /// Runs `future` until it is done or the deadline has passed (`None`).
    pub async fn run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll_elapsed(cx).map(|()| None),
        })
        .await
    }
}
