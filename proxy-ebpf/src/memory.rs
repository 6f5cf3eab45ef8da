//! Where the kernel keeps account of the memory that sockets have, so that the programs ask for none when it is short.
//!
//! Where TCP would wait for memory, a redirected message fails with ENOMEM, which applications take for the end of
//! their connection. So the programs leave messages to TCP some time before that.

/// Offsets in bytes. A field that is 0 is not looked at, and what depends on it passes for enough.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// `__sk_common.skc_prot` of `struct sock`, a pointer to a `struct proto`.
    pub prot: u32,
    /// `memory_allocated` of that, a pointer to 64 bits: pages that all sockets of the protocol have.
    pub allocated: u32,
    /// `sysctl_mem` of that, a pointer to three numbers of 64 bits: with more pages than the second one the protocol is
    /// pressed, and it is until it has no more than the first one.
    pub limits: u32,
    /// `memory_pressure` of that, a pointer to 64 bits: not 0 while it is pressed.
    pub pressed: u32,
    /// `sk_memcg` of `struct sock`, a pointer to a `struct mem_cgroup`; null where none counts the socket.
    pub group: u32,
    /// `tcpmem` of that, a `struct page_counter`; 0 where the memory controller is not of cgroup v1.
    pub counter: u32,
    /// `usage` of that, 64 bits.
    pub usage: u32,
    /// `max`, 64 bits.
    pub max: u32,
    /// `parent`, a pointer to another one or null.
    pub counter_parent: u32,
    /// `socket_pressure` of `struct mem_cgroup`, 64 bits: short of memory until then, in jiffies. 0 where the memory
    /// controller is of cgroup v1.
    pub pressed_until: u32,
    /// `css.parent` of `struct mem_cgroup`, a pointer to the parent, which begins with its `css`, or null.
    pub group_parent: u32,
}

const _: () = assert!(size_of::<Memory>() == 44);
