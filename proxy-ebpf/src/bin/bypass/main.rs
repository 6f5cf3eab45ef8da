//! Joins the two ends of sluice's own connections on this host, without loopback TCP (Linux 5.19 or later).
//!
//! `bypass_track` (sock_ops, on a cgroup2) adds both ends of such a connection to a map when they are
//! established; `bypass_send` (sk_msg, on that map) moves each message straight into the other end's receive
//! queue, if that keeps the order and the limits. sluice runs `bypass_unread` to get an end's unread bytes, and
//! tests run `direct_head` to test the parser of heads in the kernel. Entries are trivial; the logic is in
//! `try_*`.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![allow(unsafe_code, reason = "helpers, maps and context are raw pointers that the verifier checks")]

mod address;
mod direct;
mod head;
mod memory;
mod send;
mod storage;
mod track;
mod unread;

use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::btf_maps::SkStorage;
use aya_ebpf::cty::c_void;
use aya_ebpf::helpers::generated::bpf_sk_storage_get;
use aya_ebpf::macros::{btf_map, map, sk_msg, sock_ops};
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, SockHash};
use aya_ebpf::programs::{SkMsgContext, SockOpsContext, TcContext};
use sluice_ebpf::head::{Scratch, TRIAL_ACCEPTED};
use sluice_ebpf::slot::Slot;
use sluice_ebpf::{Counter, End, Known, Memory, Offsets, Service, Settings, Tuple};

use storage::ClonedStorage;

/// sluice sets it before it loads the object.
#[unsafe(no_mangle)]
static SETTINGS: Settings = Settings {
    budget_bytes: 0,
    budget_messages: 0,
    any_namespace: 0,
    clients: 0,
    direct: 0,
    offsets: Offsets {
        rmem_alloc: 0,
        rcvlowat: 0,
        shutdown: 0,
        owned: 0,
        cookie: 0,
        copied_seq: 0,
        write_seq: 0,
        socket: 0,
        state: 0,
        err: 0,
        wmem_queued: 0,
        sndbuf: 0,
        max_window: 0,
        notsent_lowat: 0,
        snd_nxt: 0,
        snd_una: 0,
        ulp: 0,
    },
    memory: Memory {
        prot: 0,
        allocated: 0,
        limits: 0,
        pressed: 0,
        group: 0,
        counter: 0,
        usage: 0,
        max: 0,
        counter_parent: 0,
        pressed_until: 0,
        group_parent: 0,
    },
};

/// Ends in the maps; sluice sets another maximum when it loads them.
const ENDS_MAX: u32 = 16_384;
/// Addresses on which sluice listens; as many as it may have.
const SERVICES_MAX: u32 = 1024;
const BPF_F_NO_PREALLOC: u32 = 1;
const BPF_F_MMAPABLE: u32 = 1 << 10;

#[map]
static ENDS: SockHash<u64> = SockHash::with_max_entries(ENDS_MAX, 0);
#[map]
static KNOWN: HashMap<Tuple, Known> = HashMap::with_max_entries(ENDS_MAX, BPF_F_NO_PREALLOC);
#[map]
static SERVICES: HashMap<Service, u32> = HashMap::with_max_entries(SERVICES_MAX, BPF_F_NO_PREALLOC);
#[btf_map]
static STATE: ClonedStorage<End> = ClonedStorage::new();
#[map]
static SLOTS: Array<Slot> = Array::with_max_entries(1, BPF_F_MMAPABLE);
#[map]
static CLIENTS: SockHash<u64> = SockHash::with_max_entries(1, 0);
#[btf_map]
static HEADS: SkStorage<Scratch> = SkStorage::new();
#[map]
static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(Counter::COUNT as u32, 0);
#[map]
static STOP: Array<u32> = Array::with_max_entries(1, 0);
#[map]
static THRIFT: Array<u32> = Array::with_max_entries(1, 0);

/// Only for tests, like the program that uses it.
#[map]
static HEAD_TRIAL: Array<Scratch> = Array::with_max_entries(1, 0);

/// Sees every connection of the machine, so it must return at once for those that are not sluice's.
#[sock_ops]
fn bypass_track(ctx: SockOpsContext) -> u32 {
    track::try_track(&ctx);
    // 1 keeps the reply with which the operation started, as if no program had run.
    1
}

/// Sees every message of the sockets in [`ENDS`], and no other.
#[sk_msg]
fn bypass_send(ctx: SkMsgContext) -> u32 {
    send::try_send(&ctx)
}

/// A classifier, written out instead of using aya's `#[classifier]`, which names `__sk_buff` in the signature. That
/// type refers to two others only by pointer, and LLVM orders such forward declarations by the addresses in its own
/// memory: about one build in ten would have different bytes.
macro_rules! classifier {
    ($(#[$doc:meta])* $name:ident, $decide:expr) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[unsafe(link_section = "classifier")]
        fn $name(context: *mut c_void) -> i32 {
            let decide: fn(&TcContext) -> i32 = $decide;
            decide(&TcContext::new(context.cast()))
        }
    };
}

classifier! {
    /// Runs only on frames that sluice passes to it.
    bypass_unread, |context| unread::try_unread(context).unwrap_or(0)
}

classifier! {
    /// Runs in tests, on a frame with a head.
    direct_head, |context| match head::try_head(context) {
        Ok(()) => TRIAL_ACCEPTED,
        Err(verdict) => verdict,
    }
}

/// Reads a setting as the constant that it became at loading; otherwise the compiler would use the zero above.
macro_rules! setting {
    ($($field:tt)+) => {
        // SAFETY: this is a field of a static, which lives as long as the program.
        unsafe { (&raw const $crate::SETTINGS.$($field)+).read_volatile() }
    };
}
use setting;

/// Whether joining has been stopped.
#[inline(always)]
fn stopped() -> bool {
    STOP.get(0).is_none_or(|stop| *stop != 0)
}

/// Adds to this CPU's part of a counter. A preempted addition may be lost, which is fine for statistics.
#[inline(always)]
fn count(counter: Counter, amount: u64) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: the map returned a valid, aligned pointer to this CPU's value.
        unsafe { *value += amount };
    }
}

/// The state of a socket; with `create` it is created if there is none.
#[inline(always)]
fn state(socket: *mut bpf_sock, create: bool) -> Option<*mut End> {
    let map = (&raw const STATE).cast_mut().cast();
    // BPF_SK_STORAGE_GET_F_CREATE
    let flags = u64::from(create);
    // SAFETY: the socket is from the context, not null and held while the program runs; the map is ours.
    let found = unsafe { bpf_sk_storage_get(map, socket.cast(), core::ptr::null_mut(), flags) };
    (!found.is_null()).then_some(found.cast())
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
