//! The current document, for many readers: sampled once a second, serialised once for all of them.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use sluice_core::clock;
use sluice_core::cluster::Cluster;
use sluice_core::metrics::Metrics;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use super::document::Fixed;
use super::sampler::{Sample, Sampler};
use crate::fleet::SharedBoard;

/// Time between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// The sources of the document. Used on the control thread.
pub(crate) struct Sources {
    /// The counters.
    pub(crate) metrics: Arc<Metrics>,
    /// Set when a drain starts.
    pub(crate) draining: Arc<AtomicBool>,
    /// The current clusters.
    pub(crate) clusters: Box<dyn Fn() -> Vec<Arc<Cluster>> + Send + Sync>,
    /// The fleet, if there is one.
    pub(crate) fleet: SharedBoard,
    /// What rarely changes, including the effective configuration.
    pub(crate) fixed: Box<dyn Fn() -> Fixed + Send + Sync>,
}

/// The current document.
pub(crate) struct Live {
    sources: Sources,
    sampler: Mutex<Sampler>,
    events: watch::Sender<Bytes>,
    read_lately: AtomicBool,
}

impl Live {
    /// Takes no sample yet; [`run`] does.
    pub(crate) fn new(sources: Sources) -> Arc<Self> {
        let sampler = Mutex::new(Sampler::new(Instant::now()));
        Arc::new(Self {
            sources,
            sampler,
            events: watch::Sender::new(Bytes::new()),
            read_lately: AtomicBool::new(true),
        })
    }

    /// The whole document as JSON.
    pub(crate) fn json(&self) -> String {
        self.read_lately.store(true, Relaxed);
        let document = self.lock().whole((self.sources.fixed)());
        serde_json::to_string(&document).expect("text and numbers can be written")
    }

    /// The first event of a stream, which is complete.
    pub(crate) fn first_event(&self) -> Bytes {
        Bytes::from(format!("event: whole\ndata: {}\n\n", self.json()))
    }

    /// The following events, each with the changes. A slow reader misses some and gets the last one.
    pub(crate) fn follow(&self) -> watch::Receiver<Bytes> {
        self.events.subscribe()
    }

    fn sample(&self) {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let sample = Sample {
            now: Instant::now(),
            now_ms: clock::now_ms(),
            time_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            draining: self.sources.draining.load(Relaxed),
            tally: self.sources.metrics.tally(),
            errors: self.sources.metrics.recent_errors(),
            clusters: (self.sources.clusters)(),
            // Looking at it costs the store something.
            fleet: self.sources.fleet.as_ref().filter(|_| self.is_read()).map(|board| board.look()),
        };
        let mut sampler = self.lock();
        sampler.take(sample);
        // Serialised only if there is a reader.
        if self.events.receiver_count() > 0 {
            let json = serde_json::to_string(sampler.changed()).expect("text and numbers can be written");
            self.events.send_replace(Bytes::from(format!("event: change\ndata: {json}\n\n")));
        }
    }

    /// Whether somebody reads the events, or has read the document lately.
    fn is_read(&self) -> bool {
        self.events.receiver_count() > 0 || self.read_lately.swap(false, Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Sampler> {
        // A panic in between leaves a document that the next sample replaces.
        self.sampler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a sample each second, without end. Needs a tokio runtime.
pub(crate) async fn run(live: Arc<Live>) -> Infallible {
    let mut tick = tokio::time::interval(INTERVAL);
    // After a pause, samples in quick succession would show wrong rates.
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        live.sample();
    }
}
