//! What operators have taken out, until it is gone.

use std::path::PathBuf;

use tokio::sync::oneshot;

use super::format::FileName;
use super::index::{Entry, Index};
use crate::purge::Purge;
use crate::stored::StoredResponse;

/// Purges that are not done. Beyond that, all files go.
pub(super) const PURGES_MAX: usize = 1000;

/// What an operator has taken out, and what is not yet removed of it.
#[derive(Debug)]
pub(super) struct PendingPurge {
    id: u32,
    /// It is about files whose entry has a lower number.
    number: u32,
    purge: Purge,
    /// Whether it was noted for the next process, or that was tried.
    is_noted: bool,
    /// Where.
    pub(super) note: Option<PathBuf>,
    /// Whether all files have been looked at.
    has_looked: bool,
    /// Whether the note is for another process, which removes it.
    is_for_others: bool,
}

impl PendingPurge {
    fn is_done(&self) -> bool {
        self.has_looked && self.is_noted && !self.is_for_others
    }
}

/// All purges that are not done.
#[derive(Debug, Default)]
pub(super) struct PendingPurges {
    purges: Vec<PendingPurge>,
    /// How many there have been.
    seen: u32,
    to_note: Vec<(u32, oneshot::Sender<()>)>,
    /// Files that purges have not looked at, and the number of the last of those purges.
    to_look_at: (Vec<FileName>, u32),
}

impl PendingPurges {
    /// How many there have been.
    pub(super) fn seen(&self) -> u32 {
        self.seen
    }

    /// Adds what is taken out; the other end is told once it is noted. `None` if it is.
    pub(super) fn add(&mut self, purge: &Purge, is_for_others: bool) -> Option<oneshot::Receiver<()>> {
        let is_full = self.purges.len() >= PURGES_MAX;
        let id = match self.purges.last_mut().filter(|last| is_full && last.purge == Purge::All) {
            Some(last) => {
                // It is about what has come since, too.
                self.seen += 1;
                (last.number, last.has_looked) = (self.seen, false);
                last.is_for_others |= is_for_others;
                if last.is_noted {
                    return None;
                }
                last.id
            }
            None => self.push(if is_full { Purge::All } else { purge.clone() }, None, is_for_others),
        };
        let (told, wait) = oneshot::channel();
        self.to_note.push((id, told));
        Some(wait)
    }

    /// There will be no other process: this one removes the notes itself.
    pub(super) fn keep(&mut self) {
        self.purges.iter_mut().for_each(|purge| purge.is_for_others = false);
    }

    /// Adds what was noted, by this process or another one.
    pub(super) fn add_noted(&mut self, purge: Purge, note: PathBuf) {
        if !self.purges.iter().any(|known| known.note.as_ref() == Some(&note)) {
            _ = self.push(purge, Some(note), false);
        }
    }

    fn push(&mut self, purge: Purge, note: Option<PathBuf>, is_for_others: bool) -> u32 {
        self.seen += 1;
        self.purges.push(PendingPurge {
            id: self.seen,
            number: self.seen,
            purge,
            is_noted: note.is_some(),
            note,
            has_looked: false,
            is_for_others,
        });
        self.seen
    }

    /// One that is to be noted, its identity, and the sender that reports it.
    pub(super) fn next_to_note(&mut self) -> Option<(Purge, u32, oneshot::Sender<()>)> {
        loop {
            let (id, told) = self.to_note.pop()?;
            // Otherwise it is done.
            if let Some(purge) = self.purges.iter().find(|purge| purge.id == id) {
                return Some((purge.purge.clone(), id, told));
            }
        }
    }

    /// A purge is noted for the next process; `None` if that has failed.
    pub(super) fn noted(&mut self, id: u32, note: Option<PathBuf>) {
        if let Some(purge) = self.purges.iter_mut().find(|purge| purge.id == id) {
            (purge.is_noted, purge.note) = (true, note);
        }
    }

    /// Whether an operator has taken out what is in a file.
    pub(super) fn take<'s>(
        &self,
        key: &[u8],
        responses: impl Iterator<Item = &'s StoredResponse> + Clone,
        entry: Entry,
    ) -> bool {
        let mut later = self.purges.iter().filter(|purge| purge.number > entry.purges);
        later.any(|purge| purge.purge.takes(key, responses.clone()))
    }

    /// A file that some purge has not looked at.
    pub(super) fn next_look(&mut self, index: &Index) -> Option<FileName> {
        let last = self.purges.last()?.number;
        self.note_looks();
        if self.to_look_at.0.is_empty() && self.to_look_at.1 != last {
            self.to_look_at = (index.names(), last);
            self.note_looks();
        }
        self.to_look_at.0.pop()
    }

    fn note_looks(&mut self) {
        let (left, last) = &self.to_look_at;
        if left.is_empty() {
            let looked = self.purges.iter_mut().filter(|purge| purge.number <= *last);
            looked.for_each(|purge| purge.has_looked = true);
        }
    }

    pub(super) fn has_done(&self) -> bool {
        self.purges.iter().any(PendingPurge::is_done)
    }

    /// Those that have looked at all files: nothing is left for them to take.
    pub(super) fn take_done(&mut self) -> Vec<PendingPurge> {
        let purges = std::mem::take(&mut self.purges);
        let (done, others) = purges.into_iter().partition(PendingPurge::is_done);
        self.purges = others;
        done
    }
}
