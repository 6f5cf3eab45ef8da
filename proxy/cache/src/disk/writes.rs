//! Responses that are to be written, in the order in which they are.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::format::FileName;
use crate::purge::Purge;
use crate::stored::StoredResponse;

/// How long a change of what has a file is held back, so that a page that changes often is written once in that time.
const DELAY: Duration = Duration::from_secs(1);
/// Names in the queues that are no longer to be written, beyond as many as are.
const NAMES_SPARE: usize = 1000;

/// The responses of a resource, as they are in memory.
pub(super) type Responses = Arc<[Arc<StoredResponse>]>;

/// What is to be written. It has left memory, perhaps, when it is.
#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) key: Box<[u8]>,
    pub(super) responses: Responses,
    /// How many purges there had been when they were stored.
    pub(super) purges: u32,
}

impl PendingWrite {
    pub(super) fn new(key: &[u8], responses: &Responses, purges: u32) -> Self {
        Self { key: key.into(), responses: Arc::clone(responses), purges }
    }

    /// Whether an operator takes it out.
    pub(super) fn is_taken_by(&self, purge: &Purge) -> bool {
        purge.takes(&self.key, self.responses.iter().map(|stored| &**stored))
    }

    fn bytes(&self) -> u64 {
        (self.key.len() + self.responses.iter().map(|stored| stored.bytes()).sum::<usize>()) as u64
    }
}

/// Everything that is to be written.
#[derive(Debug)]
pub(super) struct PendingWrites {
    pending: HashMap<FileName, PendingWrite>,
    bytes: u64,
    /// Beyond that, the disk is too slow, and files are removed in place of being written.
    bytes_max: u64,
    /// Those that have no file, the oldest first, and some that are no longer to be written.
    new: VecDeque<FileName>,
    /// Those that have an old one, and when they are written.
    changed: VecDeque<(Instant, FileName)>,
}

impl PendingWrites {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { pending: HashMap::new(), bytes: 0, bytes_max, new: VecDeque::new(), changed: VecDeque::new() }
    }

    /// Goes on with another bound.
    pub(super) fn set_size(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Takes what is to be written to a file: it is not written any more.
    pub(super) fn take(&mut self, name: FileName) -> Option<PendingWrite> {
        let pending = self.pending.remove(&name);
        self.bytes -= pending.as_ref().map_or(0, PendingWrite::bytes);
        pending
    }

    /// Takes what an operator takes out.
    pub(super) fn purge(&mut self, purge: &Purge) -> Vec<FileName> {
        let taken: Vec<FileName> = self
            .pending
            .iter()
            .filter(|(_, write)| write.is_taken_by(purge))
            .map(|(name, _)| *name)
            .collect();
        taken.iter().for_each(|name| _ = self.take(*name));
        taken
    }

    /// Adds responses, in place of older ones; false if there are too many.
    pub(super) fn add(&mut self, name: FileName, write: PendingWrite, has_file: bool) -> bool {
        let is_queued = self.take(name).is_some();
        if self.bytes + write.bytes() > self.bytes_max {
            return false;
        }
        self.bytes += write.bytes();
        self.pending.insert(name, write);
        if self.new.len() + self.changed.len() > 2 * self.pending.len() + NAMES_SPARE {
            self.new.retain(|name| self.pending.contains_key(name));
            self.changed.retain(|(_, name)| self.pending.contains_key(name));
        }
        match has_file {
            _ if is_queued => {}
            true => self.changed.push_back((Instant::now() + DELAY, name)),
            false => self.new.push_back(name),
        }
        true
    }

    /// Takes what is due; `is_last` is whether everything is.
    pub(super) fn next(&mut self, is_last: bool) -> Option<(FileName, PendingWrite)> {
        loop {
            let name = self.next_name(is_last)?;
            if let Some(pending) = self.take(name) {
                return Some((name, pending));
            }
        }
    }

    fn next_name(&mut self, is_last: bool) -> Option<FileName> {
        let is_due = |due: &Instant| is_last || *due <= Instant::now();
        if self.changed.front().is_some_and(|(due, _)| is_due(due)) {
            return self.changed.pop_front().map(|(_, name)| name);
        }
        self.new.pop_front()
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.changed.front().map(|(due, _)| *due)
    }
}
