//! What has happened to the files of a cache.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::index::Index;

/// Events of one kind.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// How often failures are logged at most.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// Failures of the disk: counted all, and one a minute logged.
#[derive(Debug, Default)]
pub(super) struct Failures {
    count: Count,
    logged: Mutex<Option<Instant>>,
}

impl Failures {
    pub(super) fn log(&self, error: &io::Error, folder: &Path) {
        self.count.add();
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|logged| logged.elapsed() > LOG_PERIOD) {
            *logged = Some(Instant::now());
            tracing::warn!(folder = %folder.display(), %error, "a file of a cache cannot be used; more failures within a minute are counted only");
        }
    }
}

/// Events since the start.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) read: Count,
    pub(super) written: Count,
    pub(super) damaged: Count,
    pub(super) failed: Failures,
}

/// What a cache has on its disk, and what has happened there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskCounts {
    /// Whether the folder is in use: not while another process has it.
    pub is_open: bool,
    /// Bytes of all files, in whole blocks.
    pub bytes: u64,
    /// How many files there are.
    pub files: u64,
    /// Resources that were read.
    pub read: u64,
    /// Resources that were written.
    pub written: u64,
    /// Files that were not as they had been written.
    pub damaged: u64,
    /// Operations that have failed.
    pub failed: u64,
}

impl Counts {
    pub(super) fn shown(&self, is_open: bool, index: &Index) -> DiskCounts {
        let of = |count: &Count| count.0.load(Relaxed);
        DiskCounts {
            is_open,
            bytes: index.bytes(),
            files: index.files(),
            read: of(&self.read),
            written: of(&self.written),
            damaged: of(&self.damaged),
            failed: of(&self.failed.count),
        }
    }
}
