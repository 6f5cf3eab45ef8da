//! A copy of a body that passes, for the cache.

use sluice_cache::{Admission, Room};

/// How much room is taken at a time.
const STEP_BYTES: u64 = 64 * 1024;

/// What has passed so far.
pub(crate) struct BodyCopy {
    pub(crate) admission: Box<Admission>,
    pub(crate) bytes: Vec<u8>,
    room: Room,
}

impl BodyCopy {
    pub(crate) fn new(admission: Box<Admission>, room: Room) -> Self {
        Self { admission, bytes: Vec::new(), room }
    }

    /// Adds a piece; false if there is no room for it.
    pub(super) fn push(&mut self, piece: &[u8]) -> bool {
        let needed = (self.bytes.len() + piece.len()) as u64;
        if needed > self.room.bytes() && !self.room.grow(needed.next_multiple_of(STEP_BYTES), needed) {
            return false;
        }
        self.bytes.extend_from_slice(piece);
        true
    }
}
