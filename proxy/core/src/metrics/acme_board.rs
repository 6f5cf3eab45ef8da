//! What is shown of ACME: counts for metrics, and a row for each name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a try to get a certificate ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// There is one.
    Issued,
    /// There is none.
    Failed,
    /// The authority does not want to be asked so often.
    RateLimited,
}

impl AttemptOutcome {
    /// All of them, in declaration order.
    pub const ALL: [Self; 3] = [Self::Issued, Self::Failed, Self::RateLimited];

    /// The one word that metrics show.
    pub fn word(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Failed => "failed",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// What came of asking whether a name may have a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskOutcome {
    /// It may.
    Allowed,
    /// It may not.
    Denied,
    /// Nobody said so in time.
    Failed,
    /// It was not asked: enough names have one, or too many are waited for.
    Dropped,
}

impl AskOutcome {
    /// All of them, in declaration order.
    pub const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::Failed, Self::Dropped];

    /// The one word that metrics show.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Failed => "failed",
            Self::Dropped => "dropped",
        }
    }
}

/// ACME at the time of a scrape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcmeStatus {
    /// By index of [`AttemptOutcome::ALL`].
    pub attempts: [u64; AttemptOutcome::ALL.len()],
    /// By index of [`AskOutcome::ALL`].
    pub asks: [u64; AskOutcome::ALL.len()],
    /// Names that are looked after.
    pub names: u64,
    /// Names whose last try failed.
    pub failing: u64,
    /// When the next try is, in seconds of Unix time.
    pub next_attempt_s: Option<u64>,
}

/// One name, as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// When it is tried next, in milliseconds of Unix time.
    pub next_ms: u64,
    /// Why the last try failed, if it has.
    pub failure: Option<String>,
}

/// Written by the control thread, read by whoever scrapes.
#[derive(Debug, Default)]
pub struct Board {
    attempts: [AtomicU64; AttemptOutcome::ALL.len()],
    asks: [AtomicU64; AskOutcome::ALL.len()],
    rows: Mutex<BTreeMap<String, Row>>,
}

impl Board {
    /// Counts an attempt to get a certificate.
    pub fn count_attempt(&self, outcome: AttemptOutcome) {
        self.attempts[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Counts a question to the `ask` address.
    pub fn count_ask(&self, outcome: AskOutcome) {
        self.asks[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Replaces what is shown of each certificate, by its first name.
    pub fn show(&self, rows: BTreeMap<String, Row>) {
        *self.lock() = rows;
    }

    /// Every name.
    pub fn rows(&self) -> BTreeMap<String, Row> {
        self.lock().clone()
    }

    /// All of it; `None` where there is nothing to look after and never was.
    pub fn status(&self) -> Option<AcmeStatus> {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        let rows = self.lock();
        let status = AcmeStatus {
            attempts: self.attempts.each_ref().map(load),
            asks: self.asks.each_ref().map(load),
            names: rows.len() as u64,
            failing: rows.values().filter(|row| row.failure.is_some()).count() as u64,
            next_attempt_s: rows.values().map(|row| row.next_ms / 1000).min(),
        };
        (status != AcmeStatus::default()).then_some(status)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Row>> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
