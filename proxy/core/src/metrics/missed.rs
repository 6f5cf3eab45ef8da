//! Why responses over joined connections did not use direct return, for metrics.

use sluice_ebpf::head::Refusal;
use sluice_ebpf::slot::{Miss, REFUSALS};

/// Why sluice did not request direct return, or gained nothing from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unarmed {
    /// The route excludes it, or changes responses.
    Route,
    /// HEAD, HTTP/1.0, the last request of its connection, or the next request has already arrived.
    Request,
    /// The first request of its connection.
    First,
    /// The client's socket cannot be used, or sluice's own bytes are still being sent.
    Socket,
    /// Requests are queued.
    Line,
    /// The last responses for its path could not use direct return.
    Unlikely,
    /// The endpoint uses TLS.
    Tls,
    /// All slots are taken.
    Slot,
    /// The request was sent by TCP, which the eBPF program does not see.
    Tcp,
    /// The exchange ended before its response was complete.
    Failed,
}

/// A reason, as an index in `Missed::names`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed(u8);

const UNARMED: [&str; 10] =
    ["route", "request", "first", "socket", "line", "unlikely", "tls", "slot", "tcp", "failed"];
/// The program fell back for a reason that this version does not know.
const OTHER: usize = UNARMED.len() + Miss::ALL.len() + Refusal::ALL.len();

impl Missed {
    /// The number of reasons.
    pub(crate) const COUNT: usize = OTHER + 1;

    /// The reason that the program stored in a slot; `None` if it did not fall back.
    pub fn noted(reason: u64) -> Option<Self> {
        let reason = u32::try_from(reason).unwrap_or(u32::MAX);
        let index = match reason {
            0 => return None,
            REFUSALS.. => Refusal::ALL
                .iter()
                .position(|one| REFUSALS + *one as u32 == reason)
                .map(|index| UNARMED.len() + Miss::ALL.len() + index),
            _ => Miss::ALL.iter().position(|one| *one as u32 == reason).map(|index| UNARMED.len() + index),
        };
        Some(Self(index.unwrap_or(OTHER) as u8))
    }

    /// Whether the reason is transient: it tells nothing about the responses for this path.
    pub fn is_passing(self) -> bool {
        let first_miss = UNARMED.len();
        let sizes = [Miss::Small, Miss::Large].map(|miss| first_miss + miss as usize - 1);
        let heads = first_miss + Miss::ALL.len()..OTHER;
        !sizes.contains(&self.index()) && !heads.contains(&self.index())
    }

    /// Its index among all reasons.
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Every reason's name, by index.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        let misses = Miss::ALL.iter().map(|miss| miss.name());
        let refusals = Refusal::ALL.iter().map(|refusal| refusal.name());
        UNARMED.into_iter().chain(misses).chain(refusals).chain(["other"])
    }
}

impl From<Unarmed> for Missed {
    fn from(unarmed: Unarmed) -> Self {
        Self(unarmed as u8)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_reason_has_a_unique_name() {
        let names: Vec<_> = Missed::names().collect();
        assert_eq!(names.len(), Missed::COUNT);
        let name = |missed: Missed| names[missed.index()];
        assert_eq!(name(Unarmed::Unlikely.into()), "unlikely");
        for miss in Miss::ALL {
            assert_eq!(name(Missed::noted(miss as u64).unwrap()), miss.name());
        }
        for refusal in Refusal::ALL {
            let noted = Missed::noted(u64::from(REFUSALS + refusal as u32)).unwrap();
            assert_eq!(name(noted), refusal.name());
        }
        assert_eq!(name(Missed::noted(99).unwrap()), "other");
        assert_eq!(Missed::noted(0), None);
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
    }
}
