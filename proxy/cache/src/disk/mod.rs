//! What a cache keeps beyond its memory: a file for each resource, written and removed by a thread of its own.
//!
//! While a resource is in memory, memory is right; its file is read only when it is not. The thread takes what it
//! writes from memory, so that nothing waits for the disk but what is removed: a removal is told once the file is gone.

mod counts;
mod folder;
mod format;
mod index;
mod keeper;
mod purges;
mod state;
#[cfg(test)]
mod tests;
mod writes;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sluice_config::CacheDisk;
use tokio::sync::oneshot;

pub use counts::DiskCounts;
pub(crate) use format::FileName;

use crate::purge::Purge;
use crate::stored::StoredResponse;
use counts::Counts;
use folder::Folder;
use state::State;
use writes::Responses;

/// Reads at the same time, of one cache. Beyond that, the disk is slow, and the application is asked.
const READS_MAX: usize = 16;

/// The part of a cache's memory that may wait to be written, although it has left memory perhaps.
const UNWRITTEN_PART: u64 = 4;

/// Files of a cache.
#[derive(Debug)]
pub(crate) struct Disk {
    shared: Arc<Shared>,
    /// Held by each read.
    reads: Arc<()>,
}

/// What the thread and the workers share.
#[derive(Debug)]
struct Shared {
    folder: Folder,
    state: Mutex<State>,
    /// Told when there is work, and when there is none left for ever.
    changed: Condvar,
    counts: Counts,
}

/// A place among the reads of a cache.
#[derive(Debug)]
pub(crate) struct ReadPlace(#[allow(dead_code, reason = "counted by its copies")] Arc<()>);

/// The removal of files, which may be waited for. The next process does not see them either once it is done.
#[derive(Debug)]
pub struct Removal(oneshot::Receiver<()>);

impl Removal {
    pub(crate) fn of(wait: Option<oneshot::Receiver<()>>) -> Option<Self> {
        wait.map(Self)
    }

    /// Waits until the files are gone.
    pub async fn done(self) {
        // A thread that has ended has closed the folder.
        let _ = self.0.await;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Disk {
    /// Files in the folder of a cache of this name. Nothing happens until it is started.
    pub(crate) fn new(config: &CacheDisk, cache: &str, memory_bytes_max: u64) -> Self {
        let shared = Shared {
            folder: Folder::new(&config.folder, cache),
            state: Mutex::new(State::new(config, memory_bytes_max / UNWRITTEN_PART)),
            changed: Condvar::new(),
            counts: Counts::default(),
        };
        Self { shared: Arc::new(shared), reads: Arc::default() }
    }

    /// Starts its thread, unless that runs already.
    pub(crate) fn start(&self) {
        if !self.shared.state().begin() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let started =
            std::thread::Builder::new().name("cache-disk".to_owned()).spawn(move || keeper::run(&shared));
        if let Err(error) = started {
            tracing::error!(%error, "cannot start the thread of a cache's disk; it keeps its responses in memory");
            self.shared.state().end();
        }
    }

    /// Goes on with another size.
    pub(crate) fn set_size(&self, bytes_max: u64) {
        self.shared.state().set_size(bytes_max);
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

    /// The responses for a key; `None` if there are none, or none that are right. Blocks.
    pub(crate) fn read(&self, key: &[u8]) -> Option<Vec<StoredResponse>> {
        let name = FileName::of(key);
        let entry = self.shared.state().readable(name)?;
        let bytes = match self.shared.folder.read(name) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.shared.counts.failed.log(&error, self.shared.folder.path());
                None
            }
        };
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
        let is_right =
            responses.as_ref().is_some_and(|responses| !state.purges.take(key, responses.iter(), entry));
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

    /// Removes the files of keys; `None` if there is nothing to wait for.
    pub(crate) fn remove<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Option<oneshot::Receiver<()>> {
        let removed = self.shared.state().remove(keys);
        self.shared.changed.notify_all();
        removed
    }

    /// Takes out what an operator names of what is there until now, also of files that nobody reads soon.
    pub(crate) fn purge(&self, purge: &Purge) -> Option<oneshot::Receiver<()>> {
        let noted = self.shared.state().purge(purge);
        self.shared.changed.notify_all();
        noted
    }

    /// Removes the file of a key, when there is time.
    pub(crate) fn drop_file(&self, key: &[u8]) {
        self.shared.state().drop_file(FileName::of(key));
        self.shared.changed.notify_all();
    }

    /// Writes what is not written yet, and ends. Blocks, not for longer than that.
    pub(crate) fn close(&self, deadline: Instant) {
        let mut state = self.shared.state();
        state.is_closing = true;
        self.shared.changed.notify_all();
        while !state.is_closed() {
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
        self.shared.state().is_closing = true;
        self.shared.changed.notify_all();
    }
}
