//! What every check uses: connections, bytes to send, and whether they took the tested path.

use std::io;
use std::rc::Rc;

use sluice_ebpf::Counter;

use super::flow::{Flow, Pattern};
use super::pairs::{Counts, Pair, Pairs, Way};
use super::wait::{Deadline, until};
use super::{Failure, JOIN};

/// The largest message that should be joined, in bytes.
const MESSAGE_MAX: u32 = 1000;

/// Messages that are sent without being read, if the budget allows.
const BURST: u32 = 4;

/// The result of a check.
pub(super) type Checked = Result<(), Found>;

/// A wrong observation.
pub(super) struct Found {
    text: String,
    /// The check that it belongs to, if not the one that made it.
    check: Option<&'static str>,
}

impl Found {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), check: None }
    }

    /// As the failure of the check `name`.
    pub(super) fn at(self, name: &'static str) -> Failure {
        Failure { check: self.check.unwrap_or(name), found: self.text }
    }

    fn of(self, check: &'static str) -> Self {
        Self { check: Some(check), ..self }
    }
}

/// Adds the name of the refused call.
pub(super) fn refused(call: &'static str) -> impl Fn(io::Error) -> Found {
    move |error| Found::new(format!("{call}: {error}"))
}

/// The tools of the checks.
pub(super) struct Trial<'a> {
    pairs: &'a mut dyn Pairs,
    pattern: Rc<Pattern>,
    pub(super) deadline: Deadline,
}

impl<'a> Trial<'a> {
    pub(super) fn new(pairs: &'a mut dyn Pairs, deadline: Deadline) -> Self {
        Self { pairs, pattern: Rc::new(Pattern::new()), deadline }
    }

    /// A joined connection.
    pub(super) fn pair(&mut self) -> Result<Pair, Found> {
        let pair = self.pairs.connect(true, self.deadline)?;
        if self.pairs.counts()?.is_none() {
            return Ok(pair);
        }
        // Usually before `accept` returns, except for a delay where packets change the CPU (RPS).
        let joined = until(self.deadline.soon(), || self.pairs.is_joined(&pair));
        if joined.map_err(|found| found.of(JOIN))? {
            return Ok(pair);
        }
        Err(Found::new("the two ends of a connection were not joined").of(JOIN))
    }

    /// A connection that was not marked, and whether it is joined.
    pub(super) fn stranger(&mut self) -> Result<(Pair, bool), Found> {
        let pair = self.pairs.connect(false, self.deadline)?;
        let joined = self.pairs.is_joined(&pair)?;
        Ok((pair, joined))
    }

    /// The bytes sent through `pair` in one direction.
    pub(super) fn flow(&self, pair: &Pair, way: Way) -> Flow {
        Flow::new(Rc::clone(&self.pattern), pair, way, self.deadline)
    }

    /// Bytes of a message that may be joined on its own.
    pub(super) fn message(&self) -> usize {
        to_usize(self.pairs.limits().budget_bytes.clamp(1, MESSAGE_MAX))
    }

    /// Bytes of each message of a burst that may be joined together.
    pub(super) fn part(&self) -> usize {
        (self.message() / to_usize(BURST)).max(1)
    }

    /// Messages of a burst.
    pub(super) fn burst(&self) -> u64 {
        let limits = self.pairs.limits();
        BURST.min(limits.budget_messages).min(limits.budget_bytes).max(1).into()
    }

    /// Joined bytes and messages that a receiver may leave unread.
    pub(super) fn budget(&self) -> (u64, u64) {
        let limits = self.pairs.limits();
        (limits.budget_bytes.into(), limits.budget_messages.into())
    }

    /// The current counters, for [`Self::grown`].
    pub(super) fn mark(&self) -> Result<Option<Counts>, Found> {
        self.pairs.counts()
    }

    /// The growth of the counters since `before`; `None` if nothing is ever joined.
    pub(super) fn grown(&self, before: Option<Counts>) -> Result<Option<Counts>, Found> {
        Ok(before.zip(self.pairs.counts()?).map(|(before, now)| now.since(&before)))
    }

    /// Checks that at least `messages` bypassed TCP since `before`.
    pub(super) fn joined(&self, before: Option<Counts>, messages: u64) -> Checked {
        match self.grown(before)? {
            Some(grown) if grown.of(Counter::MessagesJoined) < messages => Err(Found::new(format!(
                "{} of {messages} messages bypassed TCP (counted: {grown})",
                grown.of(Counter::MessagesJoined)
            ))),
            _ => Ok(()),
        }
    }
}

/// Lossless on every platform of Linux.
pub(super) fn to_usize(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
