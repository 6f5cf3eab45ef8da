//! How the workers are scheduled.

use sluice_config::WorkerScheduling;
use sluice_kernel::scheduling::Batch;

/// What holds for workers that are started while this lives.
pub(super) struct Scheduling {
    batch: Option<Batch>,
    word: &'static str,
}

impl Scheduling {
    /// As wanted, where the kernel lets us; says so if not.
    pub(super) fn begin(wanted: WorkerScheduling) -> Self {
        let (batch, word) = match wanted {
            WorkerScheduling::Normal => (None, "normal"),
            WorkerScheduling::Batch => match Batch::begin() {
                Ok(Some(batch)) => (Some(batch), "batch"),
                Ok(None) => (None, "as the process was started"),
                Err(error) => {
                    let hint = "allow sched_setscheduler, or write worker_scheduling: normal";
                    tracing::warn!(%error, hint, "workers cannot be scheduled as batch threads");
                    (None, "normal")
                }
            },
        };
        Self { batch, word }
    }

    /// Whether workers preempt nobody when they are woken.
    pub(super) fn is_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// As the log says it.
    pub(super) fn word(&self) -> &'static str {
        self.word
    }
}
