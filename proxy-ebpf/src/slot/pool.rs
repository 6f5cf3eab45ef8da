//! Which slots are free. Only for sluice.

use alloc::vec::Vec;

use super::{Phase, Slot};

/// Indices of free slots, and of those that were returned while the program owned them.
#[derive(Debug)]
pub struct Pool {
    free: Vec<u32>,
    busy: Vec<u32>,
}

impl Pool {
    /// All slots below `count` except the first, which is never assigned.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self { free: (1..count).rev().collect(), busy: Vec::new() }
    }

    /// Takes a slot that the program does not use; `None` if there is none. `at` finds a slot by its index.
    pub fn take<'a>(&mut self, at: impl Fn(u32) -> &'a Slot) -> Option<u32> {
        let Self { free, busy } = self;
        // Slots that the program has left since then.
        busy.retain(|index| match at(*index).take_over() {
            Phase::Busy => true,
            _ => {
                free.push(*index);
                false
            }
        });
        free.pop()
    }

    /// Returns a slot that was not accessed since it was taken.
    pub fn put_untouched(&mut self, index: u32) {
        self.free.push(index);
    }

    /// Returns a slot, whatever the program is doing with it.
    pub fn put(&mut self, index: u32, slot: &Slot) {
        // After this, the program does not touch it, unless it owns it right now.
        let busy = slot.take_over() == Phase::Busy;
        if busy { self.busy.push(index) } else { self.free.push(index) }
    }
}
