//! Where the kernel accounts for socket memory, so that the programs do not allocate any when it is short.
//!
//! Where TCP would wait for memory, a redirected message fails with ENOMEM, which applications treat as the end of the
//! connection. So the programs leave messages to TCP well before that.

/// Offsets in bytes. A field that is 0 is not read, and memory is treated as sufficient where it would be needed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// `__sk_common.skc_prot` of `struct sock`, a pointer to a `struct proto`.
    pub prot: u32,
    /// Its `memory_allocated`, a pointer to 64 bits: pages used by all sockets of the protocol.
    pub allocated: u32,
    /// Its `sysctl_mem`, a pointer to three 64-bit numbers. Above the second number of pages the protocol is under
    /// memory pressure, and stays so until it uses no more than the first.
    pub limits: u32,
    /// Its `memory_pressure`, a pointer to 64 bits: not 0 under memory pressure.
    pub pressed: u32,
    /// `sk_memcg` of `struct sock`, a pointer to a `struct mem_cgroup`; null if the socket is not accounted to one.
    pub group: u32,
    /// Its `tcpmem`, a `struct page_counter`; 0 if the memory controller is not cgroup v1's.
    pub counter: u32,
    /// `usage` of the counter, 64 bits.
    pub usage: u32,
    /// `max` of the counter, 64 bits.
    pub max: u32,
    /// `parent` of the counter, a pointer to another one or null.
    pub counter_parent: u32,
    /// `socket_pressure` of `struct mem_cgroup`, 64 bits: the time in jiffies until which memory is short. 0 if the
    /// memory controller is cgroup v1's.
    pub pressed_until: u32,
    /// `css.parent` of `struct mem_cgroup`, a pointer to the parent, which starts with its `css`, or null.
    pub group_parent: u32,
}

const _: () = assert!(size_of::<Memory>() == 44);
