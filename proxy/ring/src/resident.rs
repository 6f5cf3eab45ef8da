//! Asks the kernel which pages of a file it has in memory.
#![allow(unsafe_code, reason = "cachestat(2) has no safe wrapper")]

use std::os::fd::AsRawFd;

use crate::Fd;

/// Its number, the same on every architecture (6.5).
const CACHESTAT: libc::c_long = 451;
const PAGE_BYTES: u64 = 4096;

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
    let (range, mut pages) = (Range { offset, length: count }, Pages::default());
    // SAFETY: the descriptor is open, because `file` holds it. Both structures are the kernel's, they live until the
    // call returns, and the kernel keeps no pointer to them.
    let result =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut pages, 0_u32) };
    let end = offset.checked_add(count)?.div_ceil(PAGE_BYTES);
    (result == 0).then(|| pages.cached >= end - offset / PAGE_BYTES)
}
