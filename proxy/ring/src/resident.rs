//! Asks the kernel which pages of a file it has in memory.
#![allow(unsafe_code, reason = "cachestat(2) and preadv2(2) have no safe wrappers here")]

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::Fd;

/// The number of cachestat(2), the same on every architecture (6.5).
const CACHESTAT: libc::c_long = 451;
const PAGE_BYTES: u64 = 4096;
/// Between two bytes that are tried: the kernel reads ahead at least as much.
const PROBE_BYTES: u64 = 64 * 1024;

/// struct cachestat_range (linux/mman.h).
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// struct cachestat (linux/mman.h), in pages.
#[derive(Default)]
#[repr(C)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Whether all pages of these bytes are in memory; `None` if the kernel cannot tell.
pub(crate) fn is_resident(file: &Fd, offset: u64, count: u64) -> Option<bool> {
    /// Whether cachestat(2) has failed: it is not known, denied, or only for the owner of the file (6.14).
    static IS_DENIED: AtomicBool = AtomicBool::new(false);
    if !IS_DENIED.load(Relaxed) {
        match cached_pages(file, offset, count) {
            Some(cached) => {
                let end = offset.checked_add(count)?.div_ceil(PAGE_BYTES);
                return Some(cached >= end - offset / PAGE_BYTES);
            }
            None => IS_DENIED.store(true, Relaxed),
        }
    }
    let last = offset.checked_add(count)?.checked_sub(1)?;
    let mut at = offset;
    while at < last {
        if !has_byte(file, at)? {
            return Some(false);
        }
        at = at.saturating_add(PROBE_BYTES);
    }
    has_byte(file, last)
}

fn cached_pages(file: &Fd, offset: u64, count: u64) -> Option<u64> {
    let (range, mut pages) = (Range { offset, length: count }, Pages::default());
    // SAFETY: the descriptor is open, because `file` holds it. Both structures are the kernel's, they live until the
    // call returns, and the kernel keeps no pointer to them.
    let result =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, 0_u32) };
    (result == 0).then_some(pages.cached)
}

/// Whether a byte can be read without waiting (preadv2(2) with RWF_NOWAIT; 4.14); `None` if the filesystem cannot tell.
fn has_byte(file: &Fd, offset: u64) -> Option<bool> {
    let mut byte = 0_u8;
    let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let offset = libc::off_t::try_from(offset).ok()?;
    // SAFETY: the descriptor is open, because `file` holds it. The kernel writes at most one byte to `byte`, which lives
    // until the call returns, and keeps no pointer.
    let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const part, 1, offset, libc::RWF_NOWAIT) };
    match read {
        0.. => Some(true),
        _ if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => Some(false),
        _ => None,
    }
}
