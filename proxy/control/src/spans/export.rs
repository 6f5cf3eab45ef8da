//! The exporter: collects waiting spans, periodically or when a batch is full, and sends them. One request at a time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use sluice_config as config;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep_until, timeout};

use sluice_core::metrics::{Metrics, SpanFate};
use sluice_core::spans::{Buffered, Tracer, buffer};

use super::{collector, encode};

/// Maximum number of times that the same spans are sent.
const ATTEMPTS_MAX: u32 = 5;
/// Maximum delay between two attempts, and maximum Retry-After of a collector.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How long shutdown waits for the last spans.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// The control plane's handle on tracing.
pub(crate) struct Tracing {
    tracer: Tracer,
    /// Taken when the exporter starts.
    exporter: Mutex<Option<Exporter>>,
    flush: mpsc::Sender<oneshot::Sender<()>>,
}

impl Tracing {
    /// Prepares tracing as configured.
    pub(crate) fn new(config: &config::Tracing, metrics: &Arc<Metrics>) -> Self {
        let batch = config.batch_spans_max.min(config.buffer_spans_max);
        let (tracer, buffered) = buffer(config.buffer_spans_max, batch, metrics);
        let (flush, flushes) = mpsc::channel(1);
        let exporter = Exporter { config: config.clone(), buffered, flushes, pending: None, failing: false };
        Self { tracer, exporter: Mutex::new(Some(exporter)), flush }
    }

    /// The handle with which a worker records exchanges.
    pub(crate) fn tracer(&self) -> Tracer {
        self.tracer.clone()
    }

    /// Sends spans until dropped. Must run once, on a runtime with IO and time.
    pub(crate) fn run(&self) -> impl Future<Output = ()> + use<> {
        let exporter = self.exporter.lock().unwrap_or_else(PoisonError::into_inner).take();
        async {
            if let Some(exporter) = exporter {
                exporter.run().await;
            }
        }
    }

    /// Sends all waiting spans once, within two seconds.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        let flushing = async {
            if self.flush.send(done).await.is_ok() {
                // An error means that the exporter has ended, so nothing is left to wait for.
                let _ = flushed.await;
            }
        };
        if timeout(FLUSH_TIMEOUT, flushing).await.is_err() {
            tracing::warn!("the collector did not accept the last spans in time");
        }
    }
}

struct Exporter {
    config: config::Tracing,
    buffered: Buffered,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    /// Spans to send again.
    pending: Option<Batch>,
    /// The last request failed, and this was logged.
    failing: bool,
}

/// Spans that are being sent.
struct Batch {
    body: Bytes,
    spans: usize,
    attempts: u32,
    /// Earliest time of the next attempt.
    due: Instant,
}

impl Exporter {
    async fn run(mut self) {
        let mut ticks = interval(Duration::from_millis(self.config.export_interval_ms));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while let Some(flush) = self.wait(&mut ticks).await {
            self.send(flush.is_some()).await;
            if let Some(done) = flush {
                // The requester may have gone.
                let _ = done.send(());
            }
        }
    }

    /// Waits until there is something to do; `None` when all handles are dropped.
    async fn wait(&mut self, ticks: &mut Interval) -> Option<Option<oneshot::Sender<()>>> {
        let Self { buffered, flushes, pending, .. } = self;
        let due = async {
            match pending {
                Some(batch) => sleep_until(batch.due).await,
                None => tokio::select! {
                    _ = ticks.tick() => {}
                    () = buffered.wait_for_batch() => {}
                },
            }
        };
        tokio::select! {
            () = due => Some(None),
            flush = flushes.recv() => flush.map(Some),
        }
    }

    /// Sends waiting spans in batches, as long as they are full; all of them if it is the last time.
    async fn send(&mut self, last: bool) {
        while let Some(batch) = self.pending.take().or_else(|| self.next()) {
            self.try_to_send(batch, last).await;
            if self.pending.is_some() || !(last || self.buffered.has_batch()) {
                return;
            }
        }
    }

    fn next(&self) -> Option<Batch> {
        let records = self.buffered.take();
        let spans = records.iter().map(|record| record.spans()).sum();
        let body = || encode::request(&self.config.service_name, &records).encode_to_vec().into();
        (spans > 0).then(|| Batch { body: body(), spans, attempts: 0, due: Instant::now() })
    }

    async fn try_to_send(&mut self, mut batch: Batch, last: bool) {
        let config::Tracing { otlp_endpoint, export_timeout_ms, .. } = &self.config;
        let sent = collector::send(otlp_endpoint, batch.body.clone(), *export_timeout_ms).await;
        batch.attempts += 1;
        match sent {
            Ok(rejected) => {
                let rejected = usize::try_from(rejected).unwrap_or(usize::MAX).min(batch.spans);
                self.buffered.settle(batch.spans - rejected, SpanFate::Exported);
                self.buffered.settle(rejected, SpanFate::Rejected);
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the collector accepts spans again");
                }
            }
            Err(refused) => {
                // Logged once, not for each batch.
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(error = %refused, endpoint = %otlp_endpoint, "cannot send spans");
                }
                if last || batch.attempts >= ATTEMPTS_MAX || !refused.is_passing() {
                    self.buffered.settle(batch.spans, SpanFate::Failed);
                } else {
                    batch.due = Instant::now() + self.pause(batch.attempts, refused.retry_after());
                    self.pending = Some(batch);
                }
            }
        }
    }

    /// Doubles from one interval on, unless the collector requests a delay.
    fn pause(&self, attempts: u32, wish: Option<Duration>) -> Duration {
        let own = Duration::from_millis(self.config.export_interval_ms) * (1 << (attempts - 1).min(8));
        wish.unwrap_or(own).min(PAUSE_MAX)
    }
}
