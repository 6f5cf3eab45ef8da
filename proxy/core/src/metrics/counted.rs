//! Counts open objects as the number begun minus the number ended.

use std::rc::Rc;

use super::{Event, WorkerRecorder};

/// Something that is open for as long as this value lives.
pub struct Counted {
    metrics: Rc<WorkerRecorder>,
    /// `None` once another guard counts the end.
    ended: Option<Event>,
}

impl Counted {
    /// Counts `begun` now, and `ended` when it is dropped.
    pub fn new(metrics: &Rc<WorkerRecorder>, begun: Event, ended: Event) -> Self {
        metrics.count(begun);
        Self::resume(metrics, ended)
    }

    /// Takes over from a guard that was handed on.
    pub fn resume(metrics: &Rc<WorkerRecorder>, ended: Event) -> Self {
        Self { metrics: Rc::clone(metrics), ended: Some(ended) }
    }

    /// Leaves the end to be counted by another guard.
    pub fn hand_on(mut self) {
        self.ended = None;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(ended) = self.ended {
            self.metrics.count(ended);
        }
    }
}
