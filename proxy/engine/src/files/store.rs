//! What a worker keeps of files: bounded memory for contents and descriptors.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use nix::sys::resource::{Resource, getrlimit};
use quick_cache::Weighter;
use quick_cache::unsync::Cache;
use sluice_config::FileCache;
use sluice_core::clock;

use super::folder::Folders;
use super::stored::StoredFile;

/// The mean weight of what is kept, from which the size of its table follows.
const MEAN_BYTES: u64 = 8 * 1024;
/// How long something is kept without a request, in milliseconds.
const UNUSED_MS: u64 = 60_000;

/// One worker's files.
#[derive(Default)]
pub(crate) struct FileStore {
    pub(super) folders: Folders,
    /// `None` until the first file.
    kept: RefCell<Option<Kept>>,
    /// The key that is looked up, to be used again.
    key: RefCell<Vec<u8>>,
    /// When it was last searched for what nobody asks for.
    searched_ms: Cell<u64>,
}

struct Kept {
    files: Cache<Box<[u8]>, Rc<StoredFile>, Weight>,
    bytes_max: u64,
}

/// What a file weighs.
#[derive(Clone)]
struct Weight {
    /// An open one: so much that all of them together leave most descriptors to connections.
    open: u64,
}

impl Weighter<Box<[u8]>, Rc<StoredFile>> for Weight {
    fn weight(&self, key: &Box<[u8]>, file: &Rc<StoredFile>) -> u64 {
        key.len() as u64 + file.weight(self.open)
    }
}

/// How many files a worker may keep open: a quarter of the process's descriptors is for all of them.
fn open_files_max(workers: usize) -> u64 {
    const SHARE: u64 = 4;
    let most = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    (most / SHARE / workers.max(1) as u64).max(1)
}

impl FileStore {
    /// A file that was found for these parts of a key, and when it was looked at last.
    pub(super) fn get(&self, parts: &[&[u8]]) -> Option<Rc<StoredFile>> {
        let kept = self.kept.borrow();
        let key = &mut *self.key.borrow_mut();
        key.clear();
        parts.iter().for_each(|part| key.extend_from_slice(part));
        kept.as_ref()?.files.get(&key[..]).map(Rc::clone)
    }

    /// Keeps a file. The policy is that of quick_cache: what is asked for once does not push out what is asked for often.
    pub(super) fn keep(&self, parts: &[&[u8]], file: &Rc<StoredFile>, limits: &FileCache, workers: usize) {
        let bytes_max = limits.memory_bytes_max / workers.max(1) as u64;
        if bytes_max == 0 {
            return;
        }
        let kept = &mut *self.kept.borrow_mut();
        if kept.as_ref().is_none_or(|kept| kept.bytes_max != bytes_max) {
            let items = usize::try_from(bytes_max / MEAN_BYTES).unwrap_or(usize::MAX).clamp(16, 1 << 20);
            let weight = Weight { open: bytes_max / open_files_max(workers) };
            *kept = Some(Kept { files: Cache::with_weighter(items, bytes_max, weight), bytes_max });
        }
        if let Some(kept) = kept {
            kept.files.insert(parts.concat().into(), Rc::clone(file));
        }
    }

    /// Lets go of all descriptors: the process has none left.
    pub(super) fn close_all(&self) {
        let Some(mut kept) = self.kept.borrow_mut().take() else { return };
        let files = kept.files.drain().map(|(_, file)| file);
        files.filter_map(Rc::into_inner).for_each(StoredFile::close);
    }

    /// Lets go of what nobody asks for any more: folders, and files that were not looked at for a while.
    pub(crate) fn tick(&self) {
        let now = clock::now_ms();
        if now < self.searched_ms.get() + UNUSED_MS {
            return;
        }
        self.searched_ms.set(now);
        self.folders.close_old(UNUSED_MS);
        if let Some(kept) = &mut *self.kept.borrow_mut() {
            kept.files.retain(|_, file| now <= file.checked_ms.get() + UNUSED_MS);
        }
    }
}
