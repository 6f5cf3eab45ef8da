//! What a cache keeps beyond its memory: a file for each resource, written and removed by a thread of its own.
//!
//! While a resource is in memory, memory is right; its file is read only when it is not. No request waits for a write.
//! A removal, and the note of a purge, is told once it is done.

mod counts;
mod folder;
mod format;
mod index;
mod keeper;
mod purges;
mod removals;
mod state;
#[cfg(test)]
mod tests;
mod writes;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_config::CacheDisk;
use tokio::sync::oneshot;

pub use counts::DiskCounts;
pub(crate) use format::FileName;

use crate::purge::Purge;
use crate::stored::StoredResponse;
use counts::Counts;
use folder::{Folder, OpenFolder};
use index::Entry;
use state::{Ending, State};
use writes::Responses;

/// Reads at the same time, of one cache. Beyond that, the disk is slow, and the application is asked.
const READS_MAX: usize = 16;

/// The part of a cache's memory that may wait to be written, although it has left memory perhaps.
const UNWRITTEN_PART: u64 = 4;

/// The first number of notes that are written when the thread has ended; its own are lower.
const LATE: u32 = 1 << 31;

/// Files of a cache.
#[derive(Debug)]
pub(crate) struct Disk {
    /// As it was at the start.
    config: CacheDisk,
    shared: Arc<Shared>,
    /// Held by each read.
    reads: Arc<()>,
    /// Numbers of notes that are written when the thread has ended.
    late: AtomicU32,
}

/// What the thread and the workers share.
#[derive(Debug)]
struct Shared {
    folder: Folder,
    state: Mutex<State>,
    /// Signalled when there is work, and when the thread has ended.
    changed: Condvar,
    /// The closed folder, which stays locked until the store ends.
    held: Mutex<Option<OpenFolder>>,
    /// Whether a removal has taken too long, and nothing was done since.
    is_hung: AtomicBool,
    /// Whether the next process is to begin with nothing.
    is_distrusted: AtomicBool,
    counts: Counts,
}

/// A file, as it is at present.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileEntry(Entry);

/// A place among the reads of a cache.
#[derive(Debug)]
pub(crate) struct ReadPlace(#[allow(dead_code, reason = "counted by its copies")] Arc<()>);

/// How long a removal is waited for. A disk that takes longer hangs.
const REMOVAL_MAX: Duration = Duration::from_secs(10);

/// The removal of files, which may be waited for. The next process does not see them either once it is done.
#[derive(Debug)]
pub struct Removal {
    waits: Vec<oneshot::Receiver<()>>,
    shared: Arc<Shared>,
}

impl Removal {
    /// Waits until the files are gone, for ten seconds at most. After that, no removal waits until the disk works again; the
    /// files are removed then.
    pub async fn done(self) {
        let until = tokio::time::Instant::now() + REMOVAL_MAX;
        for wait in self.waits {
            if self.shared.is_hung.load(SeqCst) {
                return;
            }
            if tokio::time::timeout_at(until, wait).await.is_err() && !self.shared.is_hung.swap(true, SeqCst)
            {
                let folder = self.shared.folder.path().display();
                tracing::warn!(%folder, "the disk of a cache hangs; what requests change is removed from it once it works");
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the next process begin with nothing: something could not be removed.
    fn distrust(&self) {
        self.is_distrusted.store(true, SeqCst);
        let distrusted = self.folder.distrust();
        let _ = distrusted.inspect_err(|error| self.counts.failed.log(error, self.folder.path()));
    }

    fn removal(self: &Arc<Self>, waits: Vec<oneshot::Receiver<()>>) -> Option<Removal> {
        self.changed.notify_all();
        (!waits.is_empty()).then(|| Removal { waits, shared: Arc::clone(self) })
    }
}

impl Disk {
    /// Files in the folder of a cache of this name. Nothing happens until it is started.
    pub(crate) fn new(config: &CacheDisk, cache: &str, memory_bytes_max: u64) -> Self {
        let shared = Shared {
            folder: Folder::new(&config.folder, cache),
            state: Mutex::new(State::new(config, memory_bytes_max / UNWRITTEN_PART)),
            changed: Condvar::new(),
            held: Mutex::default(),
            is_hung: AtomicBool::new(false),
            is_distrusted: AtomicBool::new(false),
            counts: Counts::default(),
        };
        Self {
            config: config.clone(),
            shared: Arc::new(shared),
            reads: Arc::default(),
            late: AtomicU32::new(LATE),
        }
    }

    /// Starts its thread, unless that runs already. `told` hears of what other processes have taken out.
    pub(crate) fn start(&self, told: impl Fn(&Purge) + Send + 'static) {
        if !self.shared.state().begin() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let started = std::thread::Builder::new()
            .name("cache-disk".to_owned())
            .spawn(move || keeper::run(&shared, &told));
        if let Err(error) = started {
            tracing::error!(%error, "cannot start the thread of a cache's disk; it keeps its responses in memory");
            self.shared.distrust();
            let mut state = self.shared.state();
            state.end();
            state.is_over = true;
        }
    }

    /// Whether it can go on with other settings. How many files there are at most follows from the size at the start.
    pub(crate) fn can_become(&self, config: &CacheDisk) -> bool {
        let now = &self.config;
        let is_near = config.size_bytes_max / 2 <= now.size_bytes_max
            && now.size_bytes_max / 2 <= config.size_bytes_max;
        now.folder == config.folder && now.files_max == config.files_max && is_near
    }

    /// Goes on with other sizes.
    pub(crate) fn set_size(&self, bytes_max: u64, memory_bytes_max: u64) {
        self.shared.state().set_size(bytes_max, memory_bytes_max / UNWRITTEN_PART);
        self.shared.changed.notify_all();
    }

    /// Whether there is a file for a key, which may be read.
    pub(crate) fn has(&self, name: FileName) -> bool {
        self.shared.state().readable(name).is_some()
    }

    /// A place among the reads; `None` if there are too many.
    pub(crate) fn read_place(&self) -> Option<ReadPlace> {
        let place = ReadPlace(Arc::clone(&self.reads));
        (Arc::strong_count(&place.0) <= READS_MAX + 1).then_some(place)
    }

    /// The entry of a key's file, if that may be read, and its size in bytes.
    pub(crate) fn entry(&self, key: &[u8]) -> Option<(FileEntry, u64)> {
        let entry = self.shared.state().readable(FileName::of(key))?;
        Some((FileEntry(entry), entry.bytes()))
    }

    /// Whether the file of a key is still that one.
    pub(crate) fn is_still(&self, key: &[u8], entry: FileEntry) -> bool {
        self.shared.state().readable(FileName::of(key)) == Some(entry.0)
    }

    /// The responses in a file; `None` if there are none that are right, and `is_right` decides that as well. Blocks.
    pub(crate) fn read(
        &self,
        key: &[u8],
        entry: FileEntry,
        is_right: impl Fn(&StoredResponse) -> bool,
    ) -> Option<Vec<StoredResponse>> {
        let (name, FileEntry(entry)) = (FileName::of(key), entry);
        let bytes = self.shared.folder.read(name, entry.bytes()).unwrap_or_else(|error| {
            self.shared.counts.failed.log(&error, self.shared.folder.path());
            None
        });
        let responses = bytes.and_then(|bytes| {
            let responses = format::decode(bytes, key);
            if responses.is_none() {
                self.shared.counts.damaged.add();
            }
            responses
        });
        let mut state = self.shared.state();
        // Otherwise it is another file by now.
        state.readable(name).filter(|now| *now == entry)?;
        let is_right = responses.as_ref().is_some_and(|responses| {
            responses.iter().all(is_right) && !state.purges.take(key, responses.iter(), entry)
        });
        if !is_right {
            state.drop_file(name);
            self.shared.changed.notify_all();
            return None;
        }
        self.shared.counts.read.add();
        responses
    }

    /// The responses for a key have changed in memory.
    pub(crate) fn change(&self, key: &[u8], responses: &Responses) {
        let is_kept = responses.iter().any(|stored| stored.is_worth_file());
        let mut state = self.shared.state();
        if state.is_closed() {
            return;
        }
        if !(is_kept && state.write_later(key, responses)) {
            state.drop_file(FileName::of(key));
        }
        self.shared.changed.notify_all();
    }

    /// Removes the files of keys at a host and target; `None` if there is nothing to wait for.
    pub(crate) fn remove<'k>(
        &self,
        (host, target): (&[u8], &[u8]),
        keys: impl Iterator<Item = &'k [u8]> + Clone,
    ) -> Option<Removal> {
        let mut state = self.shared.state();
        if let Some(was_open) = state.ended() {
            drop(state);
            if self.shared.is_distrusted.load(SeqCst) {
                return None;
            }
            self.remove_at_end((host, target), keys, was_open);
            return None;
        }
        let waits = state.remove((host, target), keys, self.shared.is_hung.load(SeqCst));
        drop(state);
        self.shared.removal(waits)
    }

    /// The thread has ended, and the process does in a moment.
    fn remove_at_end<'k>(
        &self,
        (host, target): (&[u8], &[u8]),
        keys: impl Iterator<Item = &'k [u8]>,
        was_open: bool,
    ) {
        let mut removed = keys.map(FileName::of).try_for_each(|name| self.shared.folder.remove(name));
        if !was_open {
            let purge = Purge::Exact { host: host.to_vec(), target: target.to_vec() };
            removed = removed.and_then(|()| {
                self.shared.folder.note_purge(&purge, self.late.fetch_add(1, SeqCst)).map(drop)
            });
        }
        if removed.is_err() {
            self.shared.distrust();
        }
    }

    /// Takes out what an operator names of what is there until now, also of files that nobody reads soon.
    pub(crate) fn purge(&self, purge: &Purge) -> Option<Removal> {
        let mut state = self.shared.state();
        if state.ended().is_some() {
            drop(state);
            self.shared.distrust();
            return None;
        }
        let noted = state.purge(purge);
        drop(state);
        self.shared.removal(noted.into_iter().collect())
    }

    /// From now on, another process is told of what changes; or no longer, because there is none.
    pub(crate) fn drain(&self, is_ending: bool) {
        let mut state = self.shared.state();
        match state.ending {
            Ending::None if is_ending => state.ending = Ending::Draining,
            Ending::Draining if !is_ending => {
                state.ending = Ending::None;
                state.purges.keep();
            }
            _ => {}
        }
        self.shared.changed.notify_all();
    }

    /// Another store takes its place, and does not hear of what changes from now on.
    pub(crate) fn retire(&self) {
        if !self.shared.state().is_closed() {
            self.shared.distrust();
        }
    }

    /// Removes the file of a key, when there is time.
    pub(crate) fn drop_file(&self, key: &[u8]) {
        self.shared.state().drop_file(FileName::of(key));
        self.shared.changed.notify_all();
    }

    /// Writes what is not written yet, and ends. Blocks, not for longer than that.
    pub(crate) fn close(&self, deadline: Instant) {
        let mut state = self.shared.state();
        state.ending = Ending::Closing;
        self.shared.changed.notify_all();
        while !state.is_over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                tracing::warn!(folder = %self.shared.folder.path().display(), "the disk of a cache is too slow to be closed");
                return;
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What there is, and what has happened.
    pub(crate) fn counts(&self) -> DiskCounts {
        let state = self.shared.state();
        self.shared.counts.shown(state.is_open(), &state.index)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Without an end of the process, the next store does not hear what changes meanwhile.
        let mut state = self.shared.state();
        if state.ending == Ending::None {
            state.ending = Ending::Abandoned;
        } else if state.ending == Ending::Draining {
            state.ending = Ending::Closing;
        }
        drop(state);
        self.shared.changed.notify_all();
    }
}
