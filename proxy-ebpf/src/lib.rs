//! Shared by the eBPF programs and sluice: names, keys, state and counters, all plain old data.
//!
//! Both sides are built from this file, and the object with the programs is committed. If you change a layout here, run
//! `cargo xtask build-ebpf`; otherwise loading fails because a size does not match.
#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![cfg_attr(feature = "user", allow(unsafe_code, reason = "aya's `Pod` is an unsafe trait"))]

#[cfg(not(target_arch = "bpf"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod accept;
pub mod bans;
mod counter;
pub mod head;
pub mod memory;
pub mod slot;
pub mod splice;
pub mod word;

pub use counter::Counter;
pub use memory::Memory;

/// Names of the object's programs and maps.
pub mod names {
    /// sock_ops on a cgroup2: finds the two ends of a connection.
    pub const TRACK: &str = "bypass_track";
    /// sk_msg on [`ENDS`]: decides about each message.
    pub const SEND: &str = "bypass_send";
    /// Never attached, but run by sluice: returns the unread bytes of the end with this [`Tuple`](super::Tuple).
    pub const UNREAD: &str = "bypass_unread";
    /// Never attached, but run by tests: returns the result of [`head::parse`](super::head::parse) in the kernel.
    pub const HEAD: &str = "direct_head";
    /// Sockhash: cookie to socket. Cookies are short and never reused.
    pub const ENDS: &str = "ENDS";
    /// Hash: [`Tuple`](super::Tuple) to [`Known`](super::Known).
    pub const KNOWN: &str = "KNOWN";
    /// Hash: [`Service`](super::Service) to an unused value: where sluice accepts clients on this host.
    pub const SERVICES: &str = "SERVICES";
    /// Socket storage: [`End`](super::End). An accepted socket starts with a copy of its listener's.
    pub const STATE: &str = "STATE";
    /// Array of [`Slot`](super::slot::Slot) that sluice maps into its memory. The first is never assigned.
    pub const SLOTS: &str = "SLOTS";
    /// Sockhash: cookie to socket, for clients to which responses are sent without sluice.
    pub const CLIENTS: &str = "CLIENTS";
    /// Per-CPU array of u64, indexed by [`Counter`](super::Counter).
    pub const COUNTERS: &str = "COUNTERS";
    /// Array of one u32: any value other than 0 stops all joining.
    pub const STOP: &str = "STOP";
    /// Array of one u32: as long as it is 0, the programs do not check for memory pressure.
    pub const THRIFT: &str = "THRIFT";
    /// Global: [`Settings`](super::Settings).
    pub const SETTINGS: &str = "SETTINGS";
}

/// A connection as one of its ends sees it. The other end has the mirrored tuple.
///
/// IPv4 addresses are IPv4-mapped, so that the end of a dual-stack listener mirrors an IPv4 end.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// In network byte order, as the kernel provides it.
    pub local: [u32; 4],
    /// In network byte order.
    pub remote: [u32; 4],
    /// In host byte order; 32 bits wide, so that no padding is compared.
    pub local_port: u32,
    /// In host byte order.
    pub remote_port: u32,
    /// Cookie of the network namespace: addresses are unique only within one. 0 means any (see [`Wish`]).
    pub netns: u64,
}

impl Tuple {
    /// Its bytes, as [`names::UNREAD`] reads them after the first [`UNREAD_OFFSET`] bytes of its frame.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let words = self.local.into_iter().chain(self.remote).chain([self.local_port, self.remote_port]);
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let (_, netns) = bytes.split_at_mut(size_of::<Self>() - 8);
        netns.copy_from_slice(&self.netns.to_ne_bytes());
        bytes
    }

    /// The same connection, seen from the other end.
    #[inline(always)]
    #[must_use]
    pub fn mirrored(&self) -> Self {
        Self {
            local: self.remote,
            remote: self.local,
            local_port: self.remote_port,
            remote_port: self.local_port,
            netns: self.netns,
        }
    }
}

/// An address on which sluice listens for clients to join.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// As in [`Tuple`]; all 0 means any address.
    pub address: [u32; 4],
    /// In host byte order.
    pub port: u32,
    /// Always 0.
    pub reserved: u32,
    /// Cookie of the network namespace.
    pub netns: u64,
}

/// What is known about an end that waits for its other end or is joined with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Kernel address of its `tcp_sock`, only used for reading.
    pub socket: u64,
    /// The socket's cookie, which is never reused: it tells whether `socket` is still that socket.
    pub cookie: u64,
    /// Sequence number of its next byte when it was established.
    pub sent_next: u32,
    /// The sequence number that it expected next at that time.
    pub received_next: u32,
    /// [`ACTIVE`] or [`PASSIVE`].
    pub role: u32,
    /// 1 for one of sluice's ends, 0 for another process's.
    pub ours: u32,
    /// Index of the connection's slot; 0 if it has none.
    pub slot: u32,
    /// Always 0.
    pub reserved: u32,
}

/// The kernel treats the input of [`names::UNREAD`] as an Ethernet frame; the key follows its header.
pub const UNREAD_OFFSET: usize = 14;

/// The end that connected.
pub const ACTIVE: u32 = 1;
/// The end that was accepted.
pub const PASSIVE: u32 = 2;

/// sluice's request for a socket. It writes an [`End`] into the socket's storage before it connects or listens.
///
/// No other process can: it would need a descriptor of the storage map, which is closed on exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Wish {
    /// Join with the other end if it is in the same network namespace.
    SameNamespace = 1,
    /// Join with the other end anywhere on this host, such as in a container. Never for loopback addresses.
    AnyNamespace = 2,
    /// For a listener: join accepted connections with clients in the same network namespace.
    Clients = 3,
    /// For a listener: record the kernel address of accepted sockets, so that responses can be sent to them directly.
    Direct = 4,
}

/// The programs' state of a socket; freed with the socket.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// The socket's own key in the maps.
    pub tuple: Tuple,
    /// Address of its own `tcp_sock`.
    pub own: u64,
    /// Address of the other end's `tcp_sock`; 0 until it has been looked up.
    pub peer: u64,
    /// Cookie of the other end.
    pub peer_cookie: u64,
    /// [`ACTIVE`], [`PASSIVE`], or 0 while the socket is not in the maps.
    pub role: u32,
    /// A [`Wish`].
    pub wish: u32,
    /// Messages joined since the receiver last had nothing unread.
    pub messages: u32,
    /// Not 0 after a message went through TCP.
    pub used_tcp: u32,
    /// As in [`Known`].
    pub ours: u32,
    /// As in [`Known`].
    pub slot: u32,
    /// Sequence number of the first byte that it sends through TCP.
    pub sent_next: u32,
    /// Bytes that it has sent to its other end without TCP, modulo 2^32.
    pub joined_bytes: u32,
    /// Address of the number of pages that TCP uses; 0 if unknown. See [`Memory`].
    pub allocated: u64,
    /// Address of the limits of that number.
    pub limits: u64,
    /// Address of the flag that TCP is under memory pressure.
    pub pressed: u64,
    /// Tick of the kernel's clock, modulo 2^32, of the last check for memory pressure.
    pub looked: u32,
    /// Not 0 if memory was short then.
    pub scarce: u32,
}

impl End {
    /// What sluice writes before it connects. `slot` may be 0.
    #[must_use]
    pub fn wishing(wish: Wish, slot: u32) -> Self {
        let tuple = Tuple { local: [0; 4], remote: [0; 4], local_port: 0, remote_port: 0, netns: 0 };
        let wish = wish as u32;
        Self {
            tuple,
            own: 0,
            peer: 0,
            peer_cookie: 0,
            role: 0,
            wish,
            messages: 0,
            used_tcp: 0,
            ours: 0,
            slot,
            sent_next: 0,
            joined_bytes: 0,
            allocated: 0,
            limits: 0,
            pressed: 0,
            looked: 0,
            scarce: 0,
        }
    }
}

/// Set once, before the programs are loaded. The verifier treats them as constants.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Joined bytes that a receiver may leave unread.
    pub budget_bytes: u32,
    /// Joined messages that a receiver may leave unread. Each costs the kernel about 1 KB in addition to its bytes.
    pub budget_messages: u32,
    /// Whether [`Wish::AnyNamespace`] is ever used. It costs every accepted connection another look-up.
    pub any_namespace: u32,
    /// Whether there is any [`Service`]. It costs every connection of the machine two look-ups.
    pub clients: u32,
    /// Whether there is any slot. It costs every accepted connection a look-up.
    pub direct: u32,
    /// Offsets of the fields in this kernel's `struct sock` and `struct tcp_sock`.
    pub offsets: Offsets,
    /// Offsets of the fields for memory accounting.
    pub memory: Memory,
}

/// Offsets in bytes from the start of `struct tcp_sock`, which begins with its `struct sock`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// `sk_backlog.rmem_alloc`, 32 bits: bytes in the receive queue, including joined ones.
    pub rmem_alloc: u32,
    /// `sk_rcvlowat`, 32 bits.
    pub rcvlowat: u32,
    /// `sk_shutdown`, 8 bits: 2 means that nothing more is sent.
    pub shutdown: u32,
    /// `sk_lock.owned`, 32 bits: a process is inside a call on the socket.
    pub owned: u32,
    /// `__sk_common.skc_cookie`, 64 bits.
    pub cookie: u32,
    /// `copied_seq`, 32 bits: next sequence number that the application reads.
    pub copied_seq: u32,
    /// `write_seq`, 32 bits: next sequence number that the application writes.
    pub write_seq: u32,
    /// `sk_socket`, a pointer: null until a connection is accepted.
    pub socket: u32,
    /// `__sk_common.skc_state`, 8 bits.
    pub state: u32,
    /// `sk_err`, 32 bits.
    pub err: u32,
    /// `sk_wmem_queued`, 32 bits: memory used by the send queue.
    pub wmem_queued: u32,
    /// `sk_sndbuf`, 32 bits: limit of that memory.
    pub sndbuf: u32,
    /// `max_window`, 32 bits: the largest window that the peer has offered.
    pub max_window: u32,
    /// `notsent_lowat`, 32 bits: how many unsent bytes the kernel accepts; 0 means the namespace's value.
    pub notsent_lowat: u32,
    /// `snd_nxt`, 32 bits: next sequence number to send.
    pub snd_nxt: u32,
    /// `snd_una`, 32 bits: next sequence number to be acknowledged.
    pub snd_una: u32,
    /// `icsk_ulp_ops`, a pointer: not null if another protocol, such as kernel TLS, uses the stream.
    pub ulp: u32,
}

// The layouts are an interface between two compilers.
const _: () = assert!(size_of::<Tuple>() == 48 && align_of::<Tuple>() == 8);
const _: () = assert!(size_of::<Known>() == 40);
const _: () = assert!(size_of::<End>() == 136);
const _: () = assert!(size_of::<Service>() == 32);
const _: () = assert!(size_of::<Settings>() == 132 && align_of::<Settings>() == 4);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)` with only integers and no padding (see the size asserts); any bytes are a valid value.
    unsafe impl aya::Pod for super::Tuple {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Known {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::End {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Service {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Settings {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirroring_twice_gives_the_original() {
        let tuple = Tuple { local: [1; 4], remote: [2; 4], local_port: 3, remote_port: 4, netns: 5 };
        let mirrored = tuple.mirrored();
        assert_eq!((mirrored.local, mirrored.local_port, mirrored.netns), ([2; 4], 4, 5));
        assert_eq!(mirrored.mirrored(), tuple);
    }

    #[test]
    fn counters_are_numbered_in_order() {
        for (index, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, index, "{}", counter.name());
        }
    }
}
