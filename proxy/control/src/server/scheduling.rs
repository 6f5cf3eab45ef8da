//! The scheduling policy of the workers.

use sluice_config::WorkerScheduling;
use sluice_kernel::scheduling::Batch;

/// The policy of workers that are started while this lives.
pub(super) struct Scheduling {
    batch: Option<Batch>,
    word: &'static str,
}

impl Scheduling {
    /// Applies the wanted policy if the kernel allows it; logs a failure.
    pub(super) fn begin(wanted: WorkerScheduling) -> Self {
        let (batch, word) = match wanted {
            WorkerScheduling::Normal => (None, "normal"),
            WorkerScheduling::Batch => match Batch::begin() {
                Ok(Some(batch)) => (Some(batch), "batch"),
                Ok(None) => (None, "as the process was started"),
                Err(error) => {
                    let hint = "allow sched_setscheduler, or write worker_scheduling: normal";
                    tracing::warn!(%error, hint, "cannot schedule workers as batch threads");
                    (None, "normal")
                }
            },
        };
        Self { batch, word }
    }

    /// Whether a woken worker does not preempt its waker.
    pub(super) fn is_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// The policy as it is logged.
    pub(super) fn word(&self) -> &'static str {
        self.word
    }
}
