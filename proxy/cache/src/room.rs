//! Memory for bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// How much room is taken at a time, in bytes.
const STEP_BYTES: u64 = 64 * 1024;

/// Room for a body, from its first byte until nobody has it any more.
#[derive(Debug)]
pub struct Room {
    taken: Arc<AtomicU64>,
    bytes: u64,
    /// Of one body, and of all.
    limits: (u64, u64),
}

impl Room {
    /// No room yet, within the limits of one body and of all.
    pub(crate) fn new(taken: &Arc<AtomicU64>, limits: (u64, u64)) -> Self {
        Self { taken: Arc::clone(taken), bytes: 0, limits }
    }

    /// Makes room for so many bytes in all; false if that is too much.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let (one, all) = self.limits;
        if bytes <= self.bytes || bytes > one {
            return bytes <= one;
        }
        // In steps: each is an operation on memory that all workers share.
        let wanted = bytes.next_multiple_of(STEP_BYTES).min(one);
        let more = wanted.saturating_sub(self.bytes);
        let fits = |taken: u64| taken.checked_add(more).filter(|taken| *taken <= all);
        let fits = self.taken.fetch_update(SeqCst, SeqCst, fits).is_ok();
        if fits {
            self.bytes = wanted;
        }
        fits
    }

    /// Gives back what is more than so many bytes.
    pub fn fit(&mut self, bytes: u64) {
        self.taken.fetch_sub(self.bytes.saturating_sub(bytes), SeqCst);
        self.bytes = self.bytes.min(bytes);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, SeqCst);
    }
}
