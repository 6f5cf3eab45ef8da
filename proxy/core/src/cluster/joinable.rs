//! Whether connections to an endpoint may be joined past loopback TCP: the configuration, and what workers have learned
//! about the endpoint.
//!
//! Some programs never see a joined byte: relays that use splice(2), such as Docker's proxy for published ports. So an
//! endpoint is unknown until it has responded over a joined connection. Until then, one request at a time uses a joined
//! connection as a trial, and only a request that may be sent twice; all others use TCP.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_config::EndpointBypass;

/// After this many connections in a row that were not joined in their handshake, none is tried for [`PAUSE_MS`]:
/// something sits in between (address translation, a proxy for containers), and each try costs a connection.
const MISSES_MAX: u32 = 3;
const PAUSE_MS: u64 = 60_000;
/// How long an endpoint's locality is cached: a container bridge may come up later.
const PLACE_MS: u64 = 10_000;
/// How long a response over a new joined connection proves that the endpoint reads joined bytes. Another program may
/// later listen there; connections nearly always fail in between, which ends the proof at once.
const PROOF_MS: u64 = 3_600_000;
/// A trial that has not ended by then has met a slow application: another request may be tried.
const TRIAL_MS: u64 = 5_000;
/// How long an endpoint gets no joined connections after joined bytes were not read, and the maximum to which this
/// doubles. An application that was only busy is joined again soon; a relay costs one request 200 ms now and then.
const STALL_PAUSE_MS: u64 = 10_000;
const STALL_PAUSE_MAX_MS: u64 = 600_000;

/// Where an endpoint is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locality {
    /// On another host, or on a socket that is not TCP.
    #[default]
    Elsewhere,
    /// On this host, at one of its addresses.
    SameHost,
    /// Behind a bridge or a pair of virtual interfaces of this host: probably a container.
    Neighbour,
}

impl Locality {
    /// Converts its number back.
    fn from_number(number: u8) -> Self {
        let known = [Self::SameHost, Self::Neighbour];
        known.into_iter().find(|place| *place as u8 == number).unwrap_or(Self::Elsewhere)
    }
}

/// Whether a request may use a joined connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The endpoint is known to read joined bytes.
    Known,
    /// Use a joined connection whose bytes may stay unread: check that they are read soon.
    Trial,
    /// Use TCP.
    Refused,
}

/// What is known of an endpoint, for the process that takes over. Times are relative to now, because clocks differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experience {
    /// How long it still counts as reading joined bytes.
    pub(crate) proven_ms: u64,
    /// How long it still gets no joined connections.
    pub(crate) paused_ms: u64,
    /// How often in a row joined bytes were not read.
    pub(crate) stalls: u32,
}

/// What is known; shared by workers.
#[derive(Debug, Default)]
pub struct Joinable {
    off: bool,
    misses: AtomicU32,
    /// No connection is joined before this time.
    not_before_ms: AtomicU64,
    /// See [`PROOF_MS`].
    proven_until_ms: AtomicU64,
    /// A trial is under way until then.
    trial_until_ms: AtomicU64,
    stalls: AtomicU32,
    place: AtomicU8,
    place_until_ms: AtomicU64,
}

impl Joinable {
    pub(super) fn new(configured: EndpointBypass) -> Self {
        Self { off: configured == EndpointBypass::Off, ..Self::default() }
    }

    /// The endpoint's locality, if it may be joined now. Calls `look` to find it out when the cached value is too old.
    pub fn place(&self, now_ms: u64, look: impl FnOnce() -> Locality) -> Option<Locality> {
        if self.off || now_ms < self.not_before_ms.load(Relaxed) {
            return None;
        }
        if now_ms >= self.place_until_ms.load(Relaxed) {
            // Two workers may both look; they get the same result.
            self.place.store(look() as u8, Relaxed);
            self.place_until_ms.store(now_ms.saturating_add(PLACE_MS), Relaxed);
        }
        match Locality::from_number(self.place.load(Relaxed)) {
            Locality::Elsewhere => None,
            place => Some(place),
        }
    }

    /// Whether a request may use a joined connection; `repeatable` if it may be sent twice. Only one caller at a time
    /// gets [`Admission::Trial`].
    pub fn admit(&self, now_ms: u64, repeatable: bool) -> Admission {
        if now_ms < self.proven_until_ms.load(Relaxed) {
            return Admission::Known;
        }
        let until_ms = self.trial_until_ms.load(Relaxed);
        if !repeatable || now_ms < until_ms {
            return Admission::Refused;
        }
        let next_ms = now_ms.saturating_add(TRIAL_MS);
        match self.trial_until_ms.compare_exchange(until_ms, next_ms, Relaxed, Relaxed) {
            Ok(_) => Admission::Trial,
            Err(_) => Admission::Refused,
        }
    }

    /// Records whether a connection that should be joined was joined.
    pub fn note(&self, joined: bool, now_ms: u64) {
        if joined {
            if self.misses.load(Relaxed) != 0 {
                self.misses.store(0, Relaxed);
            }
            return;
        }
        self.trial_until_ms.store(0, Relaxed);
        if self.misses.fetch_add(1, Relaxed) + 1 >= MISSES_MAX {
            self.misses.store(0, Relaxed);
            self.not_before_ms.fetch_max(now_ms.saturating_add(PAUSE_MS), Relaxed);
        }
    }

    /// Records a response over a joined connection that had none before.
    pub fn prove(&self, now_ms: u64) {
        self.proven_until_ms.store(now_ms.saturating_add(PROOF_MS), Relaxed);
        self.trial_until_ms.store(0, Relaxed);
        self.stalls.store(0, Relaxed);
    }

    /// The endpoint could not be reached: another program may listen there next.
    pub fn forget(&self) {
        if self.proven_until_ms.load(Relaxed) != 0 {
            self.proven_until_ms.store(0, Relaxed);
        }
    }

    /// Joined bytes were not read: no joined connections for a while. Only the first caller gets the duration.
    pub fn pause(&self, now_ms: u64) -> Option<Duration> {
        let before_ms = self.not_before_ms.load(Relaxed);
        if now_ms < before_ms {
            return None;
        }
        let stalls = self.stalls.load(Relaxed);
        let pause_ms = STALL_PAUSE_MS.saturating_mul(1 << stalls.min(16)).min(STALL_PAUSE_MAX_MS);
        let next_ms = now_ms.saturating_add(pause_ms);
        self.not_before_ms.compare_exchange(before_ms, next_ms, Relaxed, Relaxed).ok()?;
        self.stalls.store(stalls.saturating_add(1), Relaxed);
        self.proven_until_ms.store(0, Relaxed);
        self.trial_until_ms.store(0, Relaxed);
        Some(Duration::from_millis(pause_ms))
    }

    /// What another process may rely on; `None` if nothing is known.
    pub fn experience(&self, now_ms: u64) -> Option<Experience> {
        let left = |until: &AtomicU64| until.load(Relaxed).saturating_sub(now_ms);
        let experience = Experience {
            proven_ms: left(&self.proven_until_ms),
            paused_ms: left(&self.not_before_ms),
            stalls: self.stalls.load(Relaxed),
        };
        (experience != Experience::default()).then_some(experience)
    }

    /// Adopts what another process has learned.
    pub fn inherit(&self, experience: Experience, now_ms: u64) {
        let Experience { proven_ms, paused_ms, stalls } = experience;
        let until = |left_ms: u64, max_ms: u64| match left_ms.min(max_ms) {
            0 => 0,
            left_ms => now_ms.saturating_add(left_ms),
        };
        self.proven_until_ms.store(until(proven_ms, PROOF_MS), Relaxed);
        self.not_before_ms.store(until(paused_ms, STALL_PAUSE_MAX_MS), Relaxed);
        self.stalls.store(stalls, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME_MS: u64 = 50;

    fn may(joinable: &Joinable, now_ms: u64) -> bool {
        joinable.place(now_ms, || Locality::SameHost).is_some()
    }

    fn automatic() -> Joinable {
        Joinable::new(EndpointBypass::Auto)
    }

    #[test]
    fn consecutive_misses_pause_joining() {
        let joinable = automatic();
        for joined in [false, false, true, false, false] {
            joinable.note(joined, 5);
            assert!(may(&joinable, 5));
        }
        joinable.note(false, 5);
        assert!(!may(&joinable, 5) && !may(&joinable, 4 + PAUSE_MS) && may(&joinable, 5 + PAUSE_MS));
        assert!(!may(&Joinable::new(EndpointBypass::Off), 0));
    }

    #[test]
    fn the_locality_is_refreshed_periodically() {
        let joinable = automatic();
        assert_eq!(joinable.place(0, || Locality::Elsewhere), None);
        assert_eq!(joinable.place(PLACE_MS - 1, || Locality::Neighbour), None);
        assert_eq!(joinable.place(PLACE_MS, || Locality::Neighbour), Some(Locality::Neighbour));
        assert_eq!(
            joinable.place(PLACE_MS + 1, || panic!("the locality is cached")),
            Some(Locality::Neighbour)
        );
    }

    #[test]
    fn an_unknown_endpoint_is_tried_with_one_repeatable_request_at_a_time() {
        let joinable = automatic();
        assert_eq!(joinable.admit(SOME_MS, false), Admission::Refused);
        assert_eq!(joinable.admit(SOME_MS, true), Admission::Trial);
        assert_eq!(joinable.admit(SOME_MS, true), Admission::Refused);
        // Nobody reported how it ended.
        assert_eq!(joinable.admit(SOME_MS + TRIAL_MS, true), Admission::Trial);
        // The connection could not be made.
        joinable.note(false, SOME_MS + TRIAL_MS);
        assert_eq!(joinable.admit(SOME_MS + TRIAL_MS, true), Admission::Trial);
    }

    #[test]
    fn a_response_is_a_proof_until_it_expires_or_the_endpoint_is_gone() {
        let joinable = automatic();
        joinable.prove(SOME_MS);
        assert_eq!(joinable.admit(SOME_MS + PROOF_MS - 1, false), Admission::Known);
        assert_eq!(joinable.admit(SOME_MS + PROOF_MS, false), Admission::Refused);
        joinable.prove(SOME_MS);
        joinable.forget();
        assert_eq!(joinable.admit(SOME_MS, false), Admission::Refused);
        assert_eq!(joinable.admit(SOME_MS, true), Admission::Trial);
    }

    #[test]
    fn unread_bytes_double_the_pause_and_are_reported_once() {
        let joinable = automatic();
        joinable.prove(SOME_MS);
        let mut now_ms = SOME_MS;
        for pause_s in [10, 20, 40, 80, 160, 320, 600, 600] {
            let pause = Duration::from_secs(pause_s);
            assert_eq!(joinable.pause(now_ms), Some(pause));
            assert_eq!(joinable.pause(now_ms), None);
            let end_ms = now_ms + pause_s * 1000;
            assert!(!may(&joinable, end_ms - 1) && may(&joinable, end_ms));
            // The proof no longer holds.
            assert_eq!(joinable.admit(end_ms, false), Admission::Refused);
            now_ms = end_ms;
        }
        joinable.prove(now_ms);
        assert_eq!(joinable.pause(now_ms), Some(Duration::from_secs(10)));
    }

    #[test]
    fn another_process_adopts_the_experience_but_not_for_longer() {
        assert_eq!(automatic().experience(SOME_MS), None);
        let before = automatic();
        before.prove(SOME_MS);
        let after = automatic();
        after.inherit(before.experience(SOME_MS + 10).unwrap_or_default(), 7);
        assert_eq!(after.admit(7 + PROOF_MS - 11, false), Admission::Known);
        assert_eq!(after.admit(7 + PROOF_MS - 10, false), Admission::Refused);

        before.pause(SOME_MS);
        let after = automatic();
        after.inherit(before.experience(SOME_MS).unwrap_or_default(), 7);
        assert!(!may(&after, 7 + STALL_PAUSE_MS - 1) && may(&after, 7 + STALL_PAUSE_MS));
        let pause = after.pause(7 + STALL_PAUSE_MS);
        assert_eq!(pause, Some(Duration::from_millis(2 * STALL_PAUSE_MS)));

        let absurd = Experience { proven_ms: u64::MAX, paused_ms: u64::MAX, stalls: u32::MAX };
        after.inherit(absurd, 7);
        assert!(may(&after, 7 + STALL_PAUSE_MAX_MS));
    }
}
