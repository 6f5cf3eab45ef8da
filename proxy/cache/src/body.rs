//! The body of a stored response.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;

/// The bytes of a body. Clones share them, and the number.
#[derive(Clone, Debug)]
pub struct Body {
    bytes: Bytes,
    number: u64,
}

impl Body {
    /// A number that no other body of this process has.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { bytes, number: NEXT.fetch_add(1, Relaxed) }
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
