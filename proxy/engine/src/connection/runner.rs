//! Runs exchanges in futures that are reused.
//!
//! The future of an exchange takes a few kilobytes, and an idle connection must not keep them. A new future would be
//! built on the stack and copied to the heap as a whole, twice, although nearly all of it is still unused. So a worker
//! keeps futures that have finished an exchange, and the next exchange starts in the one that was used last, whose
//! memory is still in the processor's cache. With more exchanges than the cache has room for, each is prefetched before
//! it continues.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use sluice_ring::prefetch;

use super::{Connection, Next};

/// Exchanges of a worker whose memory fits into the processor's second-level cache, with what else is used. With more
/// in progress, one that continues has left that cache since its last turn.
const CACHED_EXCHANGES: usize = 32;

/// The unused futures of a worker, of a few kilobytes each; the last one was used last.
#[derive(Default)]
pub(crate) struct Runners {
    unused: RefCell<Vec<Runner>>,
    /// How many of them no exchange has needed since they were last reaped.
    surplus: Cell<usize>,
    /// Exchanges in progress.
    exchanges: Cell<usize>,
}

impl Runners {
    fn take(&self) -> Runner {
        let mut unused = self.unused.borrow_mut();
        let runner = unused.pop();
        self.surplus.set(self.surplus.get().min(unused.len()));
        runner.unwrap_or_else(Runner::new)
    }

    /// Drops those that were not needed since the last call: as many are kept as exchanges have run at once. Called on
    /// the worker's tick.
    pub(crate) fn reap(&self) {
        let mut unused = self.unused.borrow_mut();
        unused.drain(..self.surplus.get());
        self.surplus.set(unused.len());
    }

    #[cfg(test)]
    pub(crate) fn unused(&self) -> usize {
        self.unused.borrow().len()
    }
}

/// The place of an exchange among those in progress, until it is dropped.
struct ExchangePlace(Rc<Runners>);

impl ExchangePlace {
    fn take(runners: &Rc<Runners>) -> Self {
        runners.exchanges.set(runners.exchanges.get() + 1);
        Self(Rc::clone(runners))
    }

    /// Whether the exchange has left the caches since its last turn.
    fn is_far(&self) -> bool {
        self.0.exchanges.get() > CACHED_EXCHANGES
    }
}

impl Drop for ExchangePlace {
    fn drop(&mut self) {
        self.0.exchanges.set(self.0.exchanges.get() - 1);
    }
}

/// A future that runs one exchange after the other.
struct Runner {
    desk: Rc<Desk>,
    running: Pin<Box<dyn Future<Output = ()>>>,
}

/// What is passed to the future and back.
#[derive(Default)]
struct Desk {
    begun: Cell<Option<Box<Connection>>>,
    ended: Cell<Option<(Box<Connection>, Next)>>,
}

impl Runner {
    fn new() -> Self {
        let desk = Rc::<Desk>::default();
        Self { running: Box::pin(run(Rc::clone(&desk))), desk }
    }

    /// Continues the exchange of this connection. With `is_far`, its memory has left the caches.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        connection: *const Connection,
        is_far: bool,
    ) -> Poll<(Box<Connection>, Next)> {
        if is_far {
            prefetch(connection.cast(), size_of::<Connection>());
            let running: *const dyn Future<Output = ()> = &raw const *self.running;
            prefetch(running.cast(), size_of_val(&*self.running));
        }
        let _ = self.running.as_mut().poll(cx);
        self.desk.ended.take().map_or(Poll::Pending, Poll::Ready)
    }
}

async fn run(desk: Rc<Desk>) {
    loop {
        let mut connection = poll_fn(|_| desk.begun.take().map_or(Poll::Pending, Poll::Ready)).await;
        let next = connection.exchange().await;
        desk.ended.set(Some((connection, next)));
    }
}

impl Connection {
    /// Runs the exchange whose head was just received.
    pub(super) async fn run_exchange(self: Box<Self>) -> (Box<Self>, Next) {
        let place = ExchangePlace::take(&self.runners);
        let mut runner = place.0.take();
        // Only to prefetch it.
        let connection: *const Self = &raw const *self;
        runner.desk.begun.set(Some(self));
        // If this future is dropped before its end, so is the runner, with the exchange in it.
        let ended = poll_fn(|cx| runner.poll(cx, connection, place.is_far())).await;
        place.0.unused.borrow_mut().push(runner);
        ended
    }
}
