//! Stored responses, for all workers together: in memory, and on a disk if there is one.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use sluice_config::Cache;
use sluice_http::RequestHead;

use super::asked::Caller;
use super::body::Body;
use super::directives::Wishes;
use super::disk::{Disk, DiskCounts, FileName, ReadPlace, Removal};
use super::encoded::{EncodedBodies, EncodedBody, Encoding};
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
    /// Nothing in memory, but a file, which may be loaded.
    OnDisk,
}

/// A cache, shared by all workers.
#[derive(Debug)]
pub struct Store {
    /// Its name in the configuration.
    pub name: String,
    config: ArcSwap<Cache>,
    table: Table<Box<[u8]>, Slot, Weight>,
    encoded: Arc<EncodedBodies>,
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
    /// Held by a purge.
    purging: Mutex<()>,
    disk: Option<Disk>,
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
            encoded: Arc::new(EncodedBodies::new(config.encoded_bytes_max)),
            fills: Arc::new(Fills::new()),
            removed: AtomicU64::default(),
            hasher: DefaultHashBuilder::default(),
            taken: Arc::default(),
            behind: Arc::default(),
            change: Mutex::new(Removals { places: vec![0; REMOVALS].into(), of_many: 0, amid_purge: None }),
            purging: Mutex::default(),
            disk: config.disk.as_ref().map(|disk| Disk::new(disk, name, config.memory_bytes_max)),
        }
    }

    /// Goes on with other settings. What is too much for them leaves.
    pub fn set(&self, config: &Cache) {
        let memory_bytes_max = config.memory_bytes_max;
        self.table.set_capacity(memory_bytes_max);
        self.encoded.set(config.encoded_bytes_max);
        if let (Some(disk), Some(config)) = (&self.disk, &config.disk) {
            disk.set_size(config.size_bytes_max, memory_bytes_max);
        }
        self.config.store(Arc::new(config.clone()));
    }

    /// Whether its table can go on with other settings.
    pub fn can_become(&self, config: &Cache) -> bool {
        let now = self.config.load();
        // Cookies that were kept must not be given to others any more.
        let is_stricter = now.store_set_cookie && !config.store_set_cookie;
        let has_same_disk = match (&self.disk, &config.disk) {
            (None, None) => true,
            (Some(disk), Some(config)) => disk.can_become(config),
            _ => false,
        };
        parts(config) == parts(&now) && has_same_disk && !is_stricter
    }

    /// Begins to use its disk, if it has one, and has not begun.
    pub fn start(self: &Arc<Self>) {
        if let Some(disk) = &self.disk {
            let store = Arc::downgrade(self);
            disk.start(move |purge| {
                if let Some(store) = store.upgrade() {
                    store.take_out(purge, |_| None);
                }
            });
        }
    }

    /// The process ends, or does not: another one is told of what changes from now on.
    pub fn drain(&self, is_ending: bool) {
        self.disk.iter().for_each(|disk| disk.drain(is_ending));
    }

    /// A reload has made another store in its place, which does not hear of what changes: what is on the disk is not used
    /// again.
    pub fn retire(&self) {
        self.disk.iter().for_each(Disk::retire);
    }

    /// Writes to its disk what is not there yet, and lets another process have it. Blocks, not for longer than that.
    pub fn close(&self, deadline: Instant) {
        if let Some(disk) = &self.disk {
            disk.close(deadline);
        }
    }

    /// What it has on its disk; `None` if it has none.
    pub fn on_disk(&self) -> Option<DiskCounts> {
        self.disk.as_ref().map(Disk::counts)
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
            Some(Slot::Passed(_)) | None => {
                let is_on_disk = self.disk.as_ref().is_some_and(|disk| disk.has(FileName::of(key)));
                return if is_on_disk { Lookup::OnDisk } else { Lookup::Nothing { signature: None } };
            }
        };
        let Some(stored) = variants.iter().find(|stored| stored.fits(caller)) else {
            let signature = variants.first().map(|other| other.vary.signature(caller));
            return Lookup::Nothing { signature };
        };
        let config = self.config.load();
        let wishes = config.obey_requests.then(|| Wishes::of_request(caller.request));
        Lookup::Stored(Arc::clone(stored), stored.usable(now_ms, wishes.as_ref()))
    }

    /// The body of a response in a form, if it was kept. The caller numbers the forms: a coding and its level.
    pub fn encoded(&self, body: &Body, form: u8) -> Option<Arc<EncodedBody>> {
        self.encoded.get(body, form)
    }

    /// Room to encode the body of a response, which is kept then; `None` if it is better sent as it is encoded.
    pub fn begin_encoded(&self, body: &Body, form: u8) -> Option<Encoding> {
        self.encoded.begin(body, form)
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
        let mut room = self.room_in_part();
        let mut fits = |stored: &&Arc<StoredResponse>| {
            let bytes = stored.bytes() as u64 + PLACE_BYTES + key.len() as u64;
            room.checked_sub(bytes).map(|left| room = left).is_some()
        };
        if !fits(&stored) {
            return false;
        }
        let others = before.iter().filter(is_other).take(config.variants_max - 1).take_while(fits);
        let variants: Arc<[_]> = std::iter::once(stored).chain(others).map(Arc::clone).collect();
        if let Some(disk) = &self.disk {
            let is_known =
                old.is_some_and(|old| before.len() == variants.len() && stored.is_short_renewal(old));
            if !is_known {
                disk.change(key, &variants);
            }
        }
        self.table.insert(key.into(), Slot::Variants(variants));
        true
    }

    /// A place among the reads of its disk; `None` if it has none, or if that is busy.
    pub fn loading(self: &Arc<Self>) -> Option<Loading> {
        let place = self.disk.as_ref()?.read_place()?;
        Some(Loading { store: Arc::clone(self), _place: place })
    }

    /// Reads the responses of a resource from its disk, unless there are some in memory. Blocks.
    fn load(&self, key: &[u8], now_ms: u64) {
        let Some(disk) = &self.disk else { return };
        let Some((entry, size)) = disk.entry(key) else { return };
        // Before anything is read.
        let config = self.config.load();
        let mut room = Room::new(&self.taken, (u64::MAX, bytes_in_all(&config)));
        if !room.grow(size) {
            return;
        }
        // Not amid a removal, which has its number before the file is out of reach.
        let epoch = {
            let _changing = self.changing();
            self.epoch()
        };
        // The settings may have changed, or the clock may have been set back.
        let is_right = |stored: &StoredResponse| {
            stored.times.received_ms <= now_ms && (config.store_set_cookie || !stored.sets_cookie())
        };
        let Some(responses) = disk.read(key, entry, is_right) else { return };
        let bytes: u64 = responses.iter().map(|stored| stored.body().len() as u64).sum();
        let weight: u64 = responses.iter().map(|stored| stored.bytes() as u64).sum();
        let is_too_heavy = weight + PLACE_BYTES + key.len() as u64 > self.room_in_part();
        if is_too_heavy {
            return;
        }
        room.fit(bytes);
        let room = Arc::new(room);
        let variants: Arc<[_]> =
            responses.into_iter().map(|stored| Arc::new(stored.within(Some(Arc::clone(&room))))).collect();
        let mut changing = self.changing();
        let is_newer_here = matches!(self.table.peek(key), Some(Slot::Variants(_)));
        let is_present = disk.is_still(key, entry) && !self.is_removed(key, epoch, &changing);
        if !is_newer_here && is_present {
            changing.note_change(key);
            self.table.insert(key.into(), Slot::Variants(variants));
        }
    }

    /// Bytes that one resource may take: what is too heavy for its part of the table would leave at once, with everything
    /// that is there.
    fn room_in_part(&self) -> u64 {
        self.table.shard_capacity() / 100 * PART_PERCENT
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
    /// (RFC 9111 section 4.4). What is on its disk is gone once the removal is done.
    pub fn forget<'k>(
        &self,
        place: (&[u8], &[u8]),
        keys: impl Iterator<Item = &'k [u8]> + Clone,
    ) -> Option<Removal> {
        let mut changing = self.changing();
        let number = self.removed.fetch_add(1, SeqCst);
        changing.places[number as usize % REMOVALS] = self.hasher.hash_one(place);
        keys.clone().for_each(|key| _ = self.table.remove(key));
        self.disk.as_ref().and_then(|disk| disk.remove(place, keys))
    }

    /// Takes out one response of a resource: it is no longer right, or there is no room for a newer one.
    pub fn forget_one(&self, key: &[u8], stored: &Arc<StoredResponse>) {
        let mut changing = self.changing();
        changing.note_change(key);
        let Some(Slot::Variants(variants)) = self.table.peek(key) else { return };
        let left: Arc<[_]> =
            variants.iter().filter(|other| !Arc::ptr_eq(other, stored)).map(Arc::clone).collect();
        if let Some(disk) = &self.disk {
            disk.change(key, &left);
        }
        if left.is_empty() {
            self.table.remove(key);
        } else {
            self.table.insert(key.into(), Slot::Variants(left));
        }
    }

    /// Takes out what an operator names; returns how many resources that were in memory, and the removal of what is on
    /// its disk: nobody gets that any more, but its files go one after the other.
    pub fn purge(&self, purge: &Purge) -> (u64, Option<Removal>) {
        self.take_out(purge, |disk| disk.purge(purge))
    }

    /// Takes it out of memory, and in the same moment of the disk.
    fn take_out(
        &self,
        purge: &Purge,
        of_disk: impl FnOnce(&Disk) -> Option<Removal>,
    ) -> (u64, Option<Removal>) {
        let _one_at_a_time = self.purging.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changing = self.changing();
        // Requests under way may bring what is to go.
        changing.of_many = self.removed.fetch_add(1, SeqCst) + 1;
        changing.amid_purge = Some(Vec::new());
        let removal = self.disk.as_ref().and_then(of_disk);
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
        // A change in the meantime may have put back what was just taken out, here and on the disk. What has left memory
        // since is not known, and goes as well.
        let mut changing = self.changing();
        for key in changing.amid_purge.take().unwrap_or_default() {
            let is_right = match self.table.peek(&key[..]) {
                Some(Slot::Variants(variants)) => !purge.takes(&key, variants.iter().map(|stored| &**stored)),
                Some(Slot::Passed(_)) | None => false,
            };
            if !is_right {
                self.table.remove(&key[..]);
                self.disk.iter().for_each(|disk| disk.drop_file(&key));
            }
        }
        (taken.into_inner(), removal)
    }

    /// Room for a body that is arriving, of a length if that is known. `None` if it is too large, or if all bodies
    /// together are: those that arrive, those that are kept, and those that slow clients still get although they are
    /// kept no longer.
    pub fn room(&self, length: Option<u64>) -> Option<Room> {
        let config = self.config.load();
        let limits = (config.object_bytes_max, bytes_in_all(&config));
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
        self.table.weight() + self.encoded.bytes()
    }

    /// Resources of which it knows something.
    pub fn resources(&self) -> u64 {
        self.table.len() as u64
    }
}

/// A read of a store's disk.
#[derive(Debug)]
pub struct Loading {
    store: Arc<Store>,
    _place: ReadPlace,
}

impl Loading {
    /// Reads the responses of a resource into memory, if they may be used. Blocks.
    pub fn load(self, key: &[u8], now_ms: u64) {
        self.store.load(key, now_ms);
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

/// Bytes that all bodies may take together, wherever they are.
fn bytes_in_all(config: &Cache) -> u64 {
    config.memory_bytes_max + config.memory_bytes_max / MORE_PART
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
