//! What there is to do on the disk, in the order in which it is done: removals first, because somebody waits.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use sluice_config::CacheDisk;
use tokio::sync::oneshot;

use super::format::FileName;
use super::index::{Entry, Index};
use super::purges::PendingPurges;
use super::writes::{PendingWrite, PendingWrites, Responses};
use crate::purge::Purge;

/// Files that are remembered until the folder is open. Beyond that, all that are there then go.
const AWAY_MAX: usize = 1 << 16;

/// Files that are removed together.
#[derive(Debug, Default)]
pub(super) struct PendingRemoval {
    pub(super) names: Vec<FileName>,
    /// Who waits for it.
    pub(super) told: Vec<oneshot::Sender<()>>,
}

/// Whether the folder is in use.
#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody has started.
    Idle,
    /// Another process may have the folder. Files that are no longer right; `None` if those are too many.
    Away(Option<HashSet<FileName>>),
    Open,
    Closed,
}

/// What the thread is to do next.
#[derive(Debug)]
pub(super) enum Task {
    /// Remove files, and tell those that wait.
    Remove(PendingRemoval),
    /// Note a purge for the next process, and tell who has asked.
    NotePurge(Purge, u32, oneshot::Sender<()>),
    /// Write the responses of a resource.
    Write(FileName, Arc<PendingWrite>),
    /// Look whether a purge takes a file.
    Look(FileName),
    /// Nothing until then, if nothing else comes.
    Wait(Option<Instant>),
    /// There is nothing left to do.
    End,
}

/// What is known, and what is to do.
#[derive(Debug)]
pub(super) struct State {
    phase: Phase,
    pub(super) index: Index,
    writes: PendingWrites,
    pub(super) purges: PendingPurges,
    /// What is being written, and whether memory has not changed since.
    writing: Option<(FileName, Arc<PendingWrite>, bool)>,
    removal: PendingRemoval,
    /// Whether files are being removed.
    is_removing: bool,
    pub(super) is_closing: bool,
}

impl State {
    pub(super) fn new(config: &CacheDisk, unwritten_bytes_max: u64) -> Self {
        Self {
            phase: Phase::Idle,
            index: Index::new(config),
            writes: PendingWrites::new(unwritten_bytes_max),
            purges: PendingPurges::default(),
            writing: None,
            removal: PendingRemoval::default(),
            is_removing: false,
            is_closing: false,
        }
    }

    /// False if it has begun before.
    pub(super) fn begin(&mut self) -> bool {
        let is_first = self.phase == Phase::Idle;
        if is_first {
            self.phase = Phase::Away(Some(HashSet::new()));
        }
        is_first
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed | Phase::Idle)
    }

    /// The folder is in use, with these files. What has changed meanwhile is not among them.
    pub(super) fn open(&mut self, mut index: Index, purges: Vec<(Purge, PathBuf)>) {
        let Phase::Away(gone) = std::mem::replace(&mut self.phase, Phase::Open) else { return };
        let gone = gone.map_or_else(|| index.names(), |gone| gone.into_iter().collect());
        self.removal.names.extend(gone.into_iter().filter(|name| index.remove(*name)));
        index.set_size(self.index.config().size_bytes_max);
        self.index = index;
        self.removal.names.extend(self.index.take_evicted());
        for (purge, note) in purges {
            self.purges.add_noted(purge, note);
        }
    }

    /// Nothing is done any more.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Closed;
        self.removal = PendingRemoval::default();
        self.purges.end();
        self.writes = PendingWrites::new(0);
    }

    /// A file that may be read.
    pub(super) fn readable(&self, name: FileName) -> Option<Entry> {
        if self.is_open() { self.index.current(name) } else { None }
    }

    /// The present number of bytes is another one.
    pub(super) fn set_size(&mut self, bytes_max: u64) {
        self.index.set_size(bytes_max);
        self.removal.names.extend(self.index.take_evicted());
    }

    /// A file is no longer right: it is not read, and removed when there is time.
    pub(super) fn drop_file(&mut self, name: FileName) {
        self.writes.take(name);
        if let Phase::Away(gone) = &mut self.phase {
            note_gone(gone, name);
        } else if self.index.remove(name) | self.outdates_write(name) {
            self.removal.names.push(name);
        }
    }

    /// Removes a file that an operator has taken out, but not what is to be written in its place.
    pub(super) fn drop_purged(&mut self, name: FileName) {
        if self.index.remove(name) {
            self.removal.names.push(name);
        }
    }

    /// What is being written is no longer right; false if it is another file.
    fn outdates_write(&mut self, name: FileName) -> bool {
        let writing = self.writing.as_mut().filter(|(writing, ..)| *writing == name);
        writing.map(|(_, _, is_right)| *is_right = false).is_some()
    }

    /// Has the responses of a key written soon; false if there are too many.
    pub(super) fn write_later(&mut self, key: &[u8], responses: &Responses) -> bool {
        let name = FileName::of(key);
        let has_file = match &mut self.phase {
            Phase::Away(gone) => {
                note_gone(gone, name);
                false
            }
            Phase::Open => self.index.supersede(name) | self.outdates_write(name),
            Phase::Idle | Phase::Closed => return false,
        };
        let write = PendingWrite::new(key, responses, self.purges.seen());
        self.writes.add(name, write, has_file)
    }

    /// Removes the files of keys; `None` if there is nothing to wait for.
    pub(super) fn remove<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Option<oneshot::Receiver<()>> {
        if self.is_closed() {
            return None;
        }
        for name in keys.map(FileName::of) {
            self.writes.take(name);
            let may_exist = match &mut self.phase {
                // Nobody knows yet, and a process that ends now is to leave nothing old.
                Phase::Away(gone) => {
                    note_gone(gone, name);
                    true
                }
                _ => self.index.remove(name) | self.outdates_write(name),
            };
            if may_exist {
                self.removal.names.push(name);
            }
        }
        // It may be among those that are removed for another reason.
        if self.removal.names.is_empty() && !self.is_removing {
            return None;
        }
        let (told, wait) = oneshot::channel();
        self.removal.told.push(told);
        Some(wait)
    }

    /// Takes out what an operator names.
    pub(super) fn purge(&mut self, purge: &Purge) -> Option<oneshot::Receiver<()>> {
        if self.is_closed() {
            return None;
        }
        // Of files, it is asked later. These are no files yet.
        let taken = self.writes.purge(purge);
        // There may be older ones, which nobody reads.
        taken.into_iter().for_each(|name| self.drop_file(name));
        let written = self.writing.as_ref().filter(|(_, write, _)| write.is_taken_by(purge));
        if let Some(name) = written.map(|(name, ..)| *name) {
            self.drop_file(name);
        }
        Some(self.purges.add(purge))
    }

    /// What is next. The task before is done.
    pub(super) fn next(&mut self) -> Task {
        self.is_removing = false;
        if self.is_closed() {
            return Task::End;
        }
        if !self.removal.names.is_empty() || !self.removal.told.is_empty() {
            self.is_removing = true;
            let removal = std::mem::take(&mut self.removal);
            // One of them may have been written meanwhile.
            removal.names.iter().for_each(|name| _ = self.index.remove(*name));
            return Task::Remove(removal);
        }
        if let Some((purge, number, told)) = self.purges.next_to_note() {
            return Task::NotePurge(purge, number, told);
        }
        if !self.is_open() {
            return if self.is_closing { Task::End } else { Task::Wait(None) };
        }
        if let Some((name, write)) = self.writes.next(self.is_closing) {
            let write = Arc::new(write);
            self.writing = Some((name, Arc::clone(&write), true));
            return Task::Write(name, write);
        }
        if self.is_closing {
            return Task::End;
        }
        match self.purges.next_look(&self.index) {
            Some(name) => Task::Look(name),
            None => Task::Wait(self.writes.due()),
        }
    }

    /// What was to be written is written, with so many bytes and purges before; `None` if there is nothing.
    pub(super) fn written(&mut self, name: FileName, file: Option<(u64, u32)>) {
        let is_right = self.writing.take().is_some_and(|(writing, _, is_right)| writing == name && is_right);
        let Some((bytes, purges)) = file else {
            return self.drop_file(name);
        };
        self.index.insert(name, Entry::new(bytes, purges));
        if !is_right {
            self.index.supersede(name);
        }
        self.removal.names.extend(self.index.take_evicted());
    }
}

fn note_gone(gone: &mut Option<HashSet<FileName>>, name: FileName) {
    if let Some(names) = gone {
        names.insert(name);
        if names.len() > AWAY_MAX {
            *gone = None;
        }
    }
}
