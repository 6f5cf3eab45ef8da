//! What was served since the others of a fleet were told.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Most clients between two reports; further ones are not reported, so that others do not count them.
const CLIENTS_MAX: usize = 8192;
/// Parts with a lock each, so that workers rarely meet.
const PARTS: usize = 16;

/// Requests that were served, by the keys of clients.
#[derive(Default)]
pub(super) struct ServedCounts([Mutex<HashMap<u64, u32>>; PARTS]);

impl ServedCounts {
    /// Counts one.
    pub(super) fn count(&self, key: u64) {
        let part = &self.0[key as usize % PARTS];
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        if part.len() < CLIENTS_MAX / PARTS || part.contains_key(&key) {
            let count = part.entry(key).or_default();
            *count = count.saturating_add(1);
        }
    }

    /// What was counted since the last time, the most first, at most some clients.
    pub(super) fn take(&self, most: usize) -> Vec<(u64, u32)> {
        let take = |part: &Mutex<HashMap<u64, u32>>| {
            std::mem::take(&mut *part.lock().unwrap_or_else(PoisonError::into_inner))
        };
        let mut taken: Vec<_> = self.0.iter().flat_map(take).collect();
        taken.sort_unstable_by_key(|(key, count)| (std::cmp::Reverse(*count), *key));
        taken.truncate(most);
        taken
    }
}
