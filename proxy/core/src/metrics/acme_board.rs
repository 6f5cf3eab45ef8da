//! The visible state of ACME: counts for metrics, and a row for each name.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How an attempt to obtain a certificate ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// A certificate was issued.
    Issued,
    /// The attempt failed.
    Failed,
    /// The authority limits the rate of requests.
    RateLimited,
}

impl AttemptOutcome {
    /// All outcomes, in declaration order.
    pub const ALL: [Self; 3] = [Self::Issued, Self::Failed, Self::RateLimited];

    /// The label value in metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Issued => "issued",
            Self::Failed => "failed",
            Self::RateLimited => "rate_limited",
        }
    }
}

/// The outcome of the check whether a name may get a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskOutcome {
    /// The name may get one.
    Allowed,
    /// The name may not get one.
    Denied,
    /// There was no decision in time.
    Failed,
    /// No request was sent: enough names have a certificate, or too many decisions are pending.
    Dropped,
}

impl AskOutcome {
    /// All outcomes, in declaration order.
    pub const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::Failed, Self::Dropped];

    /// The label value in metrics.
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
    /// Names with automatic certificates.
    pub names: u64,
    /// Names whose last attempt failed.
    pub failing: u64,
    /// Time of the next attempt, in seconds of Unix time.
    pub next_attempt_s: Option<u64>,
}

/// The displayed state of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Time of the next attempt, in milliseconds of Unix time.
    pub next_ms: u64,
    /// Why the last attempt failed, if it did.
    pub failure: Option<String>,
}

/// Written by the control thread, read at a scrape.
#[derive(Debug, Default)]
pub struct Board {
    attempts: [AtomicU64; AttemptOutcome::ALL.len()],
    asks: [AtomicU64; AskOutcome::ALL.len()],
    rows: Mutex<BTreeMap<String, Row>>,
}

impl Board {
    /// Counts an attempt to obtain a certificate.
    pub fn count_attempt(&self, outcome: AttemptOutcome) {
        self.attempts[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Counts a request to the `ask` address.
    pub fn count_ask(&self, outcome: AskOutcome) {
        self.asks[outcome as usize].fetch_add(1, Relaxed);
    }

    /// Replaces the rows of all certificates, by first name.
    pub fn show(&self, rows: BTreeMap<String, Row>) {
        *self.lock() = rows;
    }

    /// All rows, by name.
    pub fn rows(&self) -> BTreeMap<String, Row> {
        self.lock().clone()
    }

    /// The whole state; `None` if there are no automatic certificates and never were.
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
