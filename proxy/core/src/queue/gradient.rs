//! An automatic limit: the gradient controller of Envoy's adaptive concurrency filter
//! (`envoy/extensions/filters/http/adaptive_concurrency`), which is based on Netflix's concurrency-limits.
//!
//! From time to time the limit is lowered to its minimum, and the mean latency of some responses is taken as the
//! latency without load. Then, window by window, the limit is multiplied by the ratio of that latency to the mean
//! latency of the window, and some headroom is added.
//!
//! Envoy uses the median, sluice the mean: a server that serves half of its connections at once and lets the others
//! wait looks idle by its median, but not by its mean (Little's law). The slowest fiftieth is left out, so that a
//! single outlier changes little. Pure: time is passed in as milliseconds.
//!
//! A server may also say that it has too much, by closing connections (see `closings`). The limit then stays below the
//! one at which it did, and comes a little nearer with each measurement.

use sluice_config::AutoLimit;

use super::closings::Closings;

/// Responses per measurement of the latency without load. A measurement lasts at least as long as a window.
const MEASURE_SAMPLES: usize = 50;
/// When the first measurement is repeated, because a server that has just started is slow. The interval then doubles
/// until it reaches the configured one.
const MEASURE_AGAIN_MS: u64 = 1000;
/// A window lasts at least this long...
const WINDOW_MS: u64 = 250;
/// ...and this many times the latency without load. A shorter window would miss the slow responses, and responses of a
/// server that serves each connection ten requests in a row (Puma) arrive late.
const WINDOW_LATENCIES: u64 = 16;
/// ...and has at least this many responses.
const WINDOW_SAMPLES_MIN: usize = 20;
/// The maximum number of responses kept per window; their mean is accurate enough.
const WINDOW_SAMPLES_MAX: usize = 1000;
/// The ratio to the latency without load that does not yet count as queueing, because latencies vary.
const TOLERANCE: f64 = 1.25;
/// The headroom, in square roots of the limit. Envoy uses 1; 0.5 finds the knee as well, and settles at four or five
/// instead of six for four threads of Puma, where each additional request costs more.
const HEADROOM: f64 = 0.5;
/// What is left of a limit at which the endpoint closes connections, and by how much it may grow again after each
/// measurement.
const CEILING: (f64, f64) = (0.875, 1.5);
/// One step at most halves or doubles the limit.
const GRADIENT: (f64, f64) = (0.5, 2.0);

/// One response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// When its request was sent.
    pub(crate) sent_ms: u64,
    /// From then to the first byte, in microseconds.
    pub(crate) latency_us: u64,
    /// Requests under way during that time, including this one.
    pub(crate) in_flight: u32,
    /// Whether the endpoint closes the connection after it.
    pub(crate) closes: bool,
}

/// The state of one endpoint's limit.
#[derive(Debug)]
pub(crate) struct Gradient {
    bounds: AutoLimit,
    limit: f64,
    /// The limit does not grow beyond it: just above, the endpoint closed connections.
    ceiling: f64,
    closings: Closings,
    /// Latency without load, in microseconds; 0 before it is known.
    base_us: u64,
    /// When the current measurement started, if there is one.
    measuring_since_ms: Option<u64>,
    measured_at_ms: u64,
    /// The delay between the end of a measurement and the next one.
    measure_after_ms: u64,
    /// Latencies in the window, in microseconds.
    window: Vec<u64>,
    window_since_ms: u64,
    /// The maximum of requests under way in the window.
    peak: u32,
}

impl Gradient {
    /// Starts with a measurement.
    pub(crate) fn new(bounds: AutoLimit, now_ms: u64) -> Self {
        Self {
            bounds,
            limit: f64::from(bounds.min),
            ceiling: f64::from(bounds.max),
            closings: Closings::default(),
            base_us: 0,
            measuring_since_ms: Some(now_ms),
            measured_at_ms: now_ms,
            measure_after_ms: MEASURE_AGAIN_MS.min(bounds.measure_interval_ms),
            window: Vec::new(),
            window_since_ms: now_ms,
            peak: 0,
        }
    }

    /// The current limit.
    pub(crate) fn limit(&self) -> u32 {
        match self.measuring_since_ms {
            Some(_) => self.bounds.min,
            // Both bounds fit.
            None => self.limit as u32,
        }
    }

    /// Latency without load, in microseconds; 0 before it is known.
    pub(crate) fn base_us(&self) -> u64 {
        self.base_us
    }

    /// Records a response. Returns true if the current limit changed.
    pub(crate) fn observe(&mut self, sample: Sample, now_ms: u64) -> bool {
        let before = self.limit();
        // A request sent before the measurement started saw the earlier load.
        if self.measuring_since_ms.is_some_and(|since_ms| sample.sent_ms < since_ms) {
            return false;
        }
        if self.window.len() < WINDOW_SAMPLES_MAX {
            self.window.push(sample.latency_us);
        }
        self.peak = self.peak.max(sample.in_flight);
        self.closings.count(sample.closes);
        match self.measuring_since_ms {
            Some(since_ms) if self.is_full(MEASURE_SAMPLES, now_ms.saturating_sub(since_ms)) => {
                self.end_measurement(now_ms);
            }
            // At the minimum only the next measurement tells whether the endpoint now closes anyway, and it needs windows.
            None if self.closings.are_too_many(before) && before > self.bounds.min => self.recede(now_ms),
            None if self.is_full(WINDOW_SAMPLES_MIN, now_ms.saturating_sub(self.window_since_ms)) => {
                self.end_window(now_ms);
            }
            _ => return false,
        }
        self.limit() != before
    }

    fn is_full(&self, samples_min: usize, lasted_ms: u64) -> bool {
        let least_ms = WINDOW_MS.max(self.base_us.saturating_mul(WINDOW_LATENCIES) / 1000);
        self.window.len() >= samples_min && lasted_ms >= least_ms
    }

    /// Stays below a limit at which the endpoint closes connections.
    fn recede(&mut self, now_ms: u64) {
        let lower = (self.limit * CEILING.0).min(self.limit.floor() - 1.0).floor();
        self.ceiling = lower.max(f64::from(self.bounds.min));
        self.limit = self.ceiling;
        self.take_mean();
        self.window_since_ms = now_ms;
    }

    fn end_measurement(&mut self, now_ms: u64) {
        self.closings.end_measurement();
        self.ceiling = (self.ceiling * CEILING.1).min(f64::from(self.bounds.max));
        self.base_us = self.take_mean().max(1);
        self.measuring_since_ms = None;
        self.measured_at_ms = now_ms;
        self.window_since_ms = now_ms;
    }

    fn end_window(&mut self, now_ms: u64) {
        let peak = self.peak;
        let mean_us = self.take_mean().max(1);
        self.window_since_ms = now_ms;
        let gradient = (self.base_us as f64 * TOLERANCE / mean_us as f64).clamp(GRADIENT.0, GRADIENT.1);
        let next = self.limit * gradient + self.limit.sqrt() * HEADROOM;
        // Without this condition, a limit that is never reached would grow untested.
        let may_grow = !self.closings.end_window() && peak >= self.limit as u32;
        if next < self.limit || may_grow {
            let before = self.limit();
            self.limit = next.clamp(f64::from(self.bounds.min), self.ceiling);
            if self.limit() > before {
                // What a lower limit saw says nothing about this one.
                self.closings.restart();
            }
        }
        if now_ms.saturating_sub(self.measured_at_ms) >= self.measure_after_ms {
            self.measure_after_ms =
                self.measure_after_ms.saturating_mul(2).min(self.bounds.measure_interval_ms);
            self.measuring_since_ms = Some(now_ms);
            self.closings.restart();
        }
    }

    fn take_mean(&mut self) -> u64 {
        self.peak = 0;
        let slow = self.window.len().div_ceil(50);
        let kept = self.window.len() - slow;
        if kept > 0 {
            self.window.select_nth_unstable(kept);
        }
        let sum_us = self.window[..kept].iter().fold(0, |sum: u64, us| sum.saturating_add(*us));
        self.window.clear();
        sum_us / kept.max(1) as u64
    }
}
