//! Buffers of a ring, which the kernel takes only when something has arrived (provided buffers, 5.19; used from 6.12 on).
//!
//! Receives of idle connections wait without a buffer. What has arrived is copied out as soon as the receive is polled,
//! so a few buffers serve any number of connections, and stay in the cache.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use io_uring::{IoUring, cqueue, squeue};

use super::table::Completion;

/// Size of a buffer: most heads fit.
pub(super) const BUFFER_BYTES: usize = 2048;
/// How many receives may end before the first is polled, at the start and at most; further ones get a buffer of their
/// own. The kernel takes them in turn, so more than are needed would only leave the cache. Powers of two.
const BUFFERS_MIN: u16 = 64;
const BUFFERS: u16 = if cfg!(test) { 128 } else { 1024 };
/// The number of this group of buffers; there is no other.
const GROUP: u16 = 0;
/// The ring of entries starts on a page, of the largest size that kernels use.
const PAGE_BYTES: usize = 65_536;
/// The oldest kernel on which this is used, the oldest that it was tested on. For 6.8 there is a report, never explained,
/// that a receive named a buffer that it had not filled (liburing issue 1538): the bytes of another connection.
const KERNEL_MIN: (u32, u32) = (6, 12);
/// Byte offset of the tail in the ring: the unused field of its first entry (io_uring.h).
const TAIL_OFFSET: usize = 14;

/// The buffers, and the ring through which the kernel gets them. Never freed, like the ring of operations.
pub(super) struct Lender {
    /// `BUFFERS` entries, which the kernel reads. The first has the tail in its unused field.
    entries: NonNull<BufRingEntry>,
    /// `BUFFERS` times `BUFFER_BYTES`. The kernel writes to those that it has.
    bytes: NonNull<u8>,
    /// How many buffers were given to the kernel so far, modulo 2^16.
    tail: Cell<u16>,
    /// How many are in use. The others were never given to the kernel.
    used: Cell<u16>,
}

impl Lender {
    /// Gives the buffers to the kernel; `None` if it does not take them.
    pub(super) fn new(ring: &IoUring) -> Option<Self> {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        if version(&release)? < KERNEL_MIN {
            return None;
        }
        let entries = zeroed(usize::from(BUFFERS) * size_of::<BufRingEntry>(), PAGE_BYTES)?.cast();
        let bytes = zeroed(usize::from(BUFFERS) * BUFFER_BYTES, 1)?;
        // SAFETY: the memory is valid for `BUFFERS` entries, starts on a page, and is never freed.
        let registered =
            unsafe { ring.submitter().register_buf_ring(entries.as_ptr() as u64, BUFFERS, GROUP) };
        if let Err(error) = registered {
            tracing::debug!(%error, "the kernel takes no buffers; each idle connection has one");
            return None;
        }
        let lender = Self { entries, bytes, tail: Cell::new(0), used: Cell::new(0) };
        (0..BUFFERS_MIN).for_each(|_| lender.add());
        Some(lender)
    }

    /// Gives the kernel one more, because it had none left.
    pub(super) fn add(&self) {
        let used = self.used.get();
        if used < BUFFERS {
            self.give(used);
            self.used.set(used + 1);
        }
    }

    /// Makes a receive take one of the buffers.
    pub(super) fn select(entry: squeue::Entry) -> squeue::Entry {
        // The number of the group is 0, as in every entry that sets none.
        entry.flags(squeue::Flags::BUFFER_SELECT)
    }

    /// Copies what was received out of the buffer that a completion names, and gives it to the kernel again. Not after
    /// an error: some kernels then name a buffer that they still have (liburing issue 1530), and two receives would share
    /// it. At worst the buffer is used no more.
    pub(super) fn take_back(&self, completion: Completion) -> Vec<u8> {
        let (Ok(count), Some(buffer)) =
            (usize::try_from(completion.result), cqueue::buffer_select(completion.flags))
        else {
            return Vec::new();
        };
        assert!(buffer < BUFFERS && count <= BUFFER_BYTES, "the kernel took a buffer of this ring");
        // SAFETY: the completion gave this buffer back to us, and the kernel wrote `count` bytes to it. Nobody else
        // accesses it until `give`.
        let bytes = unsafe { std::slice::from_raw_parts(self.start(buffer), count) }.to_vec();
        self.give(buffer);
        bytes
    }

    fn start(&self, buffer: u16) -> *mut u8 {
        // SAFETY: `buffer` is less than `BUFFERS`, so its start is within the allocation.
        unsafe { self.bytes.as_ptr().add(usize::from(buffer) * BUFFER_BYTES) }
    }

    /// Gives a buffer that the kernel does not have to the kernel.
    fn give(&self, buffer: u16) {
        let tail = self.tail.get();
        // SAFETY: the index is less than `BUFFERS`. The kernel does not read this entry: it has at most `BUFFERS - 1`
        // buffers, so all entries between its head and the tail are others. Only this thread writes entries, one at a
        // time. The setters leave the field alone that is the tail in the first.
        let entry = unsafe { &mut *self.entries.as_ptr().add(usize::from(tail % BUFFERS)) };
        entry.set_addr(self.start(buffer) as u64);
        entry.set_len(BUFFER_BYTES as u32);
        entry.set_bid(buffer);
        self.tail.set(tail.wrapping_add(1));
        // SAFETY: the offset is within the first entry, at its unused field: an aligned u16 that the kernel reads, and that
        // only this function accesses here. No reference to the entry exists any more.
        let shown =
            unsafe { AtomicU16::from_ptr(self.entries.as_ptr().cast::<u8>().add(TAIL_OFFSET).cast::<u16>()) };
        // The kernel sees the entry before the tail.
        shown.store(self.tail.get(), Ordering::Release);
    }
}

/// The first two numbers of a kernel's release, such as `6.12.0-1-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Zeroed memory. If it is large and not aligned, its pages exist once they are used.
fn zeroed(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let layout = Layout::from_size_align(bytes, align).ok()?;
    // SAFETY: the size is not 0.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() { handle_alloc_error(layout) } else { NonNull::new(memory) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_release_is_read() {
        for (release, wanted) in [
            ("6.12.0-1-amd64\n", Some((6, 12))),
            ("6.8.0-94-generic", Some((6, 8))),
            ("7.0", Some((7, 0))),
            ("6.18.44-fc-v657", Some((6, 18))),
            ("six", None),
            ("", None),
        ] {
            assert_eq!(version(release), wanted, "{release}");
        }
        assert!(version("6.8.0") < Some(KERNEL_MIN) && version("10.1") > Some(KERNEL_MIN));
    }
}
