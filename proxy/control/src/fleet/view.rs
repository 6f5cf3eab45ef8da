//! A fleet as people see it: by `sluice list --fleet`, `sluice top --fleet` and on the status page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sluice_core::clock::now_ms;
use sluice_core::metrics::FleetStatus;

use super::report::{Members, Report, name_of};
use super::state::Head;

/// How long after somebody has looked the view is kept up to date, in milliseconds.
const WANTED_MS: u64 = 10_000;

/// A fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetView {
    /// The member that shows it.
    pub member: String,
    /// The engine of the store: `etcd`, `consul` or `redis`.
    pub engine: String,
    /// Why the store cannot be reached; the rest is what was last known then.
    pub trouble: Option<String>,
    /// The version of the services.
    pub version: u64,
    /// The last change, such as `deploy of web`.
    pub change: String,
    /// The member that made it.
    pub changed_by: String,
    /// The members, by name.
    pub members: Vec<MemberView>,
}

/// A member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// The number of its process.
    pub process: String,
    /// Its version of sluice.
    pub release: String,
    /// When it started, in seconds of Unix time.
    pub since_s: u64,
    /// The version of the services that it serves.
    pub applied: u64,
    /// The version after which no request is at targets that were replaced.
    pub settled: u64,
    /// Services that it cannot serve as they are, and why.
    pub failed: BTreeMap<String, String>,
    /// What goes through it.
    pub traffic: Traffic,
}

/// What goes through a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Traffic {
    /// Requests a second.
    pub requests: f64,
    /// Failures among them.
    pub failures: f64,
    /// Requests under way.
    pub in_flight: u64,
    /// The 99th percentile of the time to the response, in milliseconds.
    pub p99_ms: Option<f64>,
}

/// The view that other threads may read.
#[derive(Debug, Default)]
pub(crate) struct Board {
    view: Mutex<FleetView>,
    wanted_ms: AtomicU64,
    status: Mutex<FleetStatus>,
}

impl Board {
    /// The last view; it is renewed as long as somebody looks.
    pub(crate) fn look(&self) -> FleetView {
        self.wanted_ms.store(now_ms().max(1), Relaxed);
        self.last()
    }

    /// The last view.
    pub(super) fn last(&self) -> FleetView {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the metrics say.
    pub(crate) fn status(&self) -> FleetStatus {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what the metrics say.
    pub(super) fn note(&self, change: impl FnOnce(&mut FleetStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Whether somebody has looked lately.
    pub(super) fn is_wanted(&self) -> bool {
        let wanted_ms = self.wanted_ms.load(Relaxed);
        wanted_ms > 0 && now_ms().saturating_sub(wanted_ms) < WANTED_MS
    }

    pub(super) fn show(&self, view: FleetView) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }
}

impl FleetView {
    pub(super) fn new(
        (member, engine): (&str, &str),
        trouble: Option<String>,
        head: Head,
        members: &Members,
    ) -> Self {
        Self {
            member: member.to_owned(),
            engine: engine.to_owned(),
            trouble,
            version: head.version,
            change: head.what,
            changed_by: head.by,
            members: members.0.iter().map(member_view).collect(),
        }
    }
}

fn member_view((key, report): (&String, &Report)) -> MemberView {
    MemberView {
        name: name_of(key).to_owned(),
        process: key.split_once('/').map(|(_, process)| process.to_owned()).unwrap_or_default(),
        release: report.release.clone(),
        since_s: report.since,
        applied: report.applied,
        settled: report.draining.values().min().map_or(report.applied, |first| first.saturating_sub(1)),
        failed: report.failed.clone(),
        traffic: report.traffic,
    }
}

/// For the status page, if there is a fleet.
pub(crate) type SharedBoard = Option<Arc<Board>>;
