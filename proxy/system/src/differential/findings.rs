//! The results of the cases of one run, collected from several threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, bail};

use super::report::SHOWN_MAX;

/// Concurrent cases.
const CLIENTS: usize = 4;

/// Faults, and counts of other results.
#[derive(Default)]
pub(super) struct Findings {
    /// How often each kind occurred, and the first one in full.
    faults: Mutex<BTreeMap<String, (u64, String)>>,
    counts: Mutex<BTreeMap<String, u64>>,
}

impl Findings {
    /// Adds a fault. Its kind is its first line without numbers: one example of each is shown.
    pub(super) fn fault(&self, name: &str, text: &str) {
        let first = text.lines().next().unwrap_or_default();
        let kind = first.replace(|c: char| c.is_ascii_digit(), "");
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.entry(kind).or_insert_with(|| (0, format!("{name}: {text}"))).0 += 1;
    }

    pub(super) fn count(&self, what: &str, by: u64) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(what.to_owned()).or_default() += by;
    }

    /// The counts as a summary.
    ///
    /// # Errors
    /// When there are faults; with the first of them.
    pub(super) fn verdict(self) -> Result<String> {
        let faults = self.faults.into_inner().unwrap_or_else(PoisonError::into_inner);
        let counts = self.counts.into_inner().unwrap_or_else(PoisonError::into_inner);
        let counts: Vec<String> = counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
        if faults.is_empty() {
            return Ok(counts.join(", "));
        }
        let count: u64 = faults.values().map(|(count, _)| count).sum();
        let shown: Vec<String> =
            faults.values().take(SHOWN_MAX).map(|(count, first)| format!("{count} times: {first}")).collect();
        bail!("{count} faults of {} kinds\n{}\n{}", faults.len(), shown.join("\n"), counts.join(", "))
    }
}

/// Calls `run` with each index, from several threads.
pub(super) fn spread(cases: u64, run: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|index| *index < cases);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some(index) = take() {
                    run(index);
                }
            });
        }
    });
}
