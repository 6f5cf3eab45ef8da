//! Who waits, and who is next. Pure: no clock, no locks, no wakers.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use crate::config::{self, QueueOrder};

/// Who is looked at for a place that has become free. More than the first is looked at because the first may
/// have been to the free endpoint already.
const CANDIDATES_MAX: usize = 8;

/// The place of one waiter; later ones are greater.
pub(super) type Ticket = u64;

/// Waiters in order.
pub(super) struct Line<W> {
    rules: config::Queue,
    waiters: BTreeMap<Ticket, Waiter<W>>,
    next: Ticket,
    /// With fair shares: who waits by client, and whose turn is when.
    clients: HashMap<IpAddr, BTreeSet<Ticket>>,
    turns: VecDeque<IpAddr>,
}

/// One who waits.
pub(super) struct Waiter<W> {
    /// What for.
    pub(super) wants: W,
    client: IpAddr,
    since_ms: u64,
}

impl<W> Line<W> {
    pub(super) fn new(rules: config::Queue) -> Self {
        let (clients, turns) = (HashMap::new(), VecDeque::new());
        Self { rules, waiters: BTreeMap::new(), next: 0, clients, turns }
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Takes a place at the end; `None` when the line is full. With fair shares a full line makes room for a
    /// client that has fewer waiting than another: [`Line::crowded_out`] says whom to send away first.
    pub(super) fn enter(&mut self, wants: W, client: IpAddr, now_ms: u64) -> Option<Ticket> {
        if self.waiters.len() >= self.rules.max_length {
            return None;
        }
        let client = share(client);
        let ticket = self.next;
        self.next += 1;
        self.waiters.insert(ticket, Waiter { wants, client, since_ms: now_ms });
        if self.rules.fair_by_client {
            let own = self.clients.entry(client).or_default();
            if own.is_empty() {
                self.turns.push_back(client);
            }
            own.insert(ticket);
        }
        Some(ticket)
    }

    /// Who has to leave a full line, if `client` may come in: the newest of the client with the most waiting.
    pub(super) fn crowded_out(&self, client: IpAddr) -> Option<Ticket> {
        if !self.rules.fair_by_client || self.waiters.len() < self.rules.max_length {
            return None;
        }
        let own = self.clients.get(&share(client)).map_or(0, BTreeSet::len);
        let most = self.clients.values().max_by_key(|tickets| tickets.len())?;
        if most.len() > own + 1 { most.last().copied() } else { None }
    }

    /// Who may be next, best first.
    pub(super) fn candidates(&self, now_ms: u64) -> Vec<Ticket> {
        let newest = self.newest_first(now_ms);
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

    /// Adaptive order (as Facebook's "Fail at Scale", ACM Queue 2015): a line that has become long is full of
    /// requests whose clients give up soon; the newest can still be served in time.
    fn newest_first(&self, now_ms: u64) -> bool {
        match self.rules.order {
            QueueOrder::Fifo => false,
            QueueOrder::Lifo => true,
            QueueOrder::Adaptive => self
                .waiters
                .first_key_value()
                .is_some_and(|(_, oldest)| now_ms.saturating_sub(oldest.since_ms) > self.rules.lifo_after_ms),
        }
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<&Waiter<W>> {
        self.waiters.get(&ticket)
    }

    /// Takes a waiter out, served or not. Its client's next turn comes after the others'.
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

    /// Notes that a client has had its turn.
    pub(super) fn had_turn(&mut self, waiter: &Waiter<W>) {
        if let Some(at) = self.turns.iter().position(|client| *client == waiter.client) {
            self.turns.remove(at);
            self.turns.push_back(waiter.client);
        }
    }
}

/// Who shares a turn: a v4 address, or the /64 that one v6 host has to itself.
fn share(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        v4 => v4,
    }
}
