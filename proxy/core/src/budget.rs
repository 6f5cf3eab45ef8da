//! Counts the bytes of buffered bodies over all workers: two counters, and shares that are returned on drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The bytes that are buffered now.
#[derive(Debug, Default)]
pub struct Budget {
    memory_bytes: AtomicU64,
    spool_bytes: AtomicU64,
    files_made: AtomicU64,
}

/// Where bytes are buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// In memory.
    Memory,
    /// In a file.
    Spool,
}

impl Budget {
    /// Bytes buffered in this medium.
    pub fn bytes(&self, medium: Medium) -> u64 {
        self.counter(medium).load(Relaxed)
    }

    /// Spool files created so far.
    pub fn files_made(&self) -> u64 {
        self.files_made.load(Relaxed)
    }

    /// Counts a created file.
    pub fn count_file(&self) {
        self.files_made.fetch_add(1, Relaxed);
    }

    fn counter(&self, medium: Medium) -> &AtomicU64 {
        match medium {
            Medium::Memory => &self.memory_bytes,
            Medium::Spool => &self.spool_bytes,
        }
    }
}

/// One body's share of the buffered bytes.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    medium: Medium,
    bytes: u64,
}

impl Share {
    /// An empty share.
    pub fn new(budget: &Arc<Budget>, medium: Medium) -> Self {
        Self { budget: Arc::clone(budget), medium, bytes: 0 }
    }

    /// Adds `bytes` if the total then does not exceed `max`. The caller passes the maximum because it may change while
    /// bodies are buffered.
    pub fn grow(&mut self, bytes: u64, max: u64) -> bool {
        let more = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= max);
        let taken = self.budget.counter(self.medium).fetch_update(Relaxed, Relaxed, more).is_ok();
        if taken {
            self.bytes += bytes;
        }
        taken
    }

    /// Returns the whole share.
    pub fn release(&mut self) {
        self.budget.counter(self.medium).fetch_sub(self.bytes, Relaxed);
        self.bytes = 0;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_stop_at_the_maximum_and_are_returned() {
        let budget = Arc::<Budget>::default();
        let mut one = Share::new(&budget, Medium::Memory);
        let mut other = Share::new(&budget, Medium::Memory);
        assert!(one.grow(60, 100));
        assert!(!other.grow(41, 100));
        assert!(other.grow(40, 100));
        assert!(!one.grow(1, 100) && one.grow(0, 100) && !one.grow(u64::MAX, u64::MAX));
        assert_eq!((budget.bytes(Medium::Memory), budget.bytes(Medium::Spool)), (100, 0));
        drop(one);
        assert_eq!(budget.bytes(Medium::Memory), 40);
        other.release();
        drop(other);
        assert_eq!(budget.bytes(Medium::Memory), 0);
    }

    #[test]
    fn a_lowered_maximum_admits_no_more_bytes() {
        let budget = Arc::<Budget>::default();
        let mut share = Share::new(&budget, Medium::Spool);
        assert!(share.grow(100, 100) && !share.grow(1, 50));
        drop(share);
        assert!(Share::new(&budget, Medium::Spool).grow(50, 50));
    }
}
