//! Counts of the spans of sampled exchanges, by fate.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::encode::count;

/// The fate of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanFate {
    /// The collector accepted them.
    Exported,
    /// The buffer was full.
    BufferFull,
    /// They could not be sent, or the collector responded with an error.
    Failed,
    /// The collector accepted other spans of the same request, but not these.
    Rejected,
}

const FATES: usize = SpanFate::Rejected as usize + 1;

/// Spans by fate. Usually written by the control thread; workers write only when a buffer is full.
#[derive(Debug, Default)]
pub(super) struct SpanCounts([AtomicU64; FATES]);

impl SpanCounts {
    pub(super) fn add(&self, fate: SpanFate, spans: usize) {
        self.0[fate as usize].fetch_add(spans as u64, Relaxed);
    }

    pub(super) fn of(&self, fate: SpanFate) -> u64 {
        self.0[fate as usize].load(Relaxed)
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let kind = MetricType::Counter;
        let help = "Spans of exchanges that the collector accepted.";
        let mut exported = encoder.encode_descriptor("sluice_spans_exported", help, None, kind)?;
        count(&mut exported, self.of(SpanFate::Exported))?;
        let help = "Spans of exchanges that were lost, by reason.";
        let mut family = encoder.encode_descriptor("sluice_spans_dropped", help, None, kind)?;
        for (reason, fate) in [
            ("buffer_full", SpanFate::BufferFull),
            ("failed", SpanFate::Failed),
            ("rejected", SpanFate::Rejected),
        ] {
            count(&mut family.encode_family(&[("reason", reason)])?, self.of(fate))?;
        }
        Ok(())
    }
}
