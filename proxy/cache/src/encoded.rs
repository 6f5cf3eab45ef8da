//! Encoded bodies of stored responses, so that each is encoded once.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use super::body::Body;
use super::room::Room;

/// The largest body that is encoded to be kept, in bytes: its client waits for all of it.
pub const ENCODED_BYTES_MAX: usize = 2 << 20;
/// What a place in the table takes.
const PLACE_BYTES: u64 = 128;
/// The mean size of an encoded body, from which the size of the table follows.
const MEAN_BYTES: u64 = 8 * 1024;

/// A body and a form of it: its coding and its level, by a number of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Form(u64, u8);

/// An encoded body, with the room that it takes.
#[derive(Debug)]
pub struct EncodedBody {
    bytes: Bytes,
    _room: Room,
}

impl Deref for EncodedBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a place weighs.
#[derive(Clone, Debug)]
struct Weight;

impl Weighter<Form, Arc<EncodedBody>> for Weight {
    fn weight(&self, _: &Form, encoded: &Arc<EncodedBody>) -> u64 {
        PLACE_BYTES + encoded.len() as u64
    }
}

/// Encoded bodies. One whose response is no longer stored is never found again, and leaves in its turn.
#[derive(Debug)]
pub(crate) struct EncodedBodies {
    table: Table<Form, Arc<EncodedBody>, Weight>,
    /// Bytes of all of them, wherever they are.
    taken: Arc<AtomicU64>,
}

impl EncodedBodies {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let items = usize::try_from(bytes_max / MEAN_BYTES).unwrap_or(usize::MAX).clamp(16, 1 << 20);
        // Each part has room for several of the largest.
        let parts = usize::try_from(bytes_max / (8 * ENCODED_BYTES_MAX as u64)).unwrap_or(1).clamp(1, 16);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(bytes_max)
            .shards(1 << parts.ilog2())
            .build();
        let hasher = DefaultHashBuilder::default();
        let table = match options {
            Ok(options) => Table::with_options(options, Weight, hasher, DefaultLifecycle::default()),
            Err(_) => Table::with(items, bytes_max, Weight, hasher, DefaultLifecycle::default()),
        };
        Self { table, taken: Arc::default() }
    }

    /// Goes on with another bound. What is too much for it leaves.
    pub(crate) fn set(&self, bytes_max: u64) {
        self.table.set_capacity(bytes_max);
    }

    pub(crate) fn get(&self, body: &Body, form: u8) -> Option<Arc<EncodedBody>> {
        self.table.get(&Form(body.number(), form))
    }

    /// Keeps an encoded body; `None` if too many are still sent that are kept no longer.
    pub(crate) fn keep(&self, body: &Body, form: u8, bytes: Bytes) -> Option<Arc<EncodedBody>> {
        let most = self.table.capacity();
        let mut room = Room::new(&self.taken, (u64::MAX, most + most / 2));
        if !room.grow(bytes.len() as u64) {
            return None;
        }
        room.fit(bytes.len() as u64);
        let encoded = Arc::new(EncodedBody { bytes, _room: room });
        self.table.insert(Form(body.number(), form), Arc::clone(&encoded));
        Some(encoded)
    }

    /// Bytes that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.weight()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;

    #[test]
    fn a_body_with_the_same_bytes_is_another_one() {
        let bodies = EncodedBodies::new(1 << 20);
        let (one, other) = (Body::from(Bytes::from_static(b"a")), Body::from(Bytes::from_static(b"a")));
        assert!(bodies.keep(&one, 1, Bytes::from_static(b"encoded")).is_some());
        let found = |body: &Body, form| bodies.get(body, form).map(|encoded| encoded.to_vec());
        assert_eq!(found(&one.clone(), 1), Some(b"encoded".to_vec()));
        assert_eq!((found(&one, 2), found(&other, 1)), (None, None));
    }

    #[test]
    fn memory_is_bounded_also_that_of_bodies_that_are_still_sent() {
        const SIZE: usize = 1 << 12;
        let bodies = EncodedBodies::new(1 << 20);
        let taken = Arc::clone(&bodies.taken);
        let keep = || bodies.keep(&Body::from(Bytes::from_static(b"a")), 0, Bytes::from(vec![0; SIZE]));
        for _ in 0..1000 {
            assert!(keep().is_some());
            assert!(bodies.bytes() <= 1 << 20 && taken.load(SeqCst) <= 1 << 20, "{taken:?}");
        }
        let held: Vec<_> = std::iter::from_fn(keep).take(1000).collect();
        assert!((128..=384).contains(&held.len()), "{}", held.len());
        bodies.set(0);
        drop(bodies);
        assert_eq!(taken.load(SeqCst), (held.len() * SIZE) as u64);
        drop(held);
        assert_eq!(taken.load(SeqCst), 0);
    }
}
