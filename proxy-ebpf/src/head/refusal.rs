//! Why a head does not go to the client unchanged, by number in the kernel and by name in metrics.

/// Each leaves the response to sluice, which may find nothing wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// The text contains no end of the head.
    Incomplete,
    /// The status line is not `HTTP/1.1`, three digits and a reason phrase.
    NotHttp11,
    /// An interim response, a response without a body, or an invalid status.
    Status,
    /// No plain Content-Length (1 to 15 digits without leading zeros), or more than one.
    Length,
    /// Transfer-Encoding or Trailer.
    Coding,
    /// A hop-by-hop field other than `keep-alive`.
    HopByHop,
    /// Something that sluice would or might change or refuse.
    Odd,
}

impl Refusal {
    /// Number of refusals.
    pub const COUNT: usize = Self::ALL.len();

    /// All refusals, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Incomplete,
        Self::NotHttp11,
        Self::Status,
        Self::Length,
        Self::Coding,
        Self::HopByHop,
        Self::Odd,
    ];

    /// The refusal with this number.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Incomplete,
            1 => Self::NotHttp11,
            2 => Self::Status,
            3 => Self::Length,
            4 => Self::Coding,
            5 => Self::HopByHop,
            6 => Self::Odd,
            _ => return None,
        })
    }

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "incomplete",
            Self::NotHttp11 => "not_http_11",
            Self::Status => "status",
            Self::Length => "length",
            Self::Coding => "coding",
            Self::HopByHop => "hop_by_hop",
            Self::Odd => "odd",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_numbered_in_order() {
        for (number, refusal) in (0..).zip(Refusal::ALL) {
            assert_eq!((refusal as u32, Refusal::from_number(number)), (number, Some(refusal)));
        }
        assert_eq!(Refusal::from_number(Refusal::COUNT as u32), None);
    }
}
