//! One worker thread's counters, and the handle that writes them; nothing else does. A scrape reads the counters
//! through the `Arc`. A lock is taken only for the first exchange of a kind on this worker.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::codes::Codes;
use super::event::{EVENTS, Event};
use super::handshakes::Handshakes;
use super::labels::LabelTable;
use super::lock;
use super::protocols::Protocols;
use super::recent::{Ration, Recent, is_failure};
use super::series::{Labels, Series, bump};
use super::{Abuse, Missed};
use crate::budget::Budget;
use crate::error::Reason;
use crate::record::{BodyPath, ExchangeRecord};

/// One worker's counters, as read by a scrape. Aligned, so that no line has counters of two workers.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct WorkerMetrics {
    events: [AtomicU64; EVENTS],
    errors: [AtomicU64; Reason::ALL.len()],
    retries: AtomicU64,
    /// Exchanges and their bytes, in both directions, by path.
    paths: [(AtomicU64, AtomicU64); BodyPath::ALL.len()],
    /// Responses over joined connections that did not use direct return, by reason.
    missed: [AtomicU64; Missed::COUNT],
    pub(super) codes: Codes,
    pub(super) protocols: Protocols,
    pub(super) handshakes: Handshakes,
    /// HTTP/2 connections closed for abuse, by kind.
    abuses: [AtomicU64; Abuse::ALL.len()],
    series: Mutex<Vec<Arc<Series>>>,
}

impl WorkerMetrics {
    pub(super) fn new() -> Self {
        Self {
            events: std::array::from_fn(|_| AtomicU64::new(0)),
            errors: std::array::from_fn(|_| AtomicU64::new(0)),
            retries: AtomicU64::new(0),
            paths: Default::default(),
            missed: std::array::from_fn(|_| AtomicU64::new(0)),
            codes: Codes::default(),
            protocols: Protocols::default(),
            handshakes: Handshakes::default(),
            abuses: std::array::from_fn(|_| AtomicU64::new(0)),
            series: Mutex::default(),
        }
    }

    pub(super) fn event(&self, event: Event) -> u64 {
        self.events[event as usize].load(Relaxed)
    }

    /// Errors for one index of `Reason::ALL`.
    pub(super) fn errors(&self, index: usize) -> u64 {
        self.errors[index].load(Relaxed)
    }

    /// Exchanges and bytes of one path.
    pub(super) fn path(&self, path: BodyPath) -> (u64, u64) {
        let (exchanges, bytes) = &self.paths[path as usize];
        (exchanges.load(Relaxed), bytes.load(Relaxed))
    }

    /// The count for one index of [`Missed::names`].
    pub(super) fn missed(&self, index: usize) -> u64 {
        self.missed[index].load(Relaxed)
    }

    /// The count for one index of [`Abuse::ALL`].
    pub(super) fn abuses(&self, index: usize) -> u64 {
        self.abuses[index].load(Relaxed)
    }

    pub(super) fn retries(&self) -> u64 {
        self.retries.load(Relaxed)
    }

    pub(super) fn series(&self) -> Vec<Arc<Series>> {
        lock(&self.series).clone()
    }

    /// Removes and returns the series of these labels. The worker notices at its next exchange of that kind.
    pub(super) fn take_out(&self, labels: &HashSet<Arc<Labels>>) -> Vec<Arc<Series>> {
        let mut all = lock(&self.series);
        let out = all.extract_if(.., |series| labels.contains(&series.labels));
        out.inspect(|series| series.retire()).collect()
    }
}

type SeriesMap = HashMap<u64, Arc<Series>, BuildHasherDefault<KeyHasher>>;

/// A worker's handle to its counters. `Send`, so that it can be created on another thread, but not `Sync`.
pub struct WorkerRecorder {
    counters: Arc<WorkerMetrics>,
    table: Arc<LabelTable>,
    budget: Arc<Budget>,
    recent: Arc<Recent>,
    ration: Ration,
    // Taken out and put back within `record`, which calls nothing that could re-enter it.
    by_key: Cell<SeriesMap>,
}

impl WorkerRecorder {
    pub(super) fn new(
        counters: Arc<WorkerMetrics>,
        table: Arc<LabelTable>,
        budget: Arc<Budget>,
        recent: Arc<Recent>,
    ) -> Self {
        Self { counters, table, budget, recent, ration: Ration::default(), by_key: Cell::default() }
    }

    /// The process's accounting of buffered bodies, which also enforces the limits.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    pub(super) fn handshakes(&self) -> &Handshakes {
        &self.counters.handshakes
    }

    /// Counts one event.
    pub fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Adds `n` to an event, such as bytes.
    pub fn add(&self, event: Event, n: u64) {
        bump(&self.counters.events[event as usize], n);
    }

    /// Counts a response over a joined connection that did not use direct return, or only for a part.
    pub fn count_missed(&self, missed: Missed) {
        bump(&self.counters.missed[missed.index()], 1);
    }

    /// Counts an HTTP/2 connection that is closed for abuse.
    pub fn count_abuse(&self, abuse: Abuse) {
        bump(&self.counters.abuses[abuse as usize], 1);
    }

    /// Counts an error without an exchange, such as a connection refused by a limit.
    pub fn error(&self, reason: Reason) {
        self.count_error(reason);
        self.ration.note(&self.recent, Some(reason), None);
    }

    /// Exchanges that have ended.
    pub fn exchanges(&self) -> u64 {
        BodyPath::ALL.into_iter().map(|path| self.counters.path(path).0).sum()
    }

    /// Whether bytes may be transferred without the end of an exchange.
    pub fn has_tunnels(&self) -> bool {
        self.counters.event(Event::TunnelOpened) != self.counters.event(Event::TunnelClosed)
    }

    fn count_error(&self, reason: Reason) {
        // `Reason` is declared in the order of `Reason::ALL`; a test checks it.
        bump(&self.counters.errors[reason as usize], 1);
    }

    /// Counts a finished exchange: its series, its retries and its reason.
    pub fn record(&self, record: &ExchangeRecord<'_>) {
        let mut by_key = self.by_key.take();
        let key = key(record);
        match by_key.get(&key) {
            // A reload may give route indexes new meanings, so a hit must have the right names as well.
            Some(series)
                if !series.is_retired()
                    && (series.labels.are_of(record) || Arc::ptr_eq(&series.labels, &self.table.other)) =>
            {
                series.record(record);
            }
            _ => self.record_first(&mut by_key, key, record),
        }
        self.by_key.set(by_key);
        self.counters.codes.record(record.status);
        self.counters.protocols.record(record.version);
        if let Some(path) = record.path {
            let (exchanges, bytes) = &self.counters.paths[path as usize];
            bump(exchanges, 1);
            bump(bytes, record.bytes_in.wrapping_add(record.bytes_out));
        }
        if record.retries > 0 {
            bump(&self.counters.retries, u64::from(record.retries));
        }
        if let Some(reason) = record.reason {
            self.count_error(reason);
        }
        if record.reason.is_some() || is_failure(record) {
            self.ration.note(&self.recent, record.reason, Some(record));
        }
    }

    #[cold]
    fn record_first(&self, by_key: &mut SeriesMap, key: u64, record: &ExchangeRecord<'_>) {
        let labels = self.table.intern(record);
        let series = {
            let mut all = lock(&self.counters.series);
            match all.iter().find(|series| Arc::ptr_eq(&series.labels, &labels)) {
                Some(known) => Arc::clone(known),
                None => {
                    let new = Arc::new(Series::new(labels));
                    all.push(Arc::clone(&new));
                    new
                }
            }
        };
        series.record(record);
        // Deploys and name resolution create new endpoint ids; old keys must not accumulate.
        by_key.retain(|_, series| !series.is_retired());
        if by_key.len() > self.table.max {
            by_key.clear();
        }
        by_key.insert(key, series);
    }
}

fn key(record: &ExchangeRecord<'_>) -> u64 {
    let route = record.route.map_or(u32::MAX, |r| r.0);
    let endpoint = record.endpoint.map_or(u32::MAX, |e| e.0);
    u64::from(route) << 32 | u64::from(endpoint)
}

/// Hashes a key of two small numbers that no peer chooses; a keyed hash would cost more and protect nothing.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        // The table uses bits from both ends of the word; the fold mixes in the high half of the product.
        let wide = u128::from(self.0 ^ n ^ 0x517c_c1b7_2722_0a95) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
