//! The queue between the workers and the exporter: limited in spans, and non-blocking.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};

use tokio::sync::Notify;

use super::Record;
use super::record::spans;
use crate::metrics::{Metrics, SpanFate};

/// The counters of both ends.
struct Shared {
    /// Spans that wait or are being sent.
    spans: AtomicUsize,
    spans_max: usize,
    /// The number of spans that is worth sending before the timer fires.
    batch: usize,
    enough: Notify,
    metrics: Arc<Metrics>,
}

/// The sending end. Each worker has its own.
#[derive(Clone)]
pub struct Tracer {
    shared: Arc<Shared>,
    // Unbounded, and therefore without a lock: `spans` is the limit.
    queue: Sender<Record>,
}

/// The receiving end.
pub struct Buffered {
    shared: Arc<Shared>,
    queue: Receiver<Record>,
}

/// Creates both ends of a buffer of `spans_max` spans; `batch` of them wake the exporter.
pub fn buffer(spans_max: usize, batch: usize, metrics: &Arc<Metrics>) -> (Tracer, Buffered) {
    let shared = Arc::new(Shared {
        spans: AtomicUsize::new(0),
        spans_max,
        batch,
        enough: Notify::new(),
        metrics: Arc::clone(metrics),
    });
    let (sender, receiver) = mpsc::channel();
    (Tracer { shared: Arc::clone(&shared), queue: sender }, Buffered { shared, queue: receiver })
}

impl Tracer {
    /// Puts an exchange into the buffer if there is room; the record is built only then.
    pub fn offer(&self, has_upstream: bool, make: impl FnOnce() -> Record) {
        let Shared { spans: buffered, spans_max, batch, enough, metrics } = &*self.shared;
        let spans = spans(has_upstream);
        let before = buffered.fetch_add(spans, Relaxed);
        if before + spans > *spans_max {
            buffered.fetch_sub(spans, Relaxed);
            metrics.count_spans(SpanFate::BufferFull, spans);
        } else if self.queue.send(make()).is_err() {
            // Happens only while the process exits.
            buffered.fetch_sub(spans, Relaxed);
            metrics.count_spans(SpanFate::Failed, spans);
        } else if before < *batch && before + spans >= *batch {
            enough.notify_one();
        }
    }
}

impl Buffered {
    /// The oldest exchanges, up to a batch of spans.
    pub fn take(&self) -> Vec<Record> {
        let mut taken = Vec::new();
        let mut spans = 0;
        // An exchange has at most two spans.
        while spans + 2 <= self.shared.batch.max(2)
            && let Ok(record) = self.queue.try_recv()
        {
            spans += record.spans();
            taken.push(record);
        }
        taken
    }

    /// Releases spans that were taken, and counts their fate.
    pub fn settle(&self, spans: usize, fate: SpanFate) {
        self.shared.spans.fetch_sub(spans, Relaxed);
        self.shared.metrics.count_spans(fate, spans);
    }

    /// Waits for a batch. A batch that was complete before may already have been signalled.
    pub async fn wait_for_batch(&self) {
        self.shared.enough.notified().await;
    }

    /// Whether a whole batch is waiting.
    pub fn has_batch(&self) -> bool {
        self.shared.spans.load(Relaxed) >= self.shared.batch
    }
}
