//! Heads that the program holds until their bodies begin: sluice takes over a head that has waited too long.
//!
//! Most applications send head and body as two messages, a few microseconds apart; each would leave as a separate
//! segment and wake the client. Only the kernel knows about a held head, so while there may be any, a worker checks all
//! its slots every few milliseconds.

use std::cell::Cell;
use std::time::Duration;

use sluice_ebpf::slot::Phase;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Direct;

/// The checks continue for this many turns without an exchange, because others are likely to follow.
const IDLE_TURNS: u32 = 100;

/// A worker's state of holding.
#[derive(Debug)]
pub(super) struct Hold {
    /// Zero: no head is held.
    limit: Duration,
    /// The number of consecutive bodies that must have followed at once.
    after: u32,
    /// Exchanges whose heads may be held.
    exchanges: Cell<usize>,
    looking: Cell<bool>,
    wanted: Notify,
}

/// An exchange whose head may be held.
#[derive(Debug)]
pub(super) struct Holding<'a>(&'a Hold);

impl Hold {
    pub(super) fn new(limit_ms: u64, after: u32) -> Self {
        Self {
            limit: Duration::from_millis(limit_ms),
            after,
            exchanges: Cell::new(0),
            looking: Cell::new(false),
            wanted: Notify::new(),
        }
    }

    /// Starts an exchange for whose path `at_once` consecutive bodies followed at once; `None` if its head must not be
    /// held.
    pub(super) fn begin(&self, at_once: u8) -> Option<Holding<'_>> {
        if self.limit.is_zero() || u32::from(at_once) < self.after {
            return None;
        }
        self.exchanges.set(self.exchanges.get() + 1);
        if !self.looking.get() {
            self.wanted.notify_one();
        }
        Some(Holding(self))
    }

    /// Whether holding a head would have been useful for a body that followed after `gap`.
    pub(super) fn is_in_time(&self, gap: Duration) -> bool {
        gap < self.turn()
    }

    /// Half of the limit: a head found in one turn is released at the next turn, within the limit.
    fn turn(&self) -> Duration {
        self.limit / 2
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.exchanges.set(self.0.exchanges.get() - 1);
    }
}

impl Direct {
    /// Takes over heads that have waited too long; runs as long as the worker lives.
    pub(crate) async fn look_after_heads(&self) {
        loop {
            self.hold.wanted.notified().await;
            self.hold.looking.set(true);
            let mut idle = 0;
            while idle < IDLE_TURNS {
                sleep(self.hold.turn()).await;
                idle = if self.hold.exchanges.get() == 0 { idle + 1 } else { 0 };
                self.let_heads_go();
            }
            self.hold.looking.set(false);
        }
    }

    /// A head that was already there one turn ago has waited long enough. A head that the program has released belongs
    /// to nobody until its exchange checks, so that exchange is woken once.
    fn let_heads_go(&self) {
        for (_, entry) in self.entries.borrow_mut().iter_mut().filter(|(_, entry)| entry.holds) {
            let slot = entry.lease.slot();
            let state = (slot.phase(), slot.first_ns.get());
            let is_new = entry.seen.replace(state) != Some(state);
            let is_theirs = match state.0 {
                Phase::Held => !is_new && slot.let_head_go(),
                Phase::Left => is_new && slot.held.get() != 0,
                _ => false,
            };
            if is_theirs {
                entry.wake();
            }
        }
    }
}
