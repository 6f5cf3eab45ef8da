//! What every check has at hand: connections, bytes to send, and whether they went the way that is tried.

use std::io;
use std::rc::Rc;

use sluice_ebpf::Counter;

use super::flow::{Flow, Pattern};
use super::pairs::{Counts, Pair, Pairs, Way};
use super::wait::{Deadline, until};
use super::{Failure, JOIN};

/// The largest message that is meant to be joined, in bytes.
const MESSAGE_MAX: u32 = 1000;

/// Messages that are sent without being read, where the budget allows.
const BURST: u32 = 4;

/// What a check comes to.
pub(super) type Checked = Result<(), Found>;

/// What was found where something else should have been.
pub(super) struct Found {
    text: String,
    /// The check that it belongs to, if not the one that came across it.
    check: Option<&'static str>,
}

impl Found {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), check: None }
    }

    /// As the outcome of the check `name`.
    pub(super) fn at(self, name: &'static str) -> Failure {
        Failure { check: self.check.unwrap_or(name), found: self.text }
    }

    fn of(self, check: &'static str) -> Self {
        Self { check: Some(check), ..self }
    }
}

/// Names the call that was refused.
pub(super) fn refused(call: &'static str) -> impl Fn(io::Error) -> Found {
    move |error| Found::new(format!("{call}: {error}"))
}

/// What the checks work with.
pub(super) struct Trial<'a> {
    pairs: &'a mut dyn Pairs,
    pattern: Rc<Pattern>,
    pub(super) deadline: Deadline,
}

impl<'a> Trial<'a> {
    pub(super) fn new(pairs: &'a mut dyn Pairs, deadline: Deadline) -> Self {
        Self { pairs, pattern: Rc::new(Pattern::new()), deadline }
    }

    /// A connection, joined.
    pub(super) fn pair(&mut self) -> Result<Pair, Found> {
        let pair = self.pairs.connect(true, self.deadline)?;
        if self.pairs.counts()?.is_none() {
            return Ok(pair);
        }
        // Mostly before `accept` returns, but for a delay where packets change the CPU (RPS).
        let joined = until(self.deadline.soon(), || self.pairs.is_joined(&pair));
        if joined.map_err(|found| found.of(JOIN))? {
            return Ok(pair);
        }
        Err(Found::new("the two ends of a connection did not find each other").of(JOIN))
    }

    /// A connection that was not asked to be joined, and whether it is.
    pub(super) fn stranger(&mut self) -> Result<(Pair, bool), Found> {
        let pair = self.pairs.connect(false, self.deadline)?;
        let joined = self.pairs.is_joined(&pair)?;
        Ok((pair, joined))
    }

    /// What is sent through `pair` one way.
    pub(super) fn flow(&self, pair: &Pair, way: Way) -> Flow {
        Flow::new(Rc::clone(&self.pattern), pair, way, self.deadline)
    }

    /// Bytes of a message that may be joined, alone.
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

    /// Joined bytes and messages that a receiver may have unread.
    pub(super) fn budget(&self) -> (u64, u64) {
        let limits = self.pairs.limits();
        (limits.budget_bytes.into(), limits.budget_messages.into())
    }

    /// The counters now, for [`Self::grown`].
    pub(super) fn mark(&self) -> Result<Option<Counts>, Found> {
        self.pairs.counts()
    }

    /// What was counted since `before`; `None` where nothing is ever joined.
    pub(super) fn grown(&self, before: Option<Counts>) -> Result<Option<Counts>, Found> {
        Ok(before.zip(self.pairs.counts()?).map(|(before, now)| now.since(&before)))
    }

    /// That at least `messages` went past TCP since `before`.
    pub(super) fn joined(&self, before: Option<Counts>, messages: u64) -> Checked {
        match self.grown(before)? {
            Some(grown) if grown.of(Counter::MessagesJoined) < messages => Err(Found::new(format!(
                "{} of {messages} messages went past TCP (counted: {grown})",
                grown.of(Counter::MessagesJoined)
            ))),
            _ => Ok(()),
        }
    }
}

/// Lossless wherever Linux runs.
pub(super) fn to_usize(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
