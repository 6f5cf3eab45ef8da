//! The queue in front of a cluster whose endpoints are all at their limit.
//!
//! It keeps the waiters and hands out places that became free. The cluster defines what a place is (`G`), and whether a
//! waiter can use it. The lock is taken only when requests wait.

mod closings;
mod gradient;
mod line;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

pub(crate) use gradient::{Gradient, Sample};
use line::{Line, Ticket};
use sluice_config as config;

/// The queue of one cluster, shared by all workers.
pub(crate) struct Queue<W, G> {
    state: Mutex<State<W, G>>,
    /// Waiters that have not been given anything yet.
    length: AtomicUsize,
    counts: Counts,
}

/// Counts since the start.
#[derive(Default)]
struct Counts {
    entered: AtomicU64,
    full: AtomicU64,
    timed_out: AtomicU64,
}

struct State<W, G> {
    line: Line<W>,
    /// Outcomes of waits that have not been polled yet.
    given: HashMap<Ticket, Result<G, Refusal>>,
    wakers: HashMap<Ticket, Waker>,
}

/// Why a request does not wait, or why its wait failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Full,
    /// No endpoint is left that could serve it.
    Hopeless,
}

/// What is offered to a waiter.
pub(crate) enum Offer<G> {
    /// A place.
    Place(G),
    /// Nothing now for this waiter; another one may be able to use the free place.
    NotForThis,
    /// Nothing now, for any waiter.
    Nothing,
    /// Nothing, now or later.
    Never,
}

/// A queue's counters, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Requests that wait now.
    pub length: usize,
    /// Requests that had to wait.
    pub entered: u64,
    /// Requests rejected because the queue was full.
    pub full: u64,
    /// Requests that timed out in the queue.
    pub timed_out: u64,
}

impl<W, G> Queue<W, G> {
    pub(crate) fn new(rules: config::Queue) -> Self {
        let (given, wakers) = (HashMap::new(), HashMap::new());
        let state = Mutex::new(State { line: Line::new(rules), given, wakers });
        Self { state, length: AtomicUsize::new(0), counts: Counts::default() }
    }

    /// Applies other rules: to new waiters, and to the order in which present waiters are served.
    pub(crate) fn set_rules(&self, rules: config::Queue) {
        self.lock().line.set_rules(rules);
    }

    /// Whether there are no waiters. Sequentially consistent, like the count of requests under way: a thread that frees
    /// a place and a thread that starts to wait each write one and then read the other, so at least one of them sees
    /// both.
    pub(crate) fn is_empty(&self) -> bool {
        self.length.load(Ordering::SeqCst) == 0
    }

    /// The queue's counters.
    pub(crate) fn counts(&self) -> QueueCounts {
        QueueCounts {
            length: self.length.load(Ordering::Relaxed),
            entered: self.counts.entered.load(Ordering::Relaxed),
            full: self.counts.full.load(Ordering::Relaxed),
            timed_out: self.counts.timed_out.load(Ordering::Relaxed),
        }
    }

    /// Counts a request that timed out in the queue.
    pub(crate) fn count_timeout(&self) {
        self.counts.timed_out.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a waiter of a client, in the form in which clients are counted. The caller then checks whether a place is
    /// free ([`Queue::serve`]).
    ///
    /// # Errors
    /// When the queue is full.
    pub(crate) fn enter(
        self: &Arc<Self>,
        wants: W,
        client: IpAddr,
        now_us: u64,
    ) -> Result<Waiting<W, G>, Refusal> {
        let mut state = self.lock();
        let sent_away = state.line.crowded_out(client);
        let waker = sent_away.and_then(|ticket| state.settle(ticket, Err(Refusal::Full), now_us));
        let ticket = state.line.enter(wants, client, thread::current().id(), now_us);
        self.length.store(state.line.len(), Ordering::SeqCst);
        drop(state);
        let turned_away = u64::from(sent_away.is_some()) + u64::from(ticket.is_none());
        self.counts.full.fetch_add(turned_away, Ordering::Relaxed);
        if let Some(waker) = waker {
            waker.wake();
        }
        let ticket = ticket.ok_or(Refusal::Full)?;
        self.counts.entered.fetch_add(1, Ordering::Relaxed);
        Ok(Waiting { queue: Arc::clone(self), ticket, settled: false })
    }

    /// Offers places to waiters, in order, until `offer` has nothing more for any of them. A waiter that can never be
    /// served is rejected.
    pub(crate) fn serve(&self, now_us: u64, mut offer: impl FnMut(&W) -> Offer<G>) {
        while !self.is_empty() {
            let mut state = self.lock();
            let settled = state.settle_one(now_us, &mut offer);
            self.length.store(state.line.len(), Ordering::SeqCst);
            drop(state);
            match settled {
                Some(Some(waker)) => waker.wake(),
                Some(None) => {}
                None => return,
            }
        }
    }

    /// Locks state in which every write is complete.
    fn lock(&self) -> MutexGuard<'_, State<W, G>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W, G> State<W, G> {
    /// Ends one wait and returns its waker, if it has one; `None` when no wait can be ended.
    fn settle_one(&mut self, now_us: u64, offer: &mut impl FnMut(&W) -> Offer<G>) -> Option<Option<Waker>> {
        let next = self.line.candidates(thread::current().id());
        // Nearly always one of the first can use the free place. If none can, because each of them has already tried
        // that endpoint, a later waiter must not be blocked by them.
        let (ticket, outcome) = match self.first_settled(&next, offer) {
            Look::Settled(ticket, outcome) => (ticket, outcome),
            Look::Nothing => return None,
            Look::NotForThese => match self.first_settled(&self.line.everyone(), offer) {
                Look::Settled(ticket, outcome) => (ticket, outcome),
                Look::Nothing | Look::NotForThese => return None,
            },
        };
        Some(self.settle(ticket, outcome, now_us))
    }

    /// The first of these waiters whose wait ends now, and its outcome.
    fn first_settled(&self, tickets: &[Ticket], offer: &mut impl FnMut(&W) -> Offer<G>) -> Look<G> {
        for ticket in tickets {
            let Some(waiter) = self.line.get(*ticket) else { continue };
            match offer(&waiter.wants) {
                Offer::Place(place) => return Look::Settled(*ticket, Ok(place)),
                Offer::Never => return Look::Settled(*ticket, Err(Refusal::Hopeless)),
                Offer::NotForThis => {}
                Offer::Nothing => return Look::Nothing,
            }
        }
        Look::NotForThese
    }

    /// Ends one wait; returns its waker, if it has one.
    fn settle(&mut self, ticket: Ticket, outcome: Result<G, Refusal>, now_us: u64) -> Option<Waker> {
        match outcome {
            Ok(_) => self.line.serve(ticket, now_us)?,
            Err(_) => self.line.leave(ticket)?,
        };
        self.given.insert(ticket, outcome);
        self.wakers.remove(&ticket)
    }
}

/// The result of examining some waiters.
enum Look<G> {
    /// The wait of this one ends with this outcome.
    Settled(Ticket, Result<G, Refusal>),
    /// None of them can use the free places.
    NotForThese,
    /// Nothing is free.
    Nothing,
}

/// A place in the queue; dropping it leaves the queue, or returns a place that was just given.
pub struct Waiting<W, G> {
    queue: Arc<Queue<W, G>>,
    ticket: Ticket,
    settled: bool,
}

impl<W, G> Future for Waiting<W, G> {
    type Output = Result<G, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ticket = self.ticket;
        let mut state = self.queue.lock();
        match state.given.remove(&ticket) {
            Some(given) => {
                drop(state);
                self.settled = true;
                Poll::Ready(given)
            }
            None => {
                state.wakers.insert(ticket, cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<W, G> Drop for Waiting<W, G> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        let mut state = self.queue.lock();
        let left = state.line.leave(self.ticket);
        state.wakers.remove(&self.ticket);
        let given = state.given.remove(&self.ticket);
        self.queue.length.store(state.line.len(), Ordering::SeqCst);
        drop(state);
        // Dropping these may re-enter the queue: a returned place goes to the next waiter.
        drop((left, given));
    }
}
