//! What the eBPF programs and sluice share: names, keys, state and counters, all plain old data.
//!
//! Both sides are built from this file, and the object with the programs is committed: whoever changes a
//! layout here runs `cargo xtask build-ebpf`, or loading fails on a size that does not match.
#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![cfg_attr(feature = "user", allow(unsafe_code, reason = "aya's `Pod` is an unsafe trait"))]

#[cfg(not(target_arch = "bpf"))]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod counter;
pub mod head;
pub mod memory;
pub mod slot;
pub mod splice;
pub mod word;

pub use counter::Counter;
pub use memory::Memory;

/// Programs and maps of the object, as they are called in it.
pub mod names {
    /// sock_ops on a cgroup2: finds the two ends of a connection.
    pub const TRACK: &str = "bypass_track";
    /// sk_msg on [`ENDS`]: decides for each message.
    pub const SEND: &str = "bypass_send";
    /// Never attached, but run by sluice: what the end with this [`Tuple`](super::Tuple) has unread.
    pub const UNREAD: &str = "bypass_unread";
    /// Never attached, but run by tests: what [`head::parse`](super::head::parse) says in the kernel.
    pub const HEAD: &str = "direct_head";
    /// Sockhash: cookie to socket. Cookies are short, and never used again.
    pub const ENDS: &str = "ENDS";
    /// Hash: [`Tuple`](super::Tuple) to [`Known`](super::Known).
    pub const KNOWN: &str = "KNOWN";
    /// Hash: [`Service`](super::Service) to nothing of interest: where sluice takes clients of this host.
    pub const SERVICES: &str = "SERVICES";
    /// Socket storage: [`End`](super::End); an accepted socket begins with a copy of its listener's.
    pub const STATE: &str = "STATE";
    /// Array of [`Slot`](super::slot::Slot) that sluice maps into its memory; the first is nobody's.
    pub const SLOTS: &str = "SLOTS";
    /// Sockhash: cookie to socket, of clients that answers are sent to past sluice.
    pub const CLIENTS: &str = "CLIENTS";
    /// Per-CPU array of u64, indexed by [`Counter`](super::Counter).
    pub const COUNTERS: &str = "COUNTERS";
    /// Array of one u32: whatever is not 0 ends all joining.
    pub const STOP: &str = "STOP";
    /// Array of one u32: as long as it is 0, whether memory is short is not asked.
    pub const THRIFT: &str = "THRIFT";
    /// Global: [`Settings`](super::Settings).
    pub const SETTINGS: &str = "SETTINGS";
}

/// A connection as one of its ends sees it. Its mirror is the other end's.
///
/// IPv4 addresses are IPv4-mapped, so that a dual-stack listener's end mirrors an IPv4 one.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// In network byte order, as the kernel gives it.
    pub local: [u32; 4],
    /// In network byte order.
    pub remote: [u32; 4],
    /// In host byte order; 32 bits wide so that there is no padding to be compared.
    pub local_port: u32,
    /// In host byte order.
    pub remote_port: u32,
    /// Cookie of the network namespace: addresses mean something only within one. 0: any (see [`Wish`]).
    pub netns: u64,
}

impl Tuple {
    /// Its bytes, as [`names::UNREAD`] takes them behind [`UNREAD_OFFSET`] others.
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

/// An address that sluice listens on for clients to be joined with.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Service {
    /// As in [`Tuple`]; all 0 is any address.
    pub address: [u32; 4],
    /// In host byte order.
    pub port: u32,
    /// Always 0.
    pub reserved: u32,
    /// Cookie of the network namespace.
    pub netns: u64,
}

/// What is known of an end that waits for its other end or is joined with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Kernel address of its `tcp_sock`, only ever read through.
    pub socket: u64,
    /// The socket's cookie, never used again for another: tells whether `socket` is still that socket.
    pub cookie: u64,
    /// Sequence number of its next byte when it was established.
    pub sent_next: u32,
    /// Sequence number that it expected next then.
    pub received_next: u32,
    /// [`ACTIVE`] or [`PASSIVE`].
    pub role: u32,
    /// 1 for an end of sluice's, 0 for an end of somebody else's.
    pub ours: u32,
    /// Index of the connection's slot, 0 if it has none.
    pub slot: u32,
    /// Always 0.
    pub reserved: u32,
}

/// What [`names::UNREAD`] is run on is an Ethernet frame to the kernel; the key is behind its header.
pub const UNREAD_OFFSET: usize = 14;

/// The end that connected.
pub const ACTIVE: u32 = 1;
/// The end that was accepted.
pub const PASSIVE: u32 = 2;

/// What sluice asks for a socket, before it connects it or listens on it, by writing an [`End`] into its storage.
///
/// Nobody else can: it takes a descriptor of the storage map, and that is closed on exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Wish {
    /// Join with the other end if that is in the same network namespace.
    SameNamespace = 1,
    /// Join with the other end wherever it is on this host: a container, say. Never for loopback addresses.
    AnyNamespace = 2,
    /// For a listener: join what it accepts with clients in the same network namespace.
    Clients = 3,
    /// For a listener: note where what it accepts is in the kernel, so that answers can be sent to it past sluice.
    Direct = 4,
}

/// What the programs keep with a socket; freed with it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// Key of the socket itself in the maps.
    pub tuple: Tuple,
    /// Address of its own `tcp_sock`.
    pub own: u64,
    /// Address of the other end's `tcp_sock`, 0 until it was looked up.
    pub peer: u64,
    /// Cookie of the other end.
    pub peer_cookie: u64,
    /// [`ACTIVE`], [`PASSIVE`], or 0 while it is not in the maps.
    pub role: u32,
    /// A [`Wish`].
    pub wish: u32,
    /// Messages joined since the receiver had nothing unread.
    pub messages: u32,
    /// Not 0 once a message went by TCP.
    pub used_tcp: u32,
    /// As in [`Known`].
    pub ours: u32,
    /// As in [`Known`].
    pub slot: u32,
    /// Sequence number of the first byte that it sends by TCP.
    pub sent_next: u32,
    /// Bytes that it has sent past TCP to its other end, modulo 2^32.
    pub joined_bytes: u32,
    /// Address of the number of pages that TCP has, 0 if that is not known; see [`Memory`].
    pub allocated: u64,
    /// Address of how many it may have.
    pub limits: u64,
    /// Address of whether it has had more than that.
    pub pressed: u64,
    /// Tick of the kernel's clock, modulo 2^32, at which it was last looked at whether memory is short.
    pub looked: u32,
    /// Not 0 if it was short then.
    pub scarce: u32,
}

impl End {
    /// What sluice writes before it connects; with a slot, or 0.
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

/// Set once, before the programs are loaded; the verifier takes them for constants.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Joined bytes that a receiver may have unread.
    pub budget_bytes: u32,
    /// Joined messages that a receiver may have unread: each costs the kernel about 1 KB besides its bytes.
    pub budget_messages: u32,
    /// Whether [`Wish::AnyNamespace`] is ever used: it costs every accepted connection another look-up.
    pub any_namespace: u32,
    /// Whether there is any [`Service`]: it costs every connection of the machine two look-ups.
    pub clients: u32,
    /// Whether there is any slot: it costs every accepted connection a look-up.
    pub direct: u32,
    /// Where in `struct sock` and `struct tcp_sock` of this kernel the fields are.
    pub offsets: Offsets,
    /// The same for its account of memory.
    pub memory: Memory,
}

/// Offsets in bytes from the start of `struct tcp_sock`, which begins with its `struct sock`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// `sk_backlog.rmem_alloc`, 32 bits: bytes in the receive queue, joined ones too.
    pub rmem_alloc: u32,
    /// `sk_rcvlowat`, 32 bits.
    pub rcvlowat: u32,
    /// `sk_shutdown`, 8 bits: 2 says that nothing more is sent.
    pub shutdown: u32,
    /// `sk_lock.owned`, 32 bits: somebody is inside a call on the socket.
    pub owned: u32,
    /// `__sk_common.skc_cookie`, 64 bits.
    pub cookie: u32,
    /// `copied_seq`, 32 bits: next sequence number to be read by the application.
    pub copied_seq: u32,
    /// `write_seq`, 32 bits: next sequence number to be written by it.
    pub write_seq: u32,
    /// `sk_socket`, a pointer: null until a connection is accepted.
    pub socket: u32,
    /// `__sk_common.skc_state`, 8 bits.
    pub state: u32,
    /// `sk_err`, 32 bits.
    pub err: u32,
    /// `sk_wmem_queued`, 32 bits: memory of what is in the send queue.
    pub wmem_queued: u32,
    /// `sk_sndbuf`, 32 bits: how much that may be.
    pub sndbuf: u32,
    /// `max_window`, 32 bits: the largest window that the other side has offered.
    pub max_window: u32,
    /// `notsent_lowat`, 32 bits: how many bytes the kernel takes before it has sent them; 0 is the namespace's.
    pub notsent_lowat: u32,
    /// `snd_nxt`, 32 bits: next sequence number to be sent.
    pub snd_nxt: u32,
    /// `snd_una`, 32 bits: next sequence number to be acknowledged.
    pub snd_una: u32,
    /// `icsk_ulp_ops`, a pointer: not null where another protocol is in the stream, TLS of the kernel for one.
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
    // SAFETY: `repr(C)` of integers alone, without padding (see the size asserts); any bytes are a value.
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
    fn the_mirror_of_the_mirror_is_the_original() {
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
