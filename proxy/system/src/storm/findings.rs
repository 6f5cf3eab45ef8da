//! What clients and origins have seen, counted; and each fault in words.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::token::Token;

/// Maximum faults kept in words; further ones are only counted.
const FAULTS_SHOWN_MAX: usize = 12;
const NOTES_MAX: usize = 8;

/// How a request without a fault ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Outcome {
    Whole,
    /// sluice's own response.
    Refused(u16),
    /// A cut that the client could see.
    Cut,
    /// The connection ended in order before its response.
    Unanswered,
    /// The client disconnected.
    Abandoned,
    /// Bytes for another request that no proxy could have recognised.
    Untellable,
}

#[derive(Default)]
struct Seen {
    outcomes: BTreeMap<(&'static str, Outcome), u64>,
    faults: Vec<String>,
    fault_count: u64,
    /// Possible explanations of a fault, newest last.
    notes: VecDeque<String>,
    /// Responses that the origin itself did not complete.
    broken_off: HashSet<Token>,
}

/// Shared by clients and origins, which have their own threads.
#[derive(Default)]
pub(super) struct Findings {
    seen: Mutex<Seen>,
    over: AtomicBool,
    replaced: AtomicU64,
}

impl Findings {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, mode: &'static str, outcome: Outcome) {
        *self.seen().outcomes.entry((mode, outcome)).or_default() += 1;
    }

    pub(super) fn fault(&self, what: String) {
        let mut seen = self.seen();
        seen.fault_count += 1;
        if seen.faults.len() < FAULTS_SHOWN_MAX {
            seen.faults.push(what);
        }
    }

    /// Records something that is not a fault, but may explain one.
    pub(super) fn note(&self, what: String) {
        let mut seen = self.seen();
        if seen.notes.len() >= NOTES_MAX {
            seen.notes.pop_front();
        }
        seen.notes.push_back(what);
    }

    pub(super) fn break_off(&self, token: Token) {
        self.seen().broken_off.insert(token);
    }

    pub(super) fn is_broken_off(&self, token: Token) -> bool {
        self.seen().broken_off.contains(&token)
    }

    /// Makes clients end after their current request.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Records that a process is being replaced, and with it its kept connections.
    pub(super) fn replace(&self) {
        self.replaced.fetch_add(1, Ordering::Relaxed);
    }

    /// How often this was recorded.
    pub(super) fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Whether further faults would not be shown.
    pub(super) fn has_enough(&self) -> bool {
        self.seen().faults.len() >= FAULTS_SHOWN_MAX
    }

    /// The faults in words, if there are any.
    pub(super) fn faults(&self) -> Option<String> {
        let seen = self.seen();
        let shown: Vec<&str> = seen.faults.iter().chain(&seen.notes).map(String::as_str).collect();
        let shown = shown.join("\n");
        (seen.fault_count > 0).then(|| format!("{} faults, the first:\n{shown}", seen.fault_count))
    }

    /// How many requests ended in this way.
    pub(super) fn number(&self, wanted: impl Fn(Outcome) -> bool) -> u64 {
        self.seen().outcomes.iter().filter(|((_, outcome), _)| wanted(*outcome)).map(|(_, count)| count).sum()
    }

    /// Requests by outcome, in one line.
    pub(super) fn summary(&self) -> String {
        let refused = self.number(|outcome| matches!(outcome, Outcome::Refused(_)));
        let of = |wanted: Outcome| self.number(|outcome| outcome == wanted);
        format!(
            "{} complete responses, {refused} errors, {} cut, {} unanswered, {} cancelled, {} ambiguous",
            of(Outcome::Whole),
            of(Outcome::Cut),
            of(Outcome::Unanswered),
            of(Outcome::Abandoned),
            of(Outcome::Untellable),
        )
    }

    /// Requests by mode and outcome, one line per mode.
    pub(super) fn table(&self) -> String {
        let mut table = String::new();
        let mut last = "";
        for ((mode, outcome), count) in &self.seen().outcomes {
            if *mode != last {
                let _ = write!(table, "\n{mode:>22}:");
                last = mode;
            }
            let _ = write!(table, " {outcome:?} {count}");
        }
        table
    }
}
