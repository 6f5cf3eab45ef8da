//! Turns banned clients away before a connection exists (Linux 5.8 or later).
//!
//! `bans_door` is the filter of a listening socket (SO_ATTACH_BPF). It runs for the packets that arrive for this socket
//! alone, before the kernel answers a SYN, so it sees nobody else's traffic and needs no more than CAP_BPF. Connections
//! inherit the filter from their listener; their packets pass at the first test.
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "helpers, maps and context are raw pointers that the verifier checks")]

use aya_ebpf::cty::c_void;
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_skb_load_bytes_relative};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{LruHashMap, PerCpuArray};
use aya_ebpf::programs::SkBuffContext;
use sluice_ebpf::bans::{Client, of_v4, of_v6};

/// Clients in the map; sluice sets another maximum when it loads them.
const CLIENTS_MAX: u32 = 16_384;

#[map]
static BANNED: LruHashMap<Client, u64> = LruHashMap::with_max_entries(CLIENTS_MAX, 0);
#[map]
static DROPPED: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// A socket filter returns how many bytes of the packet to keep.
const DROP: u32 = 0;
const KEEP: u32 = u32::MAX;

/// Where a TCP header has its flags (RFC 9293, section 3.1).
const FLAGS_AT: usize = 13;
const SYN: u8 = 0x02;

/// Offsets from the IP header instead of the packet's data, which begins with the TCP header here.
const FROM_IP: u32 = 1;
/// Where the source address is in the IP headers (RFC 791, section 3.1, and RFC 8200, section 3).
const V4_SOURCE_AT: u32 = 12;
const V6_SOURCE_AT: u32 = 8;

/// Written out instead of using aya's macro, for the reason given at `splice_verdict`.
#[unsafe(no_mangle)]
#[unsafe(link_section = "socket")]
fn bans_door(context: *mut c_void) -> u32 {
    let context = SkBuffContext::new(context.cast());
    match is_banned(&context) {
        Some(true) => {
            if let Some(dropped) = DROPPED.get_ptr_mut(0) {
                // SAFETY: the map returned a valid, aligned pointer to this CPU's value, which only this program
                // writes; it cannot be interrupted by itself.
                unsafe { *dropped += 1 };
            }
            DROP
        }
        // A packet that cannot be read is left to the kernel, which checks it next.
        Some(false) | None => KEEP,
    }
}

#[inline(always)]
fn is_banned(context: &SkBuffContext) -> Option<bool> {
    let flags: u8 = context.load(FLAGS_AT).ok()?;
    if flags & SYN == 0 {
        return Some(false);
    }
    let [version] = from_ip::<1>(context, 0)?;
    let client = match version >> 4 {
        4 => of_v4(from_ip(context, V4_SOURCE_AT)?),
        6 => of_v6(from_ip(context, V6_SOURCE_AT)?),
        _ => return None,
    };
    // SAFETY: an entry may be replaced while its value is read; a value of 8 bytes is read at once.
    let until = unsafe { BANNED.get(&client) }?;
    // SAFETY: the helper takes nothing.
    Some(unsafe { bpf_ktime_get_ns() } < *until)
}

/// Reads bytes of the IP header.
#[inline(always)]
fn from_ip<const N: usize>(context: &SkBuffContext, offset: u32) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the context is the kernel's, and the helper writes `N` bytes to the array or fails.
    let failed = unsafe {
        bpf_skb_load_bytes_relative(
            context.skb.skb.cast(),
            offset,
            bytes.as_mut_ptr().cast(),
            N as u32,
            FROM_IP,
        )
    };
    (failed == 0).then_some(bytes)
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
