//! Sizes of a worker's body buffers: large for a few long bodies, small otherwise.

use std::cell::Cell;
use std::rc::Rc;

/// Size of the receive that waits for a request, or for a small response. Most heads fit, and an idle connection holds
/// no more.
pub const IDLE_BYTES: usize = 2 * 1024;
/// Size of a receive for heads, and for bodies that arrive in small pieces.
pub const SMALL_BYTES: usize = 8 * 1024;
/// Size of a receive for long bodies. Larger buffers would leave the second-level cache before they are sent.
const LARGE_BYTES: usize = 64 * 1024;
/// A copy has one buffer that is being filled and one that is being sent.
const BUFFERS_PER_COPY: usize = 2;

/// One worker's budget of large buffers. Clones share it.
#[derive(Clone)]
pub struct Buffers {
    available_bytes: Rc<Cell<usize>>,
}

/// The right to use large buffers for one copy; returned to the budget when dropped.
struct Lease {
    available_bytes: Rc<Cell<usize>>,
}

impl Buffers {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { available_bytes: Rc::new(Cell::new(bytes_max)) }
    }

    fn lease(&self) -> Option<Lease> {
        let left = self.available_bytes.get().checked_sub(LARGE_BYTES * BUFFERS_PER_COPY)?;
        self.available_bytes.set(left);
        Some(Lease { available_bytes: Rc::clone(&self.available_bytes) })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.available_bytes.set(self.available_bytes.get() + LARGE_BYTES * BUFFERS_PER_COPY);
    }
}

/// The size of the next receive of one copy. It grows when receives fill their buffer and falls back when they do not,
/// so that an idle stream holds little memory.
pub struct Appetite<'a> {
    buffers: &'a Buffers,
    lease: Option<Lease>,
    small_bytes: usize,
}

impl<'a> Appetite<'a> {
    /// For a body of which `remaining` bytes are still expected, if known.
    pub fn new(buffers: &'a Buffers, remaining: Option<u64>, small_bytes: usize) -> Self {
        let long = remaining.is_some_and(|bytes| bytes > SMALL_BYTES as u64);
        Self { buffers, lease: if long { buffers.lease() } else { None }, small_bytes }
    }

    /// The size of the next receive.
    pub fn bytes(&self) -> usize {
        if self.lease.is_some() { LARGE_BYTES } else { self.small_bytes }
    }

    /// Adjusts the size to the number of bytes that a receive returned.
    pub fn observe(&mut self, received: usize) {
        if received >= self.small_bytes {
            if self.lease.is_none() {
                self.lease = self.buffers.lease();
            }
        } else {
            self.lease = None;
        }
    }
}
