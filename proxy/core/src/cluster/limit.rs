//! How many requests an endpoint may have under way at this moment.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use sluice_config::{AutoLimit, MaxInFlight};

use crate::clock;
use crate::queue::{Gradient, Sample};

/// The limit, and its controller if the limit is automatic.
pub(super) struct Limit {
    now: AtomicU32,
    /// Apart, because every response writes it and every request reads what is beside it.
    auto: Option<Box<Auto>>,
}

struct Auto {
    gradient: Mutex<Gradient>,
    base_us: AtomicU64,
}

/// What one response shows about how busy its endpoint is.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSample {
    /// When its request was sent.
    pub sent: Instant,
    /// From then to the first byte.
    pub latency: Duration,
    /// Whether the endpoint closes the connection after it.
    pub closes: bool,
}

impl Limit {
    pub(super) fn new(limit: MaxInFlight, bounds: AutoLimit) -> Self {
        let gradient = || Gradient::new(bounds, clock::now_ms());
        match limit {
            MaxInFlight::Off => Self { now: AtomicU32::new(u32::MAX), auto: None },
            MaxInFlight::Fixed(requests) => Self { now: AtomicU32::new(requests), auto: None },
            MaxInFlight::Auto => {
                let gradient = gradient();
                let now = AtomicU32::new(gradient.limit());
                let auto = Auto { gradient: Mutex::new(gradient), base_us: AtomicU64::new(0) };
                Self { now, auto: Some(Box::new(auto)) }
            }
        }
    }

    pub(super) fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    pub(super) fn base_us(&self) -> Option<u64> {
        self.auto.as_ref().map(|auto| auto.base_us.load(Relaxed))
    }

    /// Returns true if the limit has grown. Counts the requests in flight only if that is of use.
    pub(super) fn observe(&self, sample: ServiceSample, in_flight: impl FnOnce() -> u32) -> bool {
        let ServiceSample { sent, latency, closes } = sample;
        let Some(auto) = &self.auto else {
            return false;
        };
        // A sample is not worth waiting for another worker.
        let mut gradient = match auto.gradient.try_lock() {
            Ok(gradient) => gradient,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let now_ms = clock::now_ms();
        let ago_ms = u64::try_from(sent.elapsed().as_millis()).unwrap_or(u64::MAX);
        let latency_us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let sent_ms = now_ms.saturating_sub(ago_ms);
        let sample = Sample { sent_ms, latency_us, in_flight: in_flight(), closes };
        let changed = gradient.observe(sample, now_ms);
        auto.base_us.store(gradient.base_us(), Relaxed);
        changed && gradient.limit() > self.now.swap(gradient.limit(), Relaxed)
    }
}
