//! Shared by the splice program and sluice.
//!
//! Two maps by socket cookie, each with one writer: sluice writes a [`Gate`], the program writes a [`Ledger`].

/// Names of the object's programs and maps.
pub mod names {
    /// sk_skb/stream_verdict on [`SOCKETS`]: decides about each piece that a socket receives.
    pub const VERDICT: &str = "splice_verdict";
    /// Sockhash: cookie to socket.
    pub const SOCKETS: &str = "SOCKETS";
    /// Hash: cookie to [`Gate`](super::Gate).
    pub const GATES: &str = "GATES";
    /// Hash: cookie to [`Ledger`](super::Ledger).
    pub const LEDGERS: &str = "LEDGERS";
    /// Ring buffer of cookies (u64): sockets whose bytes are left to sluice from now on.
    pub const BELLS: &str = "BELLS";
    /// Global: [`Limits`](super::Limits).
    pub const LIMITS: &str = "LIMITS";
}

/// Where the bytes that a socket receives go. Only sluice writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Cookie of the socket through which they leave. A cookie is never reused for another socket.
    pub peer: u64,
    /// Not 0 while bytes may go there without sluice.
    pub open: u64,
}

/// What happened to the bytes that a socket received. sluice writes it before the socket is in the map; from then on
/// the program does, under the socket's lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Bytes that went to the peer.
    pub redirected: u64,
    /// Bytes that were left to sluice. Once there are some, all later bytes are left too, which keeps the order.
    pub passed: u64,
    /// Pieces that went to the peer.
    pub pieces: u64,
    /// `redirected` when [`Ledger::pieces_before`] was last set.
    pub mark: u64,
    /// Pieces of the generation that ended at the mark.
    pub pieces_before: u32,
    /// Pieces since the mark.
    pub pieces_since: u32,
    /// The peer's `write_seq` before the first redirected byte.
    pub base: u32,
    /// Not 0 once `base` is known.
    pub has_base: u32,
    /// Why bytes were left to sluice: a [`Passed`], or 0 if none were.
    pub why: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Why bytes are left to sluice from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Passed {
    /// sluice has closed the gate.
    Closed = 1,
    /// The peer's send buffer has no room, or too much is waiting.
    Budget = 2,
    /// The peer is not, or no longer, in the map.
    NoPeer = 3,
}

impl Passed {
    /// The reason with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Closed, Self::Budget, Self::NoPeer].into_iter().find(|one| *one as u32 == number)
    }
}

/// Set once, before the program is loaded. The verifier treats them as constants.
///
/// Redirected bytes are not charged to any socket until they are in the peer's send buffer. So the program only
/// redirects what fits there, and limits what waits for the kernel's worker, in bytes and in pieces: each piece costs
/// the kernel about 1 KB in addition to its bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may wait.
    pub budget_bytes: u32,
    /// Pieces that may wait.
    pub budget_pieces: u32,
    /// Offsets of the peer's fields.
    pub offsets: SendBuffer,
}

/// Offsets in bytes from the start of `struct tcp_sock`, which begins with its `struct sock`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendBuffer {
    /// `write_seq`, 32 bits: sequence number after the last byte in the send buffer.
    pub write_seq: u32,
    /// `sk_sndbuf`, 32 bits: size limit of the send buffer.
    pub sndbuf: u32,
    /// `sk_wmem_queued`, 32 bits: memory used by the send buffer, including the kernel's overhead.
    pub wmem_queued: u32,
}

// The layouts are an interface between two compilers.
const _: () = assert!(size_of::<Gate>() == 16);
const _: () = assert!(size_of::<Ledger>() == 56 && align_of::<Ledger>() == 8);
const _: () = assert!(size_of::<Limits>() == 20);

#[cfg(feature = "user")]
mod pod {
    // SAFETY: `repr(C)` with only integers and no padding (see the size asserts); any bytes are a valid value.
    unsafe impl aya::Pod for super::Gate {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Ledger {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Limits {}
}
