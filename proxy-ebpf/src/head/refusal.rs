//! Why a head does not go to the client as it is, by number in the kernel and by name in metrics.

/// Each leaves the answer to sluice, which may well find nothing wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// No end of the head in the text.
    Incomplete,
    /// The status line is not `HTTP/1.1`, three digits and a reason phrase.
    NotHttp11,
    /// An interim response, one without a body, or no status.
    Status,
    /// None, more than one, or no plain Content-Length: 1 to 15 digits without a needless zero in front.
    Length,
    /// Transfer-Encoding or Trailer.
    Coding,
    /// A field that is for this connection only, and no `keep-alive`.
    HopByHop,
    /// Something that sluice would change or refuse, or might.
    Odd,
}

impl Refusal {
    /// How many there are.
    pub const COUNT: usize = Self::ALL.len();

    /// All, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::Incomplete,
        Self::NotHttp11,
        Self::Status,
        Self::Length,
        Self::Coding,
        Self::HopByHop,
        Self::Odd,
    ];

    /// The one with this number.
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

    /// Its name in metrics and logs.
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
