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
use super::removals::{PendingRemovals, RemovalBatch};
use super::writes::{PendingWrite, PendingWrites, Responses};
use crate::purge::Purge;

/// Files that are remembered until the folder is open. Beyond that, all that are there then go.
const AWAY_MAX: usize = 1 << 16;

/// Whether the folder is in use.
#[derive(Debug, PartialEq, Eq)]
enum Phase {
    /// Nobody has started.
    Idle,
    /// Another process may have the folder. Files that are no longer right; `None` if those are too many.
    Away(Option<HashSet<FileName>>),
    Open,
    /// Nothing is done any more; whether it was open until now.
    Ended {
        was_open: bool,
    },
}

/// How the process stops using the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Ending {
    /// It goes on.
    #[default]
    None,
    /// Another process comes: it is told of all that changes from now on.
    Draining,
    /// What is not written yet is written.
    Closing,
    /// Nobody tells what changes from now on: the folder is not trusted.
    Abandoned,
}

/// What the thread is to do next.
#[derive(Debug)]
pub(super) enum Task {
    /// Remove files, and tell those that wait.
    Remove(RemovalBatch),
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
    removals: PendingRemovals,
    pub(super) ending: Ending,
    /// Another write is followed by a look of a purge.
    looks_next: bool,
    /// Whether the thread has nothing left to do, not even to say that everything is on the disk.
    pub(super) is_over: bool,
}

impl State {
    pub(super) fn new(config: &CacheDisk, unwritten_bytes_max: u64) -> Self {
        Self {
            phase: Phase::Idle,
            index: Index::new(config),
            writes: PendingWrites::new(unwritten_bytes_max),
            purges: PendingPurges::default(),
            writing: None,
            removals: PendingRemovals::default(),
            ending: Ending::None,
            looks_next: false,
            is_over: true,
        }
    }

    /// False if it has begun before.
    pub(super) fn begin(&mut self) -> bool {
        let is_first = self.phase == Phase::Idle;
        if is_first {
            self.is_over = false;
            self.phase = Phase::Away(Some(HashSet::new()));
        }
        is_first
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open
    }

    /// Whether nothing is done, yet or any more.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Ended { .. } | Phase::Idle)
    }

    /// Whether the thread has ended; and whether the folder was open.
    pub(super) fn ended(&self) -> Option<bool> {
        if let Phase::Ended { was_open } = self.phase { Some(was_open) } else { None }
    }

    /// The folder is in use, with these files. What has changed meanwhile is not among them.
    pub(super) fn open(&mut self, mut index: Index, purges: Vec<(Purge, PathBuf)>) {
        let Phase::Away(gone) = std::mem::replace(&mut self.phase, Phase::Open) else { return };
        let gone = gone.map_or_else(|| index.names(), |gone| gone.into_iter().collect());
        self.removals.extend(gone.into_iter().filter(|name| index.remove(*name)));
        index.set_size(self.index.config().size_bytes_max);
        self.index = index;
        self.removals.extend(self.index.take_evicted());
        for (purge, note) in purges {
            // What this process keeps may be older.
            let taken = self.writes.purge(&purge);
            taken.into_iter().for_each(|name| self.drop_file(name));
            self.purges.add_noted(purge, note);
        }
    }

    /// Nothing is done any more, and there is nothing that somebody waits for.
    pub(super) fn end(&mut self) {
        self.phase = Phase::Ended { was_open: self.is_open() };
        self.writes = PendingWrites::new(0);
    }

    /// A file that may be read.
    pub(super) fn readable(&self, name: FileName) -> Option<Entry> {
        if self.is_open() { self.index.current(name) } else { None }
    }

    /// The present number of bytes is another one.
    pub(super) fn set_size(&mut self, bytes_max: u64, unwritten_bytes_max: u64) {
        self.writes.set_size(unwritten_bytes_max);
        self.index.set_size(bytes_max);
        self.removals.extend(self.index.take_evicted());
    }

    /// A file is no longer right: it is not read, and removed when there is time.
    pub(super) fn drop_file(&mut self, name: FileName) {
        self.writes.take(name);
        if let Phase::Away(gone) = &mut self.phase {
            note_gone(gone, name);
        } else if self.index.remove(name) | self.outdates_write(name) {
            self.removals.add(name);
        }
    }

    /// Removes a file that an operator has taken out, but not what is to be written in its place.
    pub(super) fn drop_purged(&mut self, name: FileName) {
        if self.index.remove(name) {
            self.removals.add(name);
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
            Phase::Idle | Phase::Ended { .. } => return false,
        };
        let write = PendingWrite::new(key, responses, self.purges.seen());
        self.writes.add(name, write, has_file)
    }

    /// Removes the files of keys, at a host and target; the waits for what may be there.
    pub(super) fn remove<'k>(
        &mut self,
        (host, target): (&[u8], &[u8]),
        keys: impl Iterator<Item = &'k [u8]>,
        is_hung: bool,
    ) -> Vec<oneshot::Receiver<()>> {
        if self.is_closed() {
            return Vec::new();
        }
        let mut names = Vec::new();
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
            names.push((name, may_exist));
        }
        if is_hung {
            // Nobody waits, so that what is waited for does not grow.
            self.removals.extend(names.into_iter().filter_map(|(name, may_exist)| may_exist.then_some(name)));
            return Vec::new();
        }
        let mut waits: Vec<_> = self.removals.wait_for(names.into_iter()).into_iter().collect();
        // Another process may keep what was asked for before.
        if matches!(self.phase, Phase::Away(_)) || self.ending != Ending::None {
            let purge = Purge::Exact { host: host.to_vec(), target: target.to_vec() };
            waits.extend(self.purges.add(&purge, self.ending != Ending::None));
        }
        waits
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
        self.purges.add(purge, self.ending != Ending::None)
    }

    /// What is next. The task before is done.
    pub(super) fn next(&mut self) -> Task {
        if self.is_closed() {
            return Task::End;
        }
        if let Some(task) = self.next_awaited() {
            return task;
        }
        if self.ending == Ending::Abandoned || (self.ending == Ending::Closing && !self.is_open()) {
            return Task::End;
        }
        if !self.is_open() {
            return Task::Wait(None);
        }
        let is_last = self.ending == Ending::Closing;
        self.looks_next = !self.looks_next && !is_last;
        if self.looks_next
            && let Some(name) = self.purges.next_look(&self.index)
        {
            return Task::Look(name);
        }
        if let Some((name, write)) = self.writes.next(is_last) {
            let write = Arc::new(write);
            self.writing = Some((name, Arc::clone(&write), true));
            return Task::Write(name, write);
        }
        if is_last {
            return Task::End;
        }
        match self.purges.next_look(&self.index) {
            Some(name) => Task::Look(name),
            None => Task::Wait(self.writes.due()),
        }
    }

    /// What somebody waits for, and what is to be removed.
    pub(super) fn next_awaited(&mut self) -> Option<Task> {
        if let Some(batch) = self.removals.next() {
            // One of them may have been written meanwhile.
            batch.names.iter().for_each(|name| _ = self.index.remove(*name));
            return Some(Task::Remove(batch));
        }
        let (purge, number, told) = self.purges.next_to_note()?;
        Some(Task::NotePurge(purge, number, told))
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
        self.removals.extend(self.index.take_evicted());
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
