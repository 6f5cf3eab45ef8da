//! Shared by the program that turns banned clients away and sluice.

/// Names of the object's programs and maps.
pub mod names {
    /// Socket filter of a listening socket: drops the first packet of a banned client's connection.
    pub const DOOR: &str = "bans_door";
    /// LRU hash: [`Client`](super::Client) to the time until which it is banned, in nanoseconds of CLOCK_MONOTONIC.
    pub const BANNED: &str = "BANNED";
    /// Per-CPU array of one u64: packets that were dropped.
    pub const DROPPED: &str = "DROPPED";
}

/// A client: an IPv4-mapped address, or the first half of an IPv6 address, which is its network.
pub type Client = [u8; 16];

/// The client with this IPv4 address.
#[inline(always)]
#[must_use]
pub const fn of_v4([a, b, c, d]: [u8; 4]) -> Client {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// The client with an IPv6 address that begins with these bytes.
#[inline(always)]
#[must_use]
pub const fn of_v6([a, b, c, d, e, f, g, h]: [u8; 8]) -> Client {
    [a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0]
}
