//! Where a worker's sampled exchanges go.

use sluice_core::spans::Tracer;

use super::Worker;

impl Worker {
    /// Has sampled exchanges traced.
    pub fn with_tracer(self, tracer: Option<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// What sampled exchanges are handed over to, if any are traced.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }
}
