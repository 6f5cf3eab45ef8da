//! The order of a queue: which requests wait, and which is next. Pure: no clock, no locks, no wakers.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::thread::ThreadId;

use sluice_config::{self as config, QueueOrder};

/// How many waiters are examined for a free place. More than one, because the free endpoint may be one that the first
/// waiter has already tried.
const CANDIDATES_MAX: usize = 8;

/// How often in a row the first waiter may be overtaken by a nearby waiter of the current thread. Waking another thread
/// costs as much as a small request; sixteen small requests are still a short wait.
const PASSED_MAX: u32 = 16;

/// The number of services over which the mean time between two is calculated.
const MEAN_OVER: u64 = 16;

/// The position of one waiter; later waiters have greater numbers.
pub(super) type Ticket = u64;

/// Waiters in order.
pub(super) struct Line<W> {
    rules: config::Queue,
    waiters: BTreeMap<Ticket, Waiter<W>>,
    next: Ticket,
    /// With fair shares: the waiters of each client, and the order of clients' turns.
    clients: HashMap<IpAddr, BTreeSet<Ticket>>,
    turns: VecDeque<IpAddr>,
    /// How often in a row the first waiter was overtaken.
    passed: u32,
    /// When a waiter was last served, or when the queue started.
    moved_us: u64,
    /// Mean time between two services, in microseconds.
    interval_us: u64,
}

/// One waiter.
pub(super) struct Waiter<W> {
    /// What it waits for.
    pub(super) wants: W,
    client: IpAddr,
    thread: ThreadId,
}

impl<W> Line<W> {
    pub(super) fn new(rules: config::Queue) -> Self {
        let (clients, turns) = (HashMap::new(), VecDeque::new());
        let (waiters, next, passed, moved_us, interval_us) = (BTreeMap::new(), 0, 0, 0, 0);
        Self { rules, waiters, next, clients, turns, passed, moved_us, interval_us }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Applies other rules from now on; no waiter is rejected because of them.
    pub(super) fn set_rules(&mut self, rules: config::Queue) {
        if rules.fair_by_client != self.rules.fair_by_client {
            self.clients.clear();
            self.turns.clear();
            let waiting: Vec<_> =
                self.waiters.iter().map(|(ticket, waiter)| (*ticket, waiter.client)).collect();
            for (ticket, client) in waiting.into_iter().filter(|_| rules.fair_by_client) {
                self.take_turn(ticket, client);
            }
        }
        self.rules = rules;
    }

    fn take_turn(&mut self, ticket: Ticket, client: IpAddr) {
        let own = self.clients.entry(client).or_default();
        if own.is_empty() {
            self.turns.push_back(client);
        }
        own.insert(ticket);
    }

    /// Adds a waiter at the end; `None` when the queue is full. With fair shares a full queue makes room for a client
    /// with fewer waiters than another: [`Line::crowded_out`] names the waiter to reject first.
    pub(super) fn enter(
        &mut self,
        wants: W,
        client: IpAddr,
        thread: ThreadId,
        now_us: u64,
    ) -> Option<Ticket> {
        if self.waiters.len() >= self.rules.max_length {
            return None;
        }
        if self.waiters.is_empty() {
            self.moved_us = now_us;
        }
        let ticket = self.next;
        self.next += 1;
        self.waiters.insert(ticket, Waiter { wants, client, thread });
        if self.rules.fair_by_client {
            self.take_turn(ticket, client);
        }
        Some(ticket)
    }

    /// The waiter that a full queue has to reject to admit `client`: the newest of the client with the most waiters.
    pub(super) fn crowded_out(&self, client: IpAddr) -> Option<Ticket> {
        if !self.rules.fair_by_client || self.waiters.len() < self.rules.max_length {
            return None;
        }
        let own = self.clients.get(&client).map_or(0, BTreeSet::len);
        let most = self.clients.values().max_by_key(|tickets| tickets.len())?;
        if most.len() > own + 1 { most.last().copied() } else { None }
    }

    /// The waiters that may be next, best first: in order, except that waiters of the current thread (`at_hand`) go
    /// before other candidates as long as the first waiter was not overtaken too often.
    pub(super) fn candidates(&self, at_hand: ThreadId) -> Vec<Ticket> {
        let mut candidates = self.in_order();
        if self.passed < PASSED_MAX && !self.rules.fair_by_client {
            candidates.sort_by_key(|ticket| self.get(*ticket).is_none_or(|waiter| waiter.thread != at_hand));
        }
        candidates
    }

    /// All waiters, in order but regardless of turns: for the rare case that no candidate can be served.
    pub(super) fn everyone(&self) -> Vec<Ticket> {
        match self.newest_first() {
            true => self.waiters.keys().rev().copied().collect(),
            false => self.waiters.keys().copied().collect(),
        }
    }

    fn in_order(&self) -> Vec<Ticket> {
        let newest = self.newest_first();
        if self.rules.fair_by_client {
            let first = |client: &IpAddr| {
                let own = self.clients.get(client)?;
                if newest { own.last() } else { own.first() }.copied()
            };
            return self.turns.iter().filter_map(first).take(CANDIDATES_MAX).collect();
        }
        match newest {
            true => self.waiters.keys().rev().take(CANDIDATES_MAX).copied().collect(),
            false => self.waiters.keys().take(CANDIDATES_MAX).copied().collect(),
        }
    }

    /// Adaptive order (as in Facebook's "Fail at Scale", ACM Queue 2015): a long queue is full of requests whose
    /// clients will soon give up, but the newest can still be served in time. The criterion is how long a new waiter
    /// would wait, not how long the oldest has waited: the oldest may have been overtaken.
    fn newest_first(&self) -> bool {
        match self.rules.order {
            QueueOrder::Fifo => false,
            QueueOrder::Lifo => true,
            QueueOrder::Adaptive => {
                let wait_us = self.interval_us.saturating_mul(self.waiters.len() as u64);
                wait_us > self.rules.lifo_after_ms.saturating_mul(1000)
            }
        }
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<&Waiter<W>> {
        self.waiters.get(&ticket)
    }

    /// Removes a waiter, served or not.
    pub(super) fn leave(&mut self, ticket: Ticket) -> Option<Waiter<W>> {
        let waiter = self.waiters.remove(&ticket)?;
        if let Some(own) = self.clients.get_mut(&waiter.client) {
            own.remove(&ticket);
            if own.is_empty() {
                self.clients.remove(&waiter.client);
                self.turns.retain(|client| *client != waiter.client);
            }
        }
        Some(waiter)
    }

    /// Removes a waiter that is served: its client's next turn comes after the turns of all others.
    pub(super) fn serve(&mut self, ticket: Ticket, now_us: u64) -> Option<Waiter<W>> {
        let first =
            if self.newest_first() { self.waiters.keys().next_back() } else { self.waiters.keys().next() };
        self.passed = if first == Some(&ticket) { 0 } else { self.passed + 1 };
        let waiter = self.leave(ticket)?;
        let interval_us = now_us.saturating_sub(std::mem::replace(&mut self.moved_us, now_us));
        self.interval_us = (self.interval_us * (MEAN_OVER - 1) + interval_us) / MEAN_OVER;
        if let Some(at) = self.turns.iter().position(|client| *client == waiter.client) {
            self.turns.remove(at);
            self.turns.push_back(waiter.client);
        }
        Some(waiter)
    }
}
