//! What the bodies that are held take, over all workers: two counters, and shares that are given back when dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is held at this moment.
#[derive(Debug, Default)]
pub struct Budget {
    memory_bytes: AtomicU64,
    spool_bytes: AtomicU64,
    files_made: AtomicU64,
}

/// Where bytes are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// In memory.
    Memory,
    /// In a file.
    Spool,
}

impl Budget {
    /// Bytes that are held there.
    pub fn bytes(&self, medium: Medium) -> u64 {
        self.counter(medium).load(Relaxed)
    }

    /// Files made so far.
    pub fn files_made(&self) -> u64 {
        self.files_made.load(Relaxed)
    }

    /// Counts a file.
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

/// One body's part of what is held.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    medium: Medium,
    bytes: u64,
}

impl Share {
    /// Nothing yet.
    pub fn new(budget: &Arc<Budget>, medium: Medium) -> Self {
        Self { budget: Arc::clone(budget), medium, bytes: 0 }
    }

    /// Takes `bytes` more, if no more than `max` are held in all then. The maximum is the caller's, for it may change
    /// while bodies are held.
    pub fn grow(&mut self, bytes: u64, max: u64) -> bool {
        let more = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= max);
        let taken = self.budget.counter(self.medium).fetch_update(Relaxed, Relaxed, more).is_ok();
        if taken {
            self.bytes += bytes;
        }
        taken
    }

    /// Gives back what it has.
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
    fn shares_end_at_the_bound_and_come_back() {
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
    fn a_bound_that_was_lowered_lets_nothing_more_in() {
        let budget = Arc::<Budget>::default();
        let mut share = Share::new(&budget, Medium::Spool);
        assert!(share.grow(100, 100) && !share.grow(1, 50));
        drop(share);
        assert!(Share::new(&budget, Medium::Spool).grow(50, 50));
    }
}
