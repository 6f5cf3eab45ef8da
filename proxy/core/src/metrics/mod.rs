//! Counters of every worker, summed at a scrape and rendered as OpenMetrics text.
//!
//! The hot path writes only memory of its own thread. Global state here is either rarely written (panics, dropped log
//! lines) or read through a callback (endpoint health).

mod abuse;
mod acme;
mod acme_board;
mod caches;
pub mod classic;
mod codes;
mod counted;
mod discovery;
mod fleet;
mod encode;
mod handshakes;
mod event;
mod http2;
mod http3;
mod labels;
mod limits;
mod missed;
mod process;
mod protocols;
mod recent;
mod retire;
mod series;
mod spans;
mod status;
mod tally;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use prometheus_client::registry::Registry;

use crate::budget::Budget;
use crate::record::BodyPath;
pub use abuse::Abuse;
pub use acme_board::{AcmeStatus, AskOutcome, AttemptOutcome};
pub use acme_board::{Board, Row};
pub use caches::{CacheDiskStatus, CacheSize};
pub use counted::Counted;
pub use discovery::DiscoveryCounts;
pub use event::Event;
pub use fleet::FleetStatus;
pub use handshakes::CertificateStatus;
use labels::LabelTable;
pub use missed::{Missed, Unarmed};
use recent::Recent;
pub use recent::RecentError;
pub use retire::Known;
use series::{Labels, Total};
use spans::SpanCounts;
pub use spans::SpanFate;
pub use status::{EndpointStatus, QueueStatus, Status};
pub use tally::{Counts, Tally};
use worker::WorkerMetrics;
pub use worker::WorkerRecorder;

/// Content type of the output of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The maximum number of label sets (route, cluster, endpoint). Further ones are counted in one series named `other`.
pub const SERIES_MAX: usize = 10_000;

type StatusSource = Box<dyn Fn() -> Status + Send + Sync>;

/// All counters of the process.
#[derive(Debug)]
pub struct Metrics {
    state: Arc<State>,
    registry: Registry,
}

struct State {
    workers: Mutex<Vec<Arc<WorkerMetrics>>>,
    table: Arc<LabelTable>,
    panics: AtomicU64,
    access_log_dropped: AtomicU64,
    budget: Arc<Budget>,
    spans: SpanCounts,
    recent: Arc<Recent>,
    status: OnceLock<StatusSource>,
    known: OnceLock<Known>,
    /// The engine that the workers run by.
    engine: OnceLock<&'static str>,
    /// The counts of removed series, by cluster.
    retired: Mutex<BTreeMap<String, Counts>>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("workers", &lock(&self.workers).len()).finish_non_exhaustive()
    }
}

impl Metrics {
    /// Counters that are all zero, without workers.
    pub fn new() -> Arc<Self> {
        Self::with_series_max(SERIES_MAX)
    }

    fn with_series_max(max: usize) -> Arc<Self> {
        let state = Arc::new(State {
            workers: Mutex::default(),
            table: Arc::new(LabelTable::new(max)),
            panics: AtomicU64::new(0),
            access_log_dropped: AtomicU64::new(0),
            budget: Arc::default(),
            spans: SpanCounts::default(),
            recent: Arc::default(),
            status: OnceLock::new(),
            known: OnceLock::new(),
            engine: OnceLock::new(),
            retired: Mutex::default(),
        });
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(&state)));
        Arc::new(Self { state, registry })
    }

    /// Counters for one more worker thread. They stay in the sums when the recorder is dropped.
    pub fn add_worker(&self) -> WorkerRecorder {
        let counters = Arc::new(WorkerMetrics::new());
        lock(&self.state.workers).push(Arc::clone(&counters));
        let State { table, budget, recent, .. } = &*self.state;
        WorkerRecorder::new(counters, Arc::clone(table), Arc::clone(budget), Arc::clone(recent))
    }

    /// Sets the source of the state of endpoints and queues; it is called at every scrape. Only the first call has an
    /// effect.
    pub fn set_status(&self, source: impl Fn() -> Status + Send + Sync + 'static) {
        let _ = self.state.status.set(Box::new(source));
    }

    /// Says by its name which engine the workers run by. Only the first call counts.
    pub fn set_engine(&self, name: &'static str) {
        let _ = self.state.engine.set(name);
    }

    /// Counts a panic.
    pub fn count_panic(&self) {
        self.state.panics.fetch_add(1, Relaxed);
    }

    /// Counts lost access log lines.
    pub fn count_access_log_dropped(&self, lines: u64) {
        self.state.access_log_dropped.fetch_add(lines, Relaxed);
    }

    /// Access log lines lost so far.
    pub fn access_log_dropped(&self) -> u64 {
        self.state.access_log_dropped.load(Relaxed)
    }

    /// Counts spans by their fate.
    pub fn count_spans(&self, fate: SpanFate, spans: usize) {
        self.state.spans.add(fate, spans);
    }

    /// Spans so far with this fate.
    pub fn spans(&self, fate: SpanFate) -> u64 {
        self.state.spans.of(fate)
    }

    /// The last failures, newest first, and the number of failures that were not recorded.
    pub fn recent_errors(&self) -> (Vec<RecentError>, u64) {
        (self.state.recent.list(), self.state.recent.dropped())
    }

    /// Panics so far.
    pub fn panics(&self) -> u64 {
        self.state.panics.load(Relaxed)
    }

    /// All metrics in the OpenMetrics text format 1.0.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(16 << 10);
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing to a String cannot fail");
        text
    }
}

impl State {
    fn sum_event(&self, event: Event) -> u64 {
        lock(&self.workers).iter().map(|worker| worker.event(event)).sum()
    }

    /// Objects that have begun and not ended. The ends are read first: a concurrent change may make the result too high
    /// by one, but never negative.
    fn sum_open(&self, begun: Event, ended: Event) -> u64 {
        let ended = self.sum_event(ended);
        self.sum_event(begun).saturating_sub(ended)
    }

    /// Open downstream connections, by worker. The ends are read first, as above.
    fn connections_of_workers(&self) -> Vec<u64> {
        let open = |worker: &Arc<WorkerMetrics>| {
            let gone = worker.event(Event::DownstreamClosed) + worker.event(Event::DownstreamLeft);
            let come = worker.event(Event::DownstreamAccepted) + worker.event(Event::DownstreamMoved);
            come.saturating_sub(gone)
        };
        lock(&self.workers).iter().map(open).collect()
    }

    fn sum_errors(&self, index: usize) -> u64 {
        lock(&self.workers).iter().map(|worker| worker.errors(index)).sum()
    }

    /// Exchanges by status code.
    fn sum_codes(&self) -> BTreeMap<u16, u64> {
        let mut all = BTreeMap::new();
        lock(&self.workers).iter().for_each(|worker| worker.codes.add_to(&mut all));
        all
    }

    fn sum_retries(&self) -> u64 {
        lock(&self.workers).iter().map(|worker| worker.retries()).sum()
    }

    /// Exchanges and bytes of one path.
    fn sum_path(&self, path: BodyPath) -> (u64, u64) {
        let paths = lock(&self.workers);
        let paths = paths.iter().map(|worker| worker.path(path));
        paths.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// The sum for one index of [`Missed::names`].
    fn sum_missed(&self, index: usize) -> u64 {
        lock(&self.workers).iter().map(|worker| worker.missed(index)).sum()
    }

    /// The sum for one index of [`Abuse::ALL`].
    fn sum_abuses(&self, index: usize) -> u64 {
        lock(&self.workers).iter().map(|worker| worker.abuses(index)).sum()
    }

    fn sum_series(&self) -> BTreeMap<Arc<Labels>, Total> {
        let mut totals: BTreeMap<Arc<Labels>, Total> = BTreeMap::new();
        for worker in lock(&self.workers).iter() {
            for series in worker.series() {
                totals.entry(Arc::clone(&series.labels)).or_default().add(&series);
            }
        }
        totals
    }

    fn status(&self) -> Status {
        self.status.get().map(|source| source()).unwrap_or_default()
    }
}

/// Locks state in which every write is complete: a panic elsewhere cannot have left it half written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
