//! Whether the kernel may be short of memory for a message; see [`sluice_ebpf::memory`].
//!
//! A margin replaces exactness: memory that is found free here is not reserved.

use aya_ebpf::helpers::generated::bpf_jiffies64;
use sluice_ebpf::End;

use crate::send::read;
use crate::{THRIFT, setting};

/// Memory groups to check, from a socket's own upwards.
const GROUPS_MAX: u32 = 5;
const PAGE_BYTES: u32 = 4096;
/// Offset of the second of three numbers.
const PRESSURE_LIMIT: u32 = 8;
/// Pages that other sockets may take in the meantime.
const SPARE_PAGES: u64 = 32;

/// Whether the other end of a socket, or a client of the same process, might not get memory for `size` bytes: TCP as a
/// whole is under memory pressure or close to it, or the memory group is close to its limit (cgroup v1) or under
/// pressure (v2). Everything except v1's count is checked once per tick of the kernel's clock, because memory does not
/// fill up at once.
#[inline(always)]
pub(crate) fn is_scarce(end: &mut End, size: u32) -> bool {
    if THRIFT.get(0).is_none_or(|thrift| *thrift == 0) {
        return false;
    }
    // SAFETY: takes no arguments.
    let now = unsafe { bpf_jiffies64() };
    if end.looked != now as u32 {
        end.looked = now as u32;
        end.scarce = u32::from(is_host_pressed(end) || is_group_pressed(end.peer, now));
    }
    end.scarce != 0 || is_group_full(end.peer, size)
}

#[inline(always)]
fn is_host_pressed(end: &End) -> bool {
    if end.allocated == 0 {
        return false;
    }
    let most = read::<i64>(end.limits, PRESSURE_LIMIT);
    read::<i64>(end.allocated, 0) > most - most / 8 || read::<u64>(end.pressed, 0) != 0
}

#[inline(always)]
fn is_group_pressed(socket: u64, now: u64) -> bool {
    if setting!(memory.pressed_until) == 0 {
        return false;
    }
    let mut group = read::<u64>(socket, setting!(memory.group));
    for _ in 0..GROUPS_MAX {
        if group == 0 {
            return false;
        }
        let until = read::<u64>(group, setting!(memory.pressed_until));
        if until.wrapping_sub(now) as i64 > 0 {
            return true;
        }
        group = read::<u64>(group, setting!(memory.group_parent));
    }
    false
}

/// Whether a memory group of the socket has too little left for TCP (cgroup v1) to take `size` bytes. An eighth of its
/// limit is reserved for what TCP itself requires.
#[inline(always)]
fn is_group_full(socket: u64, size: u32) -> bool {
    if setting!(memory.counter) == 0 {
        return false;
    }
    let group = read::<u64>(socket, setting!(memory.group));
    if group == 0 {
        return false;
    }
    // Twice, because a piece may occupy only part of a page.
    let wanted = u64::from(size / PAGE_BYTES) * 2 + SPARE_PAGES;
    let mut counter = group + u64::from(setting!(memory.counter));
    for _ in 0..GROUPS_MAX {
        let max = read::<u64>(counter, setting!(memory.max));
        if read::<u64>(counter, setting!(memory.usage)) + wanted > max - max / 8 {
            return true;
        }
        counter = read::<u64>(counter, setting!(memory.counter_parent));
        if counter == 0 {
            return false;
        }
    }
    false
}
