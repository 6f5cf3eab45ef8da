//! Why a response was not sent to the client, by number in the kernel and by name in metrics.

/// Why a response, or the rest of it, was left to sluice, other than for a refused head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Miss {
    /// Its body is too small to be worthwhile.
    Small = 1,
    /// Its body is larger than allowed.
    Large = 2,
    /// The client's send queue has no room for the message.
    Room = 3,
    /// The client has closed, or its connection is broken.
    Client = 4,
    /// Bytes sent to the client earlier are not in its send queue yet.
    Order = 5,
    /// More bytes arrived than the head announced.
    Surplus = 6,
    /// The kernel did not redirect the message.
    Redirect = 7,
    /// sluice took it over.
    Wanted = 8,
    /// The message could not be read.
    Unreadable = 9,
    /// Bytes had arrived at sluice before the response that sluice did not know about.
    Unasked = 10,
    /// The head was kept, and its body did not follow in time.
    Late = 11,
    /// The kernel would take only part of the message, because the client has too much unsent (TCP_NOTSENT_LOWAT).
    LowMark = 12,
    /// The kernel took only part of the previous message.
    Partial = 13,
    /// Memory is short, and the kernel would take only part of the message.
    MemoryPressure = 14,
    /// What the client has not read yet uses many times its bytes in memory.
    Slack = 15,
}

/// [`Slot::reason`](super::Slot::reason) of a refused head is this plus the number of the refusal.
pub const REFUSALS: u32 = 0x100;

impl Miss {
    /// All misses, in the order of their numbers.
    pub const ALL: [Self; 15] = [
        Self::Small,
        Self::Large,
        Self::Room,
        Self::Client,
        Self::Order,
        Self::Surplus,
        Self::Redirect,
        Self::Wanted,
        Self::Unreadable,
        Self::Unasked,
        Self::Late,
        Self::LowMark,
        Self::Partial,
        Self::MemoryPressure,
        Self::Slack,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
            Self::Room => "room",
            Self::Client => "client",
            Self::Order => "order",
            Self::Surplus => "surplus",
            Self::Redirect => "redirect",
            Self::Wanted => "wanted",
            Self::Unreadable => "unreadable",
            Self::Unasked => "unasked",
            Self::Late => "late",
            Self::LowMark => "low_mark",
            Self::Partial => "partial",
            Self::MemoryPressure => "memory_pressure",
            Self::Slack => "slack",
        }
    }
}
