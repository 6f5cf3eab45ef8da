//! Where a worker's sampled exchanges are sent.

use sluice_core::spans::Tracer;

use super::Worker;

impl Worker {
    /// Sets the destination of sampled exchanges.
    pub fn with_tracer(self, tracer: Option<Tracer>) -> Self {
        Self { tracer, ..self }
    }

    /// The destination of sampled exchanges, if any are traced.
    pub(crate) fn tracer(&self) -> Option<&Tracer> {
        self.tracer.as_ref()
    }
}
