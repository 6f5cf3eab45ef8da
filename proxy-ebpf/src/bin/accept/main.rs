//! Gives each new connection to the worker with the fewest connections (Linux 5.5 or later).
//!
//! `accept_choose` belongs to the sockets that share a listener's port (SO_ATTACH_REUSEPORT_EBPF). It runs for the first
//! packet of a connection to them and returns the index of a socket. It is a socket filter and not an `sk_reuseport`
//! program: that one needs a map of sockets and more privileges, and a socket can be in one such map only, so that
//! two processes could not share sockets during an upgrade.
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "maps and their values are raw pointers that the verifier checks")]

use aya_ebpf::cty::c_void;
use aya_ebpf::macros::map;
use aya_ebpf::maps::Array;
use sluice_ebpf::accept::{Load, WORKERS_MAX, weight};

const BPF_F_MMAPABLE: u32 = 1 << 10;

/// sluice sets the number of workers when it loads it.
#[map]
static LOADS: Array<Load> = Array::with_max_entries(WORKERS_MAX, BPF_F_MMAPABLE);

/// No socket has this index: the kernel chooses by the addresses.
const BY_ADDRESS: u32 = u32::MAX;

/// Written out instead of using aya's macro, for the reason given at `splice_verdict`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "socket")]
fn accept_choose(_packet: *mut c_void) -> u32 {
    let (mut chosen, mut least) = (BY_ADDRESS, u32::MAX);
    for index in 0..WORKERS_MAX {
        let Some(load) = LOADS.get_ptr(index) else { break };
        // SAFETY: the map returned a valid, aligned pointer. sluice may change the value, so it is read as it is.
        let (given, taken, open) = unsafe {
            (
                (&raw const (*load).given).read_volatile(),
                (&raw const (*load).taken).read_volatile(),
                (&raw const (*load).open).read_volatile(),
            )
        };
        let weight = weight(given, taken, open);
        if weight < least {
            (chosen, least) = (index, weight);
        }
    }
    if let Some(load) = LOADS.get_ptr_mut(chosen) {
        // SAFETY: as above; only this program writes it. A processor that does so at the same time may undo it, which
        // `Load` allows.
        unsafe {
            let given = &raw mut (*load).given;
            given.write_volatile(given.read_volatile().wrapping_add(1));
        }
    }
    chosen
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// Some helpers are only for GPL-compatible programs.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
