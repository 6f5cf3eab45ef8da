//! Forwards what one socket of a tunnel receives to the other, without sluice (Linux 5.19 or later).
//!
//! `splice_verdict` (sk_skb, on a map of sockets) runs for each piece that such a socket has received, under its lock.
//! It moves the piece to the other socket's egress and counts it, or leaves it in the socket's own queue, where sluice
//! reads it, and sends a notification. The entry is trivial; the logic is in `verdict`.
#![no_std]
#![no_main]
#![allow(unsafe_code, reason = "helpers, maps and context are raw pointers that the verifier checks")]

mod verdict;

use aya_ebpf::cty::c_void;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{HashMap, RingBuf, SockHash};
use aya_ebpf::programs::SkBuffContext;
use sluice_ebpf::splice::{Gate, Ledger, Limits, SendBuffer};

/// sluice sets it before it loads the object.
#[unsafe(no_mangle)]
static LIMITS: Limits = Limits {
    budget_bytes: 0,
    budget_pieces: 0,
    offsets: SendBuffer { write_seq: 0, sndbuf: 0, wmem_queued: 0 },
};

/// Sockets in the maps; sluice sets another maximum when it loads them.
const SOCKETS_MAX: u32 = 16_384;
const BPF_F_NO_PREALLOC: u32 = 1;
/// One entry of 16 bytes for each direction that returned to sluice and was not read yet.
const BELL_BYTES: u32 = 65_536;

#[map]
static SOCKETS: SockHash<u64> = SockHash::with_max_entries(SOCKETS_MAX, 0);
// Not preallocated: a replaced entry must not be reused while the program still reads it.
#[map]
static GATES: HashMap<u64, Gate> = HashMap::with_max_entries(SOCKETS_MAX, BPF_F_NO_PREALLOC);
#[map]
static LEDGERS: HashMap<u64, Ledger> = HashMap::with_max_entries(SOCKETS_MAX, BPF_F_NO_PREALLOC);
#[map]
static BELLS: RingBuf = RingBuf::with_byte_size(BELL_BYTES, 0);

/// Sees every piece that the sockets in [`SOCKETS`] receive, and nothing else.
///
/// Written out instead of using aya's `#[stream_verdict]`, which names `__sk_buff` in the signature. That type refers
/// to two others only by pointer, and LLVM orders such forward declarations by the addresses in its own memory: about
/// one build in ten had them in the other order.
#[unsafe(no_mangle)]
#[unsafe(link_section = "sk_skb/stream_verdict")]
fn splice_verdict(context: *mut c_void) -> u32 {
    verdict::decide(&SkBuffContext::new(context.cast()))
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
