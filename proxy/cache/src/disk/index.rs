//! Which files there are, in memory: what is not there is not looked for on the disk.

use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::unsync::Cache as Table;
use quick_cache::{DefaultHashBuilder, Lifecycle, OptionsBuilder, Weighter};
use sluice_config::CacheDisk;

use super::format::FileName;

/// What a file takes at least, on most file systems.
const BLOCK_BYTES: u64 = 4096;

/// What is known of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// What it takes on the disk, in blocks.
    blocks: u32,
    /// How many purges there had been when its responses were taken from memory.
    pub(super) purges: u32,
    /// Which file of this name it is.
    generation: u32,
    /// False once memory has or had something newer.
    is_current: bool,
}

impl Entry {
    pub(super) fn new(bytes: u64, purges: u32) -> Self {
        let blocks = u32::try_from(bytes.div_ceil(BLOCK_BYTES)).unwrap_or(u32::MAX);
        Self { blocks, purges, generation: 0, is_current: true }
    }

    /// Bytes of its blocks.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }
}

/// What a file weighs: no less than its part of the maximum number of files.
#[derive(Clone, Debug)]
struct Weight {
    least: u64,
}

impl Weighter<FileName, Entry> for Weight {
    fn weight(&self, _: &FileName, entry: &Entry) -> u64 {
        entry.bytes().max(self.least)
    }
}

/// Collects what leaves the table because of others.
#[derive(Clone, Debug, Default)]
struct Evicted(Arc<Mutex<Vec<(FileName, Entry)>>>);

impl Lifecycle<FileName, Entry> for Evicted {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), name: FileName, entry: Entry) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name, entry));
    }
}

/// The files of a cache.
#[derive(Debug)]
pub(super) struct Index {
    table: Table<FileName, Entry, Weight, DefaultHashBuilder, Evicted>,
    evicted: Evicted,
    config: CacheDisk,
    bytes: u64,
    generation: u32,
}

impl Index {
    /// An index of no files.
    pub(super) fn new(config: &CacheDisk) -> Self {
        let evicted = Evicted::default();
        let least = (config.size_bytes_max / config.files_max.max(1)).max(BLOCK_BYTES);
        let items =
            usize::try_from(config.files_max.min(config.size_bytes_max / least)).unwrap_or(usize::MAX);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(config.size_bytes_max)
            .build();
        let (weight, hasher) = (Weight { least }, DefaultHashBuilder::default());
        let table = match options {
            Ok(options) => Table::with_options(options, weight, hasher, evicted.clone()),
            Err(_) => Table::with(items, config.size_bytes_max, weight, hasher, evicted.clone()),
        };
        Self { table, evicted, config: config.clone(), bytes: 0, generation: 0 }
    }

    /// The sizes for which it is made.
    pub(super) fn config(&self) -> &CacheDisk {
        &self.config
    }

    /// Goes on with another size.
    pub(super) fn set_size(&mut self, bytes_max: u64) {
        self.config.size_bytes_max = bytes_max;
        self.table.set_capacity(bytes_max);
    }

    /// A file that may be read; counts as its use.
    pub(super) fn current(&self, name: FileName) -> Option<Entry> {
        self.table.get(&name).filter(|entry| entry.is_current).copied()
    }

    /// Any file, without counting as a use.
    pub(super) fn peek(&self, name: FileName) -> Option<Entry> {
        self.table.peek(&name).copied()
    }

    /// From now on, there is something newer.
    pub(super) fn supersede(&mut self, name: FileName) -> bool {
        let entry = self.table.peek_mut(&name);
        entry.is_some_and(|mut entry| {
            entry.is_current = false;
            true
        })
    }

    pub(super) fn insert(&mut self, name: FileName, entry: Entry) {
        self.remove(name);
        self.bytes += entry.bytes();
        self.generation = self.generation.wrapping_add(1);
        self.table.insert(name, Entry { generation: self.generation, ..entry });
    }

    pub(super) fn remove(&mut self, name: FileName) -> bool {
        let removed = self.table.remove(&name);
        self.bytes -= removed.as_ref().map_or(0, |(_, entry)| entry.bytes());
        removed.is_some()
    }

    /// What has left because there is no room.
    pub(super) fn take_evicted(&mut self) -> Vec<FileName> {
        let evicted = std::mem::take(&mut *self.evicted.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.bytes -= evicted.iter().map(|(_, entry)| entry.bytes()).sum::<u64>();
        evicted.into_iter().map(|(name, _)| name).collect()
    }

    pub(super) fn names(&self) -> Vec<FileName> {
        self.table.iter().map(|(name, _)| *name).collect()
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many files there are.
    pub(super) fn files(&self) -> u64 {
        self.table.len() as u64
    }
}
