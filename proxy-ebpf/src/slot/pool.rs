//! Which slots are free. For sluice alone.

use alloc::vec::Vec;

use super::{Phase, Slot};

/// Indices of slots that nobody has, and of those that were given up while the program had them.
#[derive(Debug)]
pub struct Pool {
    free: Vec<u32>,
    busy: Vec<u32>,
}

impl Pool {
    /// All slots of `count`, but for the first, which is nobody's.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self { free: (1..count).rev().collect(), busy: Vec::new() }
    }

    /// Takes one that the program lets be; `None` if there is none. `at` finds a slot by its index.
    pub fn take<'a>(&mut self, at: impl Fn(u32) -> &'a Slot) -> Option<u32> {
        let Self { free, busy } = self;
        // Those that the program has left since.
        busy.retain(|index| match at(*index).take_over() {
            Phase::Busy => true,
            _ => {
                free.push(*index);
                false
            }
        });
        free.pop()
    }

    /// Takes a slot back, whatever the program does with it now.
    pub fn put(&mut self, index: u32, slot: &Slot) {
        // After that the program lets it be, unless it has it now.
        let busy = slot.take_over() == Phase::Busy;
        if busy { self.busy.push(index) } else { self.free.push(index) }
    }
}
