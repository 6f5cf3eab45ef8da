//! The last failures, for the status page. Workers write, the control thread reads.
//!
//! A worker records a few per second and drops the rest, so that a flood costs one comparison per failure. A worker
//! never waits for another.

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

/// Kept failures that are the origin's or sluice's fault.
const FAILURES_MAX: usize = 50;
/// Kept failures that are clients' fault. They are separate because one scanner would push all others out.
const REFUSED_MAX: usize = 20;
/// Failures of each kind that one worker records per second.
const PER_SECOND_MAX: u32 = 10;

/// One exchange that failed or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentError {
    /// When it ended, in milliseconds of Unix time.
    pub time_ms: u64,
    /// The reason code, as in the access log; `None` if the origin itself responded with 5xx.
    pub reason: Option<String>,
    /// The side at fault: `downstream`, `upstream` or `internal`.
    pub side: String,
    /// The status that was sent or only logged.
    pub status: u16,
    /// Name of the route, if the exchange got that far.
    pub route: Option<String>,
    /// Name of the cluster, if the exchange got that far.
    pub cluster: Option<String>,
    /// Label of the endpoint, if the exchange got that far.
    pub endpoint: Option<String>,
}

/// What all workers have recorded.
#[derive(Debug, Default)]
pub(super) struct Recent {
    failures: Mutex<VecDeque<RecentError>>,
    refused: Mutex<VecDeque<RecentError>>,
    dropped: AtomicU64,
}

impl Recent {
    /// All failures, newest first.
    pub(super) fn list(&self) -> Vec<RecentError> {
        let mut all: Vec<_> = lock(&self.failures).iter().cloned().collect();
        all.extend(lock(&self.refused).iter().cloned());
        all.sort_by_key(|error| std::cmp::Reverse(error.time_ms));
        all
    }

    /// How many were not recorded.
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
            // Another worker's failure is as useful as this one; a worker must not wait.
            Err(TryLockError::WouldBlock) => {
                self.dropped.fetch_add(1, Relaxed);
                return;
            }
        };
        ring.truncate(max - 1);
        ring.push_front(error);
    }
}

/// What one worker may still record in this second, by kind.
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

    /// Records a failure if the ration allows it; `record` is `None` if there was no exchange.
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

/// Whether an exchange failed through the origin's or sluice's fault, or got a 5xx response.
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
    fn a_flood_is_rationed_separately_by_kind() {
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
        // The flood may last for more than one second; each second has a separate ration.
        assert!(recent.dropped() > 1000);
    }

    #[test]
    fn the_ration_is_renewed_every_second() {
        let ration = Ration::default();
        let taken = |now_ms| (0..20).filter(|_| ration.take(Side::Upstream, now_ms)).count();
        assert_eq!((taken(500), taken(999), taken(1000)), (10, 0, 10));
        assert!(ration.take(Side::Downstream, 1000));
    }

    #[test]
    fn recorded_failures_are_bounded_and_keep_their_details() {
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
