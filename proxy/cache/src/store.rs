//! Stored responses in memory, for all workers together.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use sluice_config::Cache;
use sluice_http::RequestHead;

use super::asked::Caller;
use super::directives::Wishes;
use super::fills::{Fills, Turn};
use super::key::Resource;
use super::purge::Purge;
use super::room::Room;
use super::stored::{StoredResponse, Use};

/// The mean size of a resource, from which the size of the table follows.
const MEAN_BYTES: u64 = 8 * 1024;
/// What a place in the table takes.
const PLACE_BYTES: u64 = 256;
/// Removals that are remembered. A response that was asked for before all of them is not stored.
const REMOVALS: usize = 4096;
/// How long a resource is remembered whose responses are not for others, in milliseconds.
const PASSED_MS: u64 = 60_000;
/// The share of a part of the table that one resource may take, in percent.
const PART_PERCENT: u64 = 90;
/// How many requests at most go for a cache that no client waits for.
const BEHIND_MAX: usize = 100;
/// A part of memory_bytes_max that bodies may take in addition which arrive, or are kept no longer and still sent.
const MORE_PART: u64 = 2;

/// What is known of a resource.
#[derive(Clone, Debug)]
enum Slot {
    /// Its responses, the last stored first.
    Variants(Arc<[Arc<StoredResponse>]>),
    /// Its last response was for one client alone; until then, in milliseconds since 1970.
    Passed(u64),
}

/// What a place weighs.
#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Box<[u8]>, Slot> for Weight {
    fn weight(&self, key: &Box<[u8]>, slot: &Slot) -> u64 {
        let bytes: usize = match slot {
            Slot::Variants(variants) => variants.iter().map(|stored| stored.bytes()).sum(),
            Slot::Passed(_) => 0,
        };
        PLACE_BYTES + (key.len() + bytes) as u64
    }
}

/// What a request finds.
#[derive(Debug)]
pub enum Lookup {
    /// A response, and how it may be used now.
    Stored(Arc<StoredResponse>, Use),
    /// The last response was not for others, so this one will not be either: nobody waits for it.
    Passed,
    /// Nothing that fits.
    Nothing {
        /// What tells this request from those that get another response, if there are some.
        signature: Option<Vec<u8>>,
    },
}

/// A cache, shared by all workers.
#[derive(Debug)]
pub struct Store {
    /// Its name in the configuration.
    pub name: String,
    config: ArcSwap<Cache>,
    table: Table<Box<[u8]>, Slot, Weight>,
    fills: Arc<Fills>,
    /// How many removals there have been.
    removed: AtomicU64,
    hasher: DefaultHashBuilder,
    /// Bytes of all bodies, wherever they are.
    taken: Arc<AtomicU64>,
    /// Held by each request that no client waits for.
    behind: Arc<()>,
    /// Held while responses are put in or taken out, so that none of two is lost.
    change: Mutex<Removals>,
}

/// What was taken out last.
#[derive(Debug)]
struct Removals {
    /// Hashes of hosts and targets, each at its number modulo the length.
    places: Box<[u64]>,
    /// The number of the last removal of an unknown number of keys.
    of_many: u64,
    /// Keys whose responses were changed while an operator purges.
    amid_purge: Option<Vec<Box<[u8]>>>,
}

impl Removals {
    /// To be called with the lock held, when the responses of a key are written anew.
    fn note_change(&mut self, key: &[u8]) {
        if let Some(keys) = &mut self.amid_purge {
            keys.push(key.into());
        }
    }
}

/// A place among the requests that no client waits for.
#[derive(Debug)]
pub struct BackgroundPlace(Arc<()>);

/// Before a request is sent: what is taken out later does not come back with its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch(u64);

impl Store {
    /// An empty cache.
    pub fn new(name: &str, config: &Cache) -> Self {
        Self {
            name: name.to_owned(),
            config: ArcSwap::from_pointee(config.clone()),
            table: table(config),
            fills: Arc::new(Fills::new()),
            removed: AtomicU64::default(),
            hasher: DefaultHashBuilder::default(),
            taken: Arc::default(),
            behind: Arc::default(),
            change: Mutex::new(Removals { places: vec![0; REMOVALS].into(), of_many: 0, amid_purge: None }),
        }
    }

    /// Goes on with other settings. What is too much for them leaves.
    pub fn set(&self, config: &Cache) {
        self.table.set_capacity(config.memory_bytes_max);
        self.config.store(Arc::new(config.clone()));
    }

    /// Whether its table can go on with other settings.
    pub fn can_become(&self, config: &Cache) -> bool {
        parts(config) == parts(&self.config.load())
    }

    /// Its settings.
    pub fn config(&self) -> Arc<Cache> {
        self.config.load_full()
    }

    /// What there is for a request.
    pub fn find(&self, key: &[u8], caller: &Caller<'_>, now_ms: u64) -> Lookup {
        let variants = match self.table.get(key) {
            Some(Slot::Variants(variants)) => variants,
            Some(Slot::Passed(until)) if now_ms < until => return Lookup::Passed,
            Some(Slot::Passed(_)) | None => return Lookup::Nothing { signature: None },
        };
        let Some(stored) = variants.iter().find(|stored| stored.fits(caller)) else {
            let signature = variants.first().map(|other| other.vary.signature(caller));
            return Lookup::Nothing { signature };
        };
        let config = self.config.load();
        let wishes = config.obey_requests.then(|| Wishes::of_request(caller.request));
        Lookup::Stored(Arc::clone(stored), stored.usable(now_ms, wishes.as_ref()))
    }

    /// Whether a request wants nothing that is not stored, and may say so.
    pub fn wants_stored_only(&self, request: &RequestHead) -> bool {
        self.config.load().obey_requests && Wishes::of_request(request).only_if_cached
    }

    /// Whose turn it is to ask the application; `is_late` if the request has waited.
    pub fn turn(&self, key: &[u8], is_late: bool) -> Turn {
        let wait = Duration::from_millis(self.config.load().wait_max_ms);
        self.fills.turn(key, wait, is_late)
    }

    fn changing(&self) -> MutexGuard<'_, Removals> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be asked before a request is sent.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.removed.load(SeqCst))
    }

    /// Whether a resource was taken out since.
    fn is_removed(&self, key: &[u8], since: Epoch, removals: &Removals) -> bool {
        let (since, now) = (since.0, self.removed.load(SeqCst));
        let hash = self.hasher.hash_one(Resource::place(key));
        removals.of_many > since
            || now - since > REMOVALS as u64
            || (since..now).any(|number| removals.places[number as usize % REMOVALS] == hash)
    }

    /// Keeps a response, in place of those for the same requests, and of `old`. False if it is too large, or if the
    /// resource was taken out since `epoch`.
    pub fn keep(
        &self,
        key: &[u8],
        stored: &Arc<StoredResponse>,
        old: Option<&Arc<StoredResponse>>,
        epoch: Epoch,
    ) -> bool {
        let config = self.config.load();
        let mut changing = self.changing();
        if self.is_removed(key, epoch, &changing) {
            return false;
        }
        changing.note_change(key);
        let before = match self.table.peek(key) {
            Some(Slot::Variants(variants)) => variants,
            Some(Slot::Passed(_)) | None => Arc::from([]),
        };
        let is_other = |other: &&Arc<StoredResponse>| {
            other.vary != stored.vary && !old.is_some_and(|old| Arc::ptr_eq(old, other))
        };
        // What is too heavy for its part of the table would leave at once, with everything that is there.
        let mut room = self.table.shard_capacity() / 100 * PART_PERCENT;
        let mut fits = |stored: &&Arc<StoredResponse>| {
            let bytes = stored.bytes() as u64 + PLACE_BYTES + key.len() as u64;
            room.checked_sub(bytes).map(|left| room = left).is_some()
        };
        if !fits(&stored) {
            return false;
        }
        let others = before.iter().filter(is_other).take(config.variants_max - 1).take_while(fits);
        let variants = std::iter::once(stored).chain(others).map(Arc::clone).collect();
        self.table.insert(key.into(), Slot::Variants(variants));
        true
    }

    /// Remembers that the responses of a resource are not for others, unless there is one that is.
    pub fn pass(&self, key: &[u8], now_ms: u64) {
        // Most are known already.
        if matches!(self.table.get(key), Some(Slot::Passed(until)) if until > now_ms + PASSED_MS / 2) {
            return;
        }
        let _changing = self.changing();
        if !matches!(self.table.peek(key), Some(Slot::Variants(_))) {
            self.table.insert(key.into(), Slot::Passed(now_ms + PASSED_MS));
        }
    }

    /// Takes out what is kept under these keys: the resource at a host and target, on each route. It has changed
    /// (RFC 9111 section 4.4).
    pub fn forget<'k>(&self, place: (&[u8], &[u8]), keys: impl Iterator<Item = &'k [u8]>) {
        let mut changing = self.changing();
        let number = self.removed.fetch_add(1, SeqCst);
        changing.places[number as usize % REMOVALS] = self.hasher.hash_one(place);
        keys.for_each(|key| _ = self.table.remove(key));
    }

    /// Takes out one response of a resource: it is no longer right, or there is no room for a newer one.
    pub fn forget_one(&self, key: &[u8], stored: &Arc<StoredResponse>) {
        let mut changing = self.changing();
        changing.note_change(key);
        let Some(Slot::Variants(variants)) = self.table.peek(key) else { return };
        let left: Arc<[_]> =
            variants.iter().filter(|other| !Arc::ptr_eq(other, stored)).map(Arc::clone).collect();
        if left.is_empty() {
            self.table.remove(key);
        } else {
            self.table.insert(key.into(), Slot::Variants(left));
        }
    }

    /// Takes out what an operator names; returns how many resources that were.
    pub fn purge(&self, purge: &Purge) -> u64 {
        let mut changing = self.changing();
        // Requests under way may bring what is to go.
        changing.of_many = self.removed.fetch_add(1, SeqCst) + 1;
        changing.amid_purge = Some(Vec::new());
        // The table is long, and workers wait for the lock.
        drop(changing);
        let taken = AtomicU64::new(0);
        self.table.retain(|key, slot| {
            let Slot::Variants(variants) = slot else { return !purge.takes(key, std::iter::empty()) };
            let takes = purge.takes(key, variants.iter().map(|stored| &**stored));
            if takes {
                taken.fetch_add(1, Relaxed);
            }
            !takes
        });
        // Who has written a resource anew meanwhile may have put back what was just taken out.
        let mut changing = self.changing();
        for key in changing.amid_purge.take().unwrap_or_default() {
            if let Some(Slot::Variants(variants)) = self.table.peek(&key[..])
                && purge.takes(&key, variants.iter().map(|stored| &**stored))
            {
                self.table.remove(&key[..]);
            }
        }
        taken.into_inner()
    }

    /// Room for a body that is arriving, of a length if that is known. `None` if it is too large, or if all bodies
    /// together are: those that arrive, those that are kept, and those that slow clients still get although they are
    /// kept no longer.
    pub fn room(&self, length: Option<u64>) -> Option<Room> {
        let config = self.config.load();
        let limits = (config.object_bytes_max, config.memory_bytes_max + config.memory_bytes_max / MORE_PART);
        let mut room = Room::new(&self.taken, limits);
        room.grow(length.unwrap_or(1)).then_some(room)
    }

    /// A place among the requests that no client waits for; `None` if there are too many.
    pub fn behind(&self) -> Option<BackgroundPlace> {
        let behind = BackgroundPlace(Arc::clone(&self.behind));
        (Arc::strong_count(&behind.0) <= BEHIND_MAX + 1).then_some(behind)
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> u64 {
        self.table.weight()
    }

    /// Resources of which it knows something.
    pub fn resources(&self) -> u64 {
        self.table.len() as u64
    }
}

/// Parts of the table are large enough for a few of the largest objects: none holds more than its own share.
fn parts(config: &Cache) -> usize {
    const OBJECTS_A_PART: u64 = 4;
    const PARTS_MAX: u64 = 64;
    let parts = config.memory_bytes_max / (config.object_bytes_max.max(1) * OBJECTS_A_PART);
    let parts = parts.clamp(1, PARTS_MAX);
    // A power of two, and not more.
    1 << parts.ilog2()
}

fn table(config: &Cache) -> Table<Box<[u8]>, Slot, Weight> {
    let items =
        usize::try_from(config.memory_bytes_max / MEAN_BYTES).unwrap_or(usize::MAX).clamp(16, 1 << 22);
    let options = OptionsBuilder::new()
        .estimated_items_capacity(items)
        .weight_capacity(config.memory_bytes_max)
        .shards(parts(config))
        .build();
    let hasher = DefaultHashBuilder::default();
    match options {
        Ok(options) => Table::with_options(options, Weight, hasher, DefaultLifecycle::default()),
        Err(_) => Table::with(items, config.memory_bytes_max, Weight, hasher, DefaultLifecycle::default()),
    }
}
