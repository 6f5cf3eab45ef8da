//! The slots of direct return in sluice's memory, and who owns which slot.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_ebpf::slot::{Pool, Slot};

use super::failed::{Result, failed};
use super::tcp;

/// Every slot. The first is never assigned.
pub struct Slots {
    memory: NonNull<Slot>,
    /// Including the first.
    count: usize,
    pool: Mutex<Pool>,
}

// SAFETY: the memory is shared with the kernel anyway, and a slot consists only of atomics.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    /// Maps the array of a map with room for `count` slots and one more into memory.
    ///
    /// # Errors
    /// The kernel refuses the mapping.
    pub(super) fn map(map: &OwnedFd, count: u32) -> Result<Self> {
        let count = count as usize + 1;
        // SAFETY: this creates a new mapping at an address that the kernel chooses, as long as the map's array, which
        // occupies whole pages. The descriptor belongs to a map that allows it, and the kernel keeps the map for as
        // long as the mapping exists.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                count * size_of::<Slot>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(failed("mmap of the slots")(io::Error::last_os_error()));
        }
        let memory = NonNull::new(address.cast::<Slot>())
            .ok_or_else(|| failed("mmap of the slots")(io::Error::other("no address")))?;
        Ok(Self { memory, count, pool: Mutex::new(Pool::new(count as u32)) })
    }

    /// A slot for one of sluice's connections; `None` if all are in use.
    #[must_use]
    pub fn lease(self: &Arc<Self>, socket: BorrowedFd<'_>) -> Option<Lease> {
        let owner = tcp::cookie(socket).ok()?;
        let index = self.lock().take(|index| self.at(index))?;
        self.at(index).assign(owner);
        Some(Lease { slots: Arc::clone(self), index, received: AtomicU32::new(0) })
    }

    fn at(&self, index: u32) -> &Slot {
        debug_assert!((index as usize) < self.count);
        // SAFETY: the index is within the mapping, which lives as long as `self` (leases only have indices below the
        // count). The memory is zeroed at first, and any bytes are a valid slot of atomics.
        unsafe { self.memory.add(index as usize).as_ref() }
    }

    fn give_back(&self, index: u32) {
        self.lock().put(index, self.at(index));
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        // SAFETY: this is the mapping created in `map`, with the same length. `self` is being dropped, so no reference
        // into it exists.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.count * size_of::<Slot>()) };
    }
}

/// A slot that belongs to one connection for as long as that connection is open.
pub struct Lease {
    slots: Arc<Slots>,
    index: u32,
    received: AtomicU32,
}

impl Lease {
    /// The slot's index, with which the connection's socket is marked.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Bytes received on the connection by its previous owners, modulo 2^32.
    #[must_use]
    pub fn received_before(&self) -> u32 {
        self.received.load(Ordering::Relaxed)
    }

    /// Adds the bytes that an owner has received before it hands the connection on.
    pub fn hand_on(&self, received: u32) {
        self.received.fetch_add(received, Ordering::Relaxed);
    }

    /// The slot.
    #[must_use]
    pub fn slot(&self) -> &Slot {
        self.slots.at(self.index)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.slots.give_back(self.index);
    }
}
