//! An endpoint's health: from active checks, and from the requests that it serves or fails.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};

use sluice_config::Ejection;

/// The health of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Takes requests: it has responded to a check or a request.
    Healthy,
    /// Takes requests, but has not responded to anything yet.
    Unchecked,
    /// Active checks failed.
    Unhealthy,
    /// Live requests failed; it gets no requests for a time.
    Ejected,
    /// It left the cluster; running requests finish, and it gets no new ones.
    Draining,
}

impl Health {
    /// Whether an endpoint of this health takes new requests.
    pub fn takes_requests(self) -> bool {
        matches!(self, Health::Healthy | Health::Unchecked)
    }

    /// The word shown in logs, metrics and by the admin listener.
    pub fn word(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Unchecked => "unchecked",
            Health::Unhealthy => "unhealthy",
            Health::Ejected => "ejected",
            Health::Draining => "draining",
        }
    }
}

/// The last active check of an endpoint, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastCheck {
    /// The status, or the error.
    pub outcome: String,
    /// Whether it counted as a success.
    pub success: bool,
    /// When it ended on the process's monotonic clock, in milliseconds.
    pub at_ms: u64,
}

/// The result of active checks, and whether the endpoint has ever responded.
#[derive(Default)]
pub(super) struct CheckedHealth {
    unhealthy: AtomicBool,
    /// It has responded to a check or a request.
    heard_of: AtomicBool,
    since_unix_s: AtomicU64,
    last_check: Mutex<Option<LastCheck>>,
}

impl CheckedHealth {
    pub(super) fn is_healthy(&self) -> bool {
        !self.unhealthy.load(Relaxed)
    }

    pub(super) fn is_heard_of(&self) -> bool {
        self.heard_of.load(Relaxed)
    }

    pub(super) fn hear_of(&self) {
        // Read first: an unconditional store would invalidate the cache line of every other worker each time.
        if !self.is_heard_of() {
            self.heard_of.store(true, Relaxed);
        }
    }

    /// Returns true if it changed.
    pub(super) fn set(&self, healthy: bool, since_unix_s: u64) -> bool {
        let changed = self.unhealthy.swap(!healthy, Relaxed) == healthy;
        if changed {
            self.since_unix_s.store(since_unix_s, Relaxed);
        }
        changed
    }

    pub(super) fn since_unix_s(&self) -> u64 {
        self.since_unix_s.load(Relaxed)
    }

    pub(super) fn last_check(&self) -> Option<LastCheck> {
        self.last_check.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_last_check(&self, check: LastCheck) {
        if check.success {
            self.hear_of();
        }
        *self.last_check.lock().unwrap_or_else(PoisonError::into_inner) = Some(check);
    }
}

/// Failures of live requests, and for how long the endpoint is ejected because of them.
#[derive(Default)]
pub(super) struct Failures {
    all: AtomicU64,
    consecutive: AtomicU32,
    ejected_until_ms: AtomicU64,
}

impl Failures {
    pub(super) fn all(&self) -> u64 {
        self.all.load(Relaxed)
    }

    pub(super) fn is_ejected(&self, now_ms: u64) -> bool {
        now_ms < self.ejected_until_ms.load(Relaxed)
    }

    /// Does not end an ejection: a success may belong to a request sent before it.
    pub(super) fn forget_consecutive(&self) {
        // Read first, as above.
        if self.consecutive.load(Relaxed) != 0 {
            self.consecutive.store(0, Relaxed);
        }
    }

    /// Returns true if this failure ejected the endpoint; if several workers fail at once, only one of them gets true.
    pub(super) fn add(&self, ejection: &Ejection, now_ms: u64) -> bool {
        self.all.fetch_add(1, Relaxed);
        let until_ms = self.ejected_until_ms.load(Relaxed);
        // Requests that were under way when it was ejected give no new information.
        if ejection.consecutive_failures == 0 || now_ms < until_ms {
            return false;
        }
        let count = self.consecutive.fetch_add(1, Relaxed).saturating_add(1);
        if count < ejection.consecutive_failures {
            return false;
        }
        let next_ms = now_ms.saturating_add(ejection.time_ms);
        let ejected = self.ejected_until_ms.compare_exchange(until_ms, next_ms, Relaxed, Relaxed);
        self.consecutive.store(0, Relaxed);
        ejected.is_ok() && next_ms > until_ms
    }
}
