//! How many requests may be sent again because of a response: a part of all, so that an outage is not made worse.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// What a retry takes; a request adds the percentage.
const RETRY: i64 = 100;
/// Retries that may come at once after a calm.
const BURST: i64 = 10;

/// The budget of a cluster, shared by the workers.
pub(super) struct RetryBudget(AtomicI64);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(AtomicI64::new(BURST * RETRY))
    }
}

impl RetryBudget {
    /// Counts a request.
    pub(super) fn earn(&self, percent: u32) {
        let more = |now: i64| (now < BURST * RETRY).then(|| (now + i64::from(percent)).min(BURST * RETRY));
        // Full is no error.
        let _ = self.0.fetch_update(Relaxed, Relaxed, more);
    }

    /// Takes a retry, if there is one left.
    pub(super) fn take(&self) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |now| (now >= RETRY).then(|| now - RETRY)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_part_of_the_requests() {
        let budget = RetryBudget::default();
        let spend = |budget: &RetryBudget| (0..100).filter(|_| budget.take()).count();
        assert_eq!(spend(&budget), 10);
        (0..9).for_each(|_| budget.earn(20));
        assert_eq!(spend(&budget), 1);
        (0..1000).for_each(|_| budget.earn(20));
        assert_eq!(spend(&budget), 10, "no more than at first");
    }
}
