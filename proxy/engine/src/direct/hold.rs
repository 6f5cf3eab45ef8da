//! Heads that the program keeps until their bodies begin: sluice takes one that has waited too long.
//!
//! Head and body of most answers are two messages of their application, some microseconds apart; each would leave as
//! a segment of its own and wake the client. Nothing but the kernel knows of a head that is kept, so while there
//! may be any a worker looks at all its slots every few milliseconds.

use std::cell::Cell;
use std::time::Duration;

use sluice_ebpf::slot::Phase;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Direct;

/// It is looked on for so many turns without an exchange: there will be others.
const IDLE_TURNS: u32 = 100;

/// What a worker knows of it.
#[derive(Debug)]
pub(super) struct Hold {
    /// Zero: no head is kept.
    limit: Duration,
    /// Bodies in a row that came at once before.
    after: u32,
    /// Exchanges whose heads may be kept.
    exchanges: Cell<usize>,
    looking: Cell<bool>,
    wanted: Notify,
}

/// An exchange whose head may be kept.
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

    /// One more, for whose path so many bodies came at once; `None` if its head is not to be kept.
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

    /// Whether a head would not have waited in vain for a body that came so long after it.
    pub(super) fn is_in_time(&self, gap: Duration) -> bool {
        gap < self.turn()
    }

    /// Half of the limit: what is found after as long again is let go at the next turn, in time.
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
    /// Takes what has waited too long, for as long as the worker lives.
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

    /// A head that was there a turn ago has waited long enough. One that the program has let go by itself is nobody's
    /// until its exchange looks, so that is woken once.
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
