//! Why an answer was not sent to the client, by number in the kernel and by name in metrics.

/// Why an answer, or the rest of one, was left to sluice; besides what the head is refused for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Miss {
    /// Its body is smaller than what pays.
    Small = 1,
    /// Its body is larger than allowed.
    Large = 2,
    /// The client's send queue has no room for the message.
    Room = 3,
    /// The client has ended, or its connection is broken.
    Client = 4,
    /// What was sent to the client before is not in its send queue yet.
    Order = 5,
    /// More came than the head said.
    Surplus = 6,
    /// The kernel did not redirect.
    Redirect = 7,
    /// sluice wanted it.
    Wanted = 8,
    /// The message could not be read.
    Unreadable = 9,
    /// Something had come to sluice before the answer that sluice did not know of.
    Unasked = 10,
    /// The head was kept, and its body did not follow in time.
    Late = 11,
    /// The kernel would take a part of the message only, for the client has too much unsent (TCP_NOTSENT_LOWAT).
    LowMark = 12,
    /// The kernel took a part of the message before only.
    Partial = 13,
    /// Memory is short, and the kernel would take a part of the message only.
    MemoryPressure = 14,
    /// What the client has not read yet takes up many times its bytes.
    Slack = 15,
}

/// [`Slot::reason`](super::Slot::reason) of a refused head is this and the number of the refusal.
pub const REFUSALS: u32 = 0x100;

impl Miss {
    /// All, in the order of their numbers.
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

    /// For metrics.
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
