//! What is known of the source of a cluster's endpoints.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

const UNUSABLE: &str = "none of its endpoints has an address that can be used";

/// What the control plane has seen of a source, for metrics and the status page.
#[derive(Debug, Default)]
pub struct DiscoveryStatus {
    updates: AtomicU64,
    failures: AtomicU64,
    refused: AtomicU64,
    found: AtomicU64,
    answered_unix_s: AtomicU64,
    is_failing: AtomicBool,
    /// Whether no endpoint of the last list has an address that can be used.
    is_unusable: AtomicBool,
    /// Why the last list is not believed.
    doubt: Mutex<Option<String>>,
}

/// The same at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoverySnapshot {
    /// Lists that were applied because they differ.
    pub updates: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Times at which lists began to be doubted.
    pub refused: u64,
    /// Endpoints of the last list that was applied.
    pub found: u64,
    /// When the source answered last, in seconds of Unix time; 0 if it never has.
    pub answered_unix_s: u64,
    /// Whether it fails now.
    pub is_failing: bool,
    /// Why its last list is not believed.
    pub doubt: Option<String>,
}

impl fmt::Display for DiscoverySnapshot {
    /// For the status page.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.doubt, self.is_failing) {
            (_, true) => write!(f, "the source of endpoints fails, using the last {}", self.found),
            (Some(why), _) => write!(f, "the last list of endpoints is not believed: {why}"),
            (None, false) => write!(f, "{} endpoints found", self.found),
        }
    }
}

impl DiscoveryStatus {
    /// The source has answered.
    pub fn answered(&self, unix_s: u64) {
        self.answered_unix_s.store(unix_s, Relaxed);
    }

    /// A list is applied.
    pub fn updated(&self, endpoints: usize) {
        self.updates.fetch_add(1, Relaxed);
        self.found.store(endpoints as u64, Relaxed);
    }

    /// These were found before this process, or before a reload.
    pub fn begin(&self, endpoints: usize) {
        self.found.store(endpoints as u64, Relaxed);
    }

    /// An attempt has failed.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// Sets whether the source fails. Returns whether that has changed.
    pub fn set_failing(&self, is_failing: bool) -> bool {
        self.is_failing.swap(is_failing, Relaxed) != is_failing
    }

    /// Sets why the last list is not believed. Returns whether the doubt begins or ends.
    pub fn set_doubt(&self, why: Option<&str>) -> bool {
        let mut doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner);
        let has_changed = doubt.is_some() != why.is_some();
        if has_changed && why.is_some() {
            self.refused.fetch_add(1, Relaxed);
        }
        *doubt = why.map(str::to_owned);
        has_changed
    }

    /// Sets whether no endpoint of the last list has an address that can be used. Returns whether that has changed.
    pub fn set_unusable(&self, is_unusable: bool) -> bool {
        let has_changed = self.is_unusable.swap(is_unusable, Relaxed) != is_unusable;
        if has_changed && is_unusable {
            self.refused.fetch_add(1, Relaxed);
        }
        has_changed
    }

    /// All of it.
    pub fn snapshot(&self) -> DiscoverySnapshot {
        let doubt = self.doubt.lock().unwrap_or_else(PoisonError::into_inner).clone();
        DiscoverySnapshot {
            updates: self.updates.load(Relaxed),
            failures: self.failures.load(Relaxed),
            refused: self.refused.load(Relaxed),
            found: self.found.load(Relaxed),
            answered_unix_s: self.answered_unix_s.load(Relaxed),
            is_failing: self.is_failing.load(Relaxed),
            doubt: doubt.or_else(|| self.is_unusable.load(Relaxed).then(|| UNUSABLE.to_owned())),
        }
    }
}
