//! The slots of direct return in sluice's memory, and who owns which slot.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_ebpf::slot::{Pool, Slot};

use super::failed::{Result, failed};
use super::tcp;

/// The first part that is mapped, in bytes; each further part doubles what is mapped. A multiple of the page size of
/// every architecture.
const FIRST_PART: usize = 64 * 1024;

/// Every slot. The first is never assigned.
pub struct Slots {
    /// The kernel's array. It is mapped in parts, as its slots are leased: a process that few clients use stays small.
    map: OwnedFd,
    /// A range of addresses with room for all slots, of which the parts so far are accessible.
    memory: NonNull<Slot>,
    lent: Mutex<Lent>,
}

/// What is leased.
struct Lent {
    pool: Pool,
    /// How much of the array is mapped, in bytes.
    mapped: usize,
    /// Length of the range of addresses, in bytes.
    reserved: usize,
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
    pub(super) fn map(map: OwnedFd, count: u32) -> Result<Self> {
        let count = count as usize + 1;
        let length = count * size_of::<Slot>();
        // SAFETY: this reserves addresses that the kernel chooses; nothing can be accessed there.
        let address = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_NONE, flags, -1, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(failed("mmap of the slots")(io::Error::last_os_error()));
        }
        let memory = NonNull::new(address.cast::<Slot>())
            .ok_or_else(|| failed("mmap of the slots")(io::Error::other("no address")))?;
        let lent = Lent { pool: Pool::new(count as u32), mapped: 0, reserved: length };
        let slots = Self { map, memory, lent: Mutex::new(lent) };
        // Whether the kernel maps it at all is to be known at the start.
        slots.lock().reach(&slots, 0).map_err(failed("mmap of the slots"))?;
        Ok(slots)
    }

    /// A slot for one of sluice's connections; `None` if all are in use, or the kernel has no memory to map another.
    #[must_use]
    pub fn lease(self: &Arc<Self>, socket: BorrowedFd<'_>) -> Option<Lease> {
        let owner = tcp::cookie(socket).ok()?;
        let index = self.lock().take(self)?;
        self.at(index).assign(owner);
        Some(Lease { slots: Arc::clone(self), index, received: AtomicU32::new(0) })
    }

    fn at(&self, index: u32) -> &Slot {
        // SAFETY: only slots that `Lent::take` has returned are accessed, and it has mapped them, for as long as `self`
        // lives. The memory is zeroed at first, and any bytes are a valid slot of atomics.
        unsafe { self.memory.add(index as usize).as_ref() }
    }

    fn give_back(&self, index: u32) {
        self.lock().pool.put(index, self.at(index));
    }

    fn lock(&self) -> MutexGuard<'_, Lent> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lent {
    /// Takes a free slot, which is then mapped.
    fn take(&mut self, slots: &Slots) -> Option<u32> {
        let index = self.pool.take(|index| slots.at(index))?;
        match self.reach(slots, index) {
            Ok(()) => Some(index),
            Err(error) => {
                tracing::debug!(%error, "no further slot can be mapped");
                self.pool.put_untouched(index);
                None
            }
        }
    }

    /// Maps further parts until one contains the slot.
    fn reach(&mut self, slots: &Slots, index: u32) -> io::Result<()> {
        let end = (index as usize + 1) * size_of::<Slot>();
        while self.mapped < end {
            if self.mapped == self.reserved {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let part = self.mapped.max(FIRST_PART).min(self.reserved - self.mapped);
            // SAFETY: the range from `mapped`, which is a multiple of the page size, over `part` bytes is within the
            // addresses that `Slots::map` has reserved, and no reference into it exists: slots in it were not taken
            // yet. The descriptor belongs to a map that allows it, and the kernel keeps the map for as long as the
            // mapping exists.
            let address = unsafe {
                libc::mmap(
                    slots.memory.as_ptr().cast::<u8>().add(self.mapped).cast(),
                    part,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    slots.map.as_raw_fd(),
                    self.mapped as libc::off_t,
                )
            };
            if address == libc::MAP_FAILED {
                // The kernel may have released these addresses before it failed, so they are no longer ours.
                self.reserved = self.mapped;
                return Err(io::Error::last_os_error());
            }
            self.mapped += part;
        }
        Ok(())
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let reserved = self.lock().reserved;
        // SAFETY: this is the range reserved in `map`, without what may no longer be ours, and all parts in it. `self` is
        // being dropped, so no reference into it exists.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), reserved) };
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    /// A file in memory in place of the kernel's array.
    fn slots(count: u32) -> Arc<Slots> {
        let file = memfd_create(c"slots", MFdFlags::empty()).unwrap();
        nix::unistd::ftruncate(&file, (i64::from(count) + 1) * size_of::<Slot>() as i64).unwrap();
        Arc::new(Slots::map(file, count).unwrap())
    }

    #[test]
    fn every_slot_can_be_leased_and_only_leased_parts_are_mapped() {
        let slots = slots(500);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let first = slots.lease(socket.as_fd()).unwrap();
        assert_eq!((first.index(), slots.lock().mapped), (1, FIRST_PART));
        let leases: Vec<_> = std::iter::from_fn(|| slots.lease(socket.as_fd())).collect();
        assert_eq!(leases.len(), 499);
        assert_eq!(slots.lock().mapped, 501 * size_of::<Slot>());
        let places: Vec<_> = leases.iter().map(|lease| std::ptr::from_ref(lease.slot()) as usize).collect();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] == size_of::<Slot>()));
        drop(first);
        assert_eq!(slots.lease(socket.as_fd()).unwrap().index(), 1);
    }

    #[test]
    fn slot_that_cannot_be_mapped_is_not_leased() {
        let slots = slots(500);
        slots.lock().reserved = FIRST_PART;
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let leases: Vec<_> = std::iter::from_fn(|| slots.lease(socket.as_fd())).collect();
        assert_eq!(leases.len(), FIRST_PART / size_of::<Slot>() - 1);
        drop(leases);
        assert!(slots.lease(socket.as_fd()).is_some());
    }
}
