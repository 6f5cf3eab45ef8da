//! Requests for a response that is not stored yet: one goes to the application, the others wait for what it brings.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quick_cache::DefaultHashBuilder;
use tokio::sync::watch;

/// Tables, so that workers seldom meet at one.
const TABLES: usize = 64;

/// What has become of a request that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its response is stored.
    Stored,
    /// Its response is not kept.
    Passed,
    /// There is no response, for anybody. The number says why, to who has asked.
    Failed(u16),
    /// Its client has left, or the application has failed: the next one may have more luck.
    Abandoned,
    /// Its response is not for others because of who has asked.
    OfCaller,
}

type Table = HashMap<Box<[u8]>, PendingResponse>;

/// A response that is on its way.
#[derive(Debug)]
struct PendingResponse {
    outcome: Arc<watch::Sender<Option<Outcome>>>,
    /// Requests that have gone for it.
    gone: usize,
    /// When the last one went.
    last: Instant,
}

/// The requests under way, of all workers.
#[derive(Debug)]
pub(crate) struct Fills {
    tables: Box<[Mutex<Table>]>,
    hasher: DefaultHashBuilder,
}

/// Whose turn it is.
pub enum Turn {
    /// This request goes to the application.
    First(Ticket),
    /// Another one has gone.
    Later(ResponseWait),
}

/// The request that goes to the application. Dropped without an outcome, it was abandoned.
#[derive(Debug)]
pub struct Ticket {
    fills: Arc<Fills>,
    key: Box<[u8]>,
    outcome: Arc<watch::Sender<Option<Outcome>>>,
    is_told: bool,
}

/// The wait for another request.
pub struct ResponseWait {
    outcome: watch::Receiver<Option<Outcome>>,
    /// When one of those that wait may go as well.
    pub until: Instant,
}

impl ResponseWait {
    /// What has become of it.
    pub async fn outcome(&mut self) -> Outcome {
        match self.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.unwrap_or(Outcome::Abandoned),
            Err(_) => Outcome::Abandoned,
        }
    }
}

impl Fills {
    pub(crate) fn new() -> Self {
        Self {
            tables: std::iter::repeat_with(Mutex::default).take(TABLES).collect(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    fn table(&self, key: &[u8]) -> MutexGuard<'_, Table> {
        let at = self.hasher.hash_one(key) as usize % TABLES;
        self.tables[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a request go, or wait for the one that has gone. One that `is_late` has waited, and goes as well if the
    /// last one went so long ago: however slow the application is, it gets one request in that time.
    pub(crate) fn turn(self: &Arc<Self>, key: &[u8], wait: Duration, is_late: bool) -> Turn {
        let now = Instant::now();
        let mut table = self.table(key);
        let ticket = |outcome| {
            Turn::First(Ticket { fills: Arc::clone(self), key: key.into(), outcome, is_told: false })
        };
        match table.get_mut(key) {
            Some(pending) if is_late && now >= pending.last + wait => {
                pending.gone += 1;
                pending.last = now;
                ticket(Arc::clone(&pending.outcome))
            }
            Some(pending) => {
                Turn::Later(ResponseWait { outcome: pending.outcome.subscribe(), until: pending.last + wait })
            }
            None => {
                let outcome = Arc::new(watch::Sender::new(None));
                let pending = PendingResponse { outcome: Arc::clone(&outcome), gone: 1, last: now };
                table.insert(key.into(), pending);
                ticket(outcome)
            }
        }
    }

    /// How many responses are on their way.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.tables.iter().map(|table| table.lock().map_or(0, |table| table.len())).sum()
    }
}

impl Ticket {
    /// Tells those that wait. Of several requests for the same response, the first that brings one counts.
    pub fn settle(mut self, outcome: Outcome) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        // First out of the table: who is told, and asks again, must not find it.
        let mut table = self.fills.table(&self.key);
        let is_own = |held: &&mut PendingResponse| Arc::ptr_eq(&held.outcome, &self.outcome);
        // Otherwise another request has brought a response before.
        let Some(pending) = table.get_mut(&self.key).filter(is_own) else { return };
        pending.gone -= 1;
        if pending.gone > 0 && !matches!(outcome, Outcome::Stored | Outcome::Passed) {
            return;
        }
        table.remove(&self.key);
        drop(table);
        self.outcome.send_replace(Some(outcome));
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.tell(Outcome::Abandoned);
    }
}
