//! Encoded bodies of stored responses, so that each is encoded once.

use std::ops::Deref;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use quick_cache::sync::{Cache as Table, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use super::body::Body;
use super::room::Room;

/// The largest body that is encoded to be kept, in bytes: its client waits for all of it.
const ENCODED_BYTES_MAX: usize = 2 << 20;
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

/// A body that is being encoded to be kept, and the room for it: as much as the body takes itself.
#[derive(Debug)]
pub struct Encoding {
    of: Arc<EncodedBodies>,
    form: Form,
    room: Option<Room>,
}

impl Encoding {
    /// Keeps the encoded body.
    pub fn keep(mut self, bytes: Bytes) -> Option<Arc<EncodedBody>> {
        let mut room = self.room.take()?;
        room.fit(bytes.len() as u64);
        let encoded = Arc::new(EncodedBody { bytes, _room: room });
        self.of.table.insert(self.form, Arc::clone(&encoded));
        Some(encoded)
    }
}

impl Drop for Encoding {
    fn drop(&mut self) {
        let mut under_way = self.of.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way.retain(|form| *form != self.form);
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
    /// What is being encoded: a few at a time, as many as there are workers and their connections in turn.
    under_way: Mutex<Vec<Form>>,
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
        Self { table, taken: Arc::default(), under_way: Mutex::default() }
    }

    /// Goes on with another bound. What is too much for it leaves.
    pub(crate) fn set(&self, bytes_max: u64) {
        self.table.set_capacity(bytes_max);
    }

    pub(crate) fn get(&self, body: &Body, form: u8) -> Option<Arc<EncodedBody>> {
        self.table.get(&Form(body.number(), form))
    }

    /// Room to encode a body that is to be kept; `None` if somebody else does so now, if it is too large, or if too many
    /// are still sent that are kept no longer.
    pub(crate) fn begin(self: &Arc<Self>, body: &Body, form: u8) -> Option<Encoding> {
        let form = Form(body.number(), form);
        let most = self.table.capacity();
        let length = body.len() as u64;
        if body.len() > ENCODED_BYTES_MAX || length > self.table.shard_capacity() / 2 {
            return None;
        }
        {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            if under_way.contains(&form) {
                return None;
            }
            under_way.push(form);
        }
        // From here on, dropping it ends the work.
        let mut encoding = Encoding { of: Arc::clone(self), form, room: None };
        let mut room = Room::new(&self.taken, (length, most + most / 2));
        if !room.grow(length) {
            return None;
        }
        encoding.room = Some(room);
        Some(encoding)
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

    fn body(bytes: usize) -> Body {
        Body::from(Bytes::from(vec![0; bytes]))
    }

    #[test]
    fn a_body_with_the_same_bytes_is_another_one() {
        let bodies = Arc::new(EncodedBodies::new(1 << 20));
        let (one, other) = (body(10), body(10));
        let encoding = bodies.begin(&one, 1);
        assert!(encoding.and_then(|encoding| encoding.keep(Bytes::from_static(b"encoded"))).is_some());
        let found = |body: &Body, form| bodies.get(body, form).map(|encoded| encoded.to_vec());
        assert_eq!(found(&one.clone(), 1), Some(b"encoded".to_vec()));
        assert_eq!((found(&one, 2), found(&other, 1)), (None, None));
    }

    #[test]
    fn each_is_encoded_by_one_at_a_time() {
        let bodies = Arc::new(EncodedBodies::new(1 << 20));
        let one = body(10);
        let encoding = bodies.begin(&one, 1);
        assert!(encoding.is_some() && bodies.begin(&one, 1).is_none() && bodies.begin(&one, 2).is_some());
        drop(encoding);
        assert!(bodies.begin(&one, 1).is_some());
        assert_eq!(bodies.taken.load(SeqCst), 0);
        assert!(bodies.begin(&body((1 << 19) + 1), 1).is_none(), "it would not stay");
    }

    #[test]
    fn memory_is_bounded_also_that_of_bodies_that_are_still_sent() {
        const SIZE: usize = 1 << 12;
        let bodies = Arc::new(EncodedBodies::new(1 << 20));
        let taken = Arc::clone(&bodies.taken);
        let keep = || bodies.begin(&body(SIZE), 0)?.keep(Bytes::from(vec![0; SIZE]));
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
