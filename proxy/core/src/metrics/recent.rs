//! The last failures, for the status page. Workers write, the control thread reads.
//!
//! A worker notes some a second and drops the rest, so that a flood costs it a comparison each; it never waits for
//! another.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, TryLockError};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::lock;
use crate::clock;
use crate::error::{Reason, Side};
use crate::record::ExchangeRecord;

/// Failures by the origin's or sluice's fault that are kept.
const FAILURES_MAX: usize = 50;
/// Those by clients' fault, kept apart, for one scanner would push all others out.
const REFUSED_MAX: usize = 20;
/// Of each kind, noted by one worker in a second.
const PER_SECOND_MAX: u32 = 10;

/// One exchange that failed, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentError {
    /// When it ended, in milliseconds of Unix time.
    pub time_ms: u64,
    /// The word that the access log has as `reason`; `None` where the origin itself answered 5xx.
    pub reason: Option<String>,
    /// Whose fault it is: `downstream`, `upstream` or `internal`.
    pub side: String,
    /// Status sent, or logged in its place.
    pub status: u16,
    /// Name of the route, if it came to one.
    pub route: Option<String>,
    /// Name of the cluster, if it came to one.
    pub cluster: Option<String>,
    /// Label of the endpoint, if it came to one.
    pub endpoint: Option<String>,
}

/// What all workers have noted.
#[derive(Debug, Default)]
pub(super) struct Recent {
    failures: Mutex<VecDeque<RecentError>>,
    refused: Mutex<VecDeque<RecentError>>,
    dropped: AtomicU64,
}

impl Recent {
    /// All, the newest first.
    pub(super) fn list(&self) -> Vec<RecentError> {
        let mut all: Vec<_> = lock(&self.failures).iter().cloned().collect();
        all.extend(lock(&self.refused).iter().cloned());
        all.sort_by_key(|error| std::cmp::Reverse(error.time_ms));
        all
    }

    /// How many were not noted.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn push(&self, error: RecentError, side: Side) {
        let (ring, max) = match side {
            Side::Downstream => (&self.refused, REFUSED_MAX),
            Side::Upstream | Side::Internal => (&self.failures, FAILURES_MAX),
        };
        let mut ring = match ring.try_lock() {
            Ok(ring) => ring,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody else's is as good as this one; a worker must not wait.
            Err(TryLockError::WouldBlock) => {
                self.dropped.fetch_add(1, Relaxed);
                return;
            }
        };
        ring.truncate(max - 1);
        ring.push_front(error);
    }
}

/// What one worker may still note in this second, by kind.
#[derive(Debug, Default)]
pub(super) struct Ration {
    second: Cell<u64>,
    failures: Cell<u32>,
    refused: Cell<u32>,
}

impl Ration {
    fn take(&self, side: Side, now_ms: u64) -> bool {
        if self.second.replace(now_ms / 1000) != now_ms / 1000 {
            self.failures.set(0);
            self.refused.set(0);
        }
        let taken = if side == Side::Downstream { &self.refused } else { &self.failures };
        let fits = taken.get() < PER_SECOND_MAX;
        taken.set(taken.get().saturating_add(1));
        fits
    }

    /// Notes a failure if there is room for it; `record` is `None` where there was no exchange.
    #[cold]
    pub(super) fn note(&self, recent: &Recent, reason: Option<Reason>, record: Option<&ExchangeRecord<'_>>) {
        let side = reason.map_or(Side::Upstream, Reason::side);
        if !self.take(side, clock::now_ms()) {
            recent.dropped.fetch_add(1, Relaxed);
            return;
        }
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let text = |text: Option<&str>| text.map(str::to_owned);
        let error = RecentError {
            time_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            reason: text(reason.map(Reason::word)),
            side: side.word().to_owned(),
            status: record.map_or(reason.map_or(0, Reason::status), |record| record.status),
            route: text(record.and_then(|record| record.route).map(|route| route.1)),
            cluster: text(record.and_then(|record| record.cluster)),
            endpoint: text(record.and_then(|record| record.endpoint).map(|endpoint| endpoint.1)),
        };
        recent.push(error, side);
    }
}

/// Whether an exchange failed by the origin's or sluice's fault, or was answered 5xx.
pub(super) fn is_failure(record: &ExchangeRecord<'_>) -> bool {
    (500..=599).contains(&record.status)
        || record.reason.is_some_and(|reason| reason.side() != Side::Downstream)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refused(status: u16, reason: Option<Reason>) -> ExchangeRecord<'static> {
        ExchangeRecord { status, reason, ..ExchangeRecord::sample() }
    }

    #[test]
    fn a_flood_is_rationed_and_its_kinds_are_kept_apart() {
        let (recent, ration) = (Recent::default(), Ration::default());
        let failure = refused(502, Some(Reason::ConnectRefused));
        ration.note(&recent, failure.reason, Some(&failure));
        for _ in 0..10_000 {
            ration.note(&recent, Some(Reason::NoRoute), Some(&refused(404, Some(Reason::NoRoute))));
        }
        let list = recent.list();
        let failures = list.iter().filter(|error| error.side == "upstream").count();
        assert_eq!(failures, 1);
        assert!(list.len() <= 1 + REFUSED_MAX);
        // The flood may have lasted for more than one second, each with a ration of its own.
        assert!(recent.dropped() > 1000);
    }

    #[test]
    fn a_second_brings_a_new_ration() {
        let ration = Ration::default();
        let taken = |now_ms| (0..20).filter(|_| ration.take(Side::Upstream, now_ms)).count();
        assert_eq!((taken(500), taken(999), taken(1000)), (10, 0, 10));
        assert!(ration.take(Side::Downstream, 1000));
    }

    #[test]
    fn what_is_kept_is_bounded_and_says_what_it_was() {
        let recent = Recent::default();
        for _ in 0..100 {
            let ration = Ration::default();
            ration.note(&recent, None, Some(&refused(500, None)));
            ration.note(&recent, Some(Reason::TooManyConnections), None);
        }
        let list = recent.list();
        assert_eq!(list.len(), FAILURES_MAX);
        let newest = list.iter().find(|error| error.reason.is_none()).unwrap();
        let at = |text: &Option<String>| text.clone().unwrap();
        assert_eq!((newest.status, newest.side.as_str()), (500, "upstream"));
        assert_eq!((at(&newest.route), at(&newest.cluster)), ("app".to_owned(), "puma".to_owned()));
        assert!(list.iter().any(|error| error.status == 503 && error.route.is_none()));
    }
}
