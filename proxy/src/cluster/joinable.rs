//! Whether connections to an endpoint may be joined past loopback TCP: what is configured, and what workers have
//! found out about it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64};

use crate::config::EndpointBypass;

/// After so many connections in a row that were not joined in their handshake, none is tried for [`PAUSE_MS`]:
/// something stands between (address translation, a proxy for containers), and each try costs a connection.
const MISSES_MAX: u32 = 3;
const PAUSE_MS: u64 = 60_000;
/// How long it is taken for granted where an endpoint is: a bridge for containers may come up later.
const PLACE_MS: u64 = 10_000;

/// Where an endpoint is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// On another host, or on a socket that is not TCP.
    #[default]
    Elsewhere,
    /// On this host, at an address of it.
    SameHost,
    /// Behind a bridge or a pair of virtual interfaces of this host: a container, likely.
    Neighbour,
}

impl Place {
    /// From what it is as a number.
    fn from_number(number: u8) -> Self {
        let known = [Self::SameHost, Self::Neighbour];
        known.into_iter().find(|place| *place as u8 == number).unwrap_or(Self::Elsewhere)
    }
}

/// What is known; workers share it.
#[derive(Debug, Default)]
pub(crate) struct Joinable {
    off: bool,
    /// It leaves joined bytes unread: for good.
    barred: AtomicBool,
    misses: AtomicU32,
    /// No try before that.
    not_before_ms: AtomicU64,
    place: AtomicU8,
    place_until_ms: AtomicU64,
}

impl Joinable {
    pub(super) fn new(configured: EndpointBypass) -> Self {
        Self { off: configured == EndpointBypass::Off, ..Self::default() }
    }

    /// Where the endpoint is, if it may be joined now. `look` finds that out, and is called now and then.
    pub(crate) fn place(&self, now_ms: u64, look: impl FnOnce() -> Place) -> Option<Place> {
        if self.off || self.barred.load(Relaxed) || now_ms < self.not_before_ms.load(Relaxed) {
            return None;
        }
        if now_ms >= self.place_until_ms.load(Relaxed) {
            // Two workers may both look; they see the same.
            self.place.store(look() as u8, Relaxed);
            self.place_until_ms.store(now_ms.saturating_add(PLACE_MS), Relaxed);
        }
        match Place::from_number(self.place.load(Relaxed)) {
            Place::Elsewhere => None,
            place => Some(place),
        }
    }

    /// Notes whether a connection was joined when it was asked for.
    pub(crate) fn note(&self, joined: bool, now_ms: u64) {
        if joined {
            if self.misses.load(Relaxed) != 0 {
                self.misses.store(0, Relaxed);
            }
        } else if self.misses.fetch_add(1, Relaxed) + 1 >= MISSES_MAX {
            self.misses.store(0, Relaxed);
            self.not_before_ms.store(now_ms.saturating_add(PAUSE_MS), Relaxed);
        }
    }

    /// Ends it for good. True the first time.
    pub(crate) fn bar(&self) -> bool {
        !self.barred.swap(true, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(joinable: &Joinable, now_ms: u64) -> bool {
        joinable.place(now_ms, || Place::SameHost).is_some()
    }

    #[test]
    fn misses_in_a_row_pause_it_and_a_bar_is_for_good() {
        let joinable = Joinable::new(EndpointBypass::Auto);
        for joined in [false, false, true, false, false] {
            joinable.note(joined, 5);
            assert!(may(&joinable, 5));
        }
        joinable.note(false, 5);
        assert!(!may(&joinable, 5) && !may(&joinable, 4 + PAUSE_MS) && may(&joinable, 5 + PAUSE_MS));
        assert!(joinable.bar() && !joinable.bar());
        assert!(!may(&joinable, u64::MAX));
        assert!(!may(&Joinable::new(EndpointBypass::Off), 0));
    }

    #[test]
    fn where_it_is_is_looked_up_anew_now_and_then() {
        let joinable = Joinable::new(EndpointBypass::Auto);
        assert_eq!(joinable.place(0, || Place::Elsewhere), None);
        assert_eq!(joinable.place(PLACE_MS - 1, || Place::Neighbour), None);
        assert_eq!(joinable.place(PLACE_MS, || Place::Neighbour), Some(Place::Neighbour));
        assert_eq!(joinable.place(PLACE_MS + 1, || panic!("it is known")), Some(Place::Neighbour));
    }
}
