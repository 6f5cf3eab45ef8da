//! The eBPF maps, programs and helpers that this process can use: each is created once and closed again.

use std::os::fd::OwnedFd;

use crate::KernelError;
use crate::bpf::{Insn, MapAttr, create_described_map, create_map, load_program};

/// A feature that was tried with bpf(2).
#[derive(Debug)]
pub struct Feature {
    /// Map type, program type or helper, with its name in linux/bpf.h, in lower case and without prefix.
    pub name: &'static str,
    /// Its kind: `map type`, `program type` or `helper`.
    pub kind: &'static str,
    /// The kernel's result.
    pub answer: Result<(), KernelError>,
}

// Numbers of linux/bpf.h.
const MAP_ARRAY: u32 = 2;
const MAP_LRU_HASH: u32 = 9;
const MAP_SOCKHASH: u32 = 18;
const MAP_SK_STORAGE: u32 = 24;
const NO_PREALLOC: u32 = 1;
const MMAPABLE: u32 = 1 << 10;
const SOCKET_FILTER: u32 = 1;
const SOCK_OPS: u32 = 13;
const SK_SKB: u32 = 14;
const SK_MSG: u32 = 16;
const CGROUP_SOCK_OPS: u32 = 3;
const PROBE_READ_KERNEL: i32 = 113;

/// `return 1`, which is valid for every program type tried here.
const RETURN_ONE: [Insn; 2] = [(0xb7, 0, 0, 1), (0x95, 0, 0, 0)];

/// Reads 8 bytes to the stack with the helper. Lockdown mode `confidentiality` refuses it; so does the kernel for a
/// process without CAP_PERFMON.
const READ_KERNEL: [Insn; 7] = [
    (0xbf, 0xa1, 0, 0),
    (0x07, 0x01, 0, -8),
    (0xb7, 0x02, 0, 8),
    (0xb7, 0x03, 0, 0),
    (0x85, 0x00, 0, PROBE_READ_KERNEL),
    RETURN_ONE[0],
    RETURN_ONE[1],
];

/// Tries all of them.
pub(super) fn probe() -> Vec<Feature> {
    let sockhash = MapAttr::new(MAP_SOCKHASH, 0, 1);
    // Storage is in the sockets, so it has no size limit and no memory of its own.
    let storage = MapAttr::new(MAP_SK_STORAGE, NO_PREALLOC, 0);
    let array = MapAttr::new(MAP_ARRAY, MMAPABLE, 1);
    let lru = MapAttr::new(MAP_LRU_HASH, 0, 1);
    let one = &RETURN_ONE;
    vec![
        feature("map type", "sockhash", create_map(&sockhash)),
        feature("map type", "sk_storage", create_described_map(storage)),
        feature("map type", "array_mmapable", create_map(&array)),
        feature("map type", "lru_hash", create_map(&lru)),
        feature("program type", "sock_ops", load_program(SOCK_OPS, CGROUP_SOCK_OPS, one)),
        feature("program type", "sk_msg", load_program(SK_MSG, 0, one)),
        feature("program type", "sk_skb", load_program(SK_SKB, 0, one)),
        feature("program type", "socket_filter", load_program(SOCKET_FILTER, 0, one)),
        feature("helper", "probe_read_kernel", load_program(SK_MSG, 0, &READ_KERNEL)),
    ]
}

fn feature(kind: &'static str, name: &'static str, made: Result<OwnedFd, KernelError>) -> Feature {
    Feature { name, kind, answer: made.map(drop) }
}
