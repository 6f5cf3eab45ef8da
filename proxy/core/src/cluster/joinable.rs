//! Whether connections to an endpoint may be joined past loopback TCP: what is configured, and what workers have
//! found out about it.
//!
//! Some programs never see a joined byte: relays by splice(2), such as Docker's proxy for published ports. So an
//! endpoint is unknown until it has answered over a joined connection. Until then one request at a time goes over one
//! on trial, and only one that may be sent twice; all others go by TCP.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sluice_config::EndpointBypass;

/// After so many connections in a row that were not joined in their handshake, none is tried for [`PAUSE_MS`]:
/// something stands between (address translation, a proxy for containers), and each try costs a connection.
const MISSES_MAX: u32 = 3;
const PAUSE_MS: u64 = 60_000;
/// How long an endpoint's place on the network is taken for granted: a bridge for containers may come up later.
const PLACE_MS: u64 = 10_000;
/// How long an answer over a new joined connection vouches for further ones. Another program may come to listen there;
/// it nearly always refuses a connection in between, which ends this at once.
const PROOF_MS: u64 = 3_600_000;
/// A trial that has not ended by then has met an application that takes its time: another request may be tried.
const TRIAL_MS: u64 = 5_000;
/// How long it is left alone after joined bytes were not read, and the most that this doubles to. An application that
/// was only busy is joined again soon; a relay costs one request 200 ms now and then.
const STALL_PAUSE_MS: u64 = 10_000;
const STALL_PAUSE_MAX_MS: u64 = 600_000;

/// Where an endpoint is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Locality {
    /// On another host, or on a socket that is not TCP.
    #[default]
    Elsewhere,
    /// On this host, at an address of it.
    SameHost,
    /// Behind a bridge or a pair of virtual interfaces of this host: a container, likely.
    Neighbour,
}

impl Locality {
    /// From what it is as a number.
    fn from_number(number: u8) -> Self {
        let known = [Self::SameHost, Self::Neighbour];
        known.into_iter().find(|place| *place as u8 == number).unwrap_or(Self::Elsewhere)
    }
}

/// Whether a request may go over a joined connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The endpoint is known to read joined bytes.
    Known,
    /// Over one whose bytes may stay unread: see that this does not take long.
    Trial,
    /// By TCP.
    Refused,
}

/// What is known of an endpoint, for the process that takes over. Times are from now, for clocks differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Experience {
    /// How long it still counts as one that reads joined bytes.
    pub(crate) proven_ms: u64,
    /// How long it is still left alone.
    pub(crate) paused_ms: u64,
    /// How often in a row joined bytes were not read.
    pub(crate) stalls: u32,
}

/// What is known; workers share it.
#[derive(Debug, Default)]
pub struct Joinable {
    off: bool,
    misses: AtomicU32,
    /// No connection is to be joined before that.
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

    /// Where the endpoint is, if it may be joined now. `look` finds that out, and is called now and then.
    pub fn place(&self, now_ms: u64, look: impl FnOnce() -> Locality) -> Option<Locality> {
        if self.off || now_ms < self.not_before_ms.load(Relaxed) {
            return None;
        }
        if now_ms >= self.place_until_ms.load(Relaxed) {
            // Two workers may both look; they see the same.
            self.place.store(look() as u8, Relaxed);
            self.place_until_ms.store(now_ms.saturating_add(PLACE_MS), Relaxed);
        }
        match Locality::from_number(self.place.load(Relaxed)) {
            Locality::Elsewhere => None,
            place => Some(place),
        }
    }

    /// Whether a request may go over a joined connection; `repeatable` if it may be sent twice. [`Admission::Trial`] is
    /// given to one caller at a time.
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

    /// Notes whether a connection was joined when it was asked for.
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

    /// An answer has come over a joined connection that had none before.
    pub fn prove(&self, now_ms: u64) {
        self.proven_until_ms.store(now_ms.saturating_add(PROOF_MS), Relaxed);
        self.trial_until_ms.store(0, Relaxed);
        self.stalls.store(0, Relaxed);
    }

    /// It could not be reached: another program may listen there next.
    pub fn forget(&self) {
        if self.proven_until_ms.load(Relaxed) != 0 {
            self.proven_until_ms.store(0, Relaxed);
        }
    }

    /// Joined bytes were not read: it is left alone for a while. Returns how long, to the first that says so.
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

    /// What another process may go by; `None` if nothing is known.
    pub fn experience(&self, now_ms: u64) -> Option<Experience> {
        let left = |until: &AtomicU64| until.load(Relaxed).saturating_sub(now_ms);
        let experience = Experience {
            proven_ms: left(&self.proven_until_ms),
            paused_ms: left(&self.not_before_ms),
            stalls: self.stalls.load(Relaxed),
        };
        (experience != Experience::default()).then_some(experience)
    }

    /// Goes by what another process has found out.
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
    fn misses_in_a_row_pause_it() {
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
    fn where_it_is_is_looked_up_anew_now_and_then() {
        let joinable = automatic();
        assert_eq!(joinable.place(0, || Locality::Elsewhere), None);
        assert_eq!(joinable.place(PLACE_MS - 1, || Locality::Neighbour), None);
        assert_eq!(joinable.place(PLACE_MS, || Locality::Neighbour), Some(Locality::Neighbour));
        assert_eq!(joinable.place(PLACE_MS + 1, || panic!("it is known")), Some(Locality::Neighbour));
    }

    #[test]
    fn an_unknown_endpoint_is_tried_with_one_repeatable_request_at_a_time() {
        let joinable = automatic();
        assert_eq!(joinable.admit(SOME_MS, false), Admission::Refused);
        assert_eq!(joinable.admit(SOME_MS, true), Admission::Trial);
        assert_eq!(joinable.admit(SOME_MS, true), Admission::Refused);
        // Nobody has said how it ended.
        assert_eq!(joinable.admit(SOME_MS + TRIAL_MS, true), Admission::Trial);
        // It could not be made.
        joinable.note(false, SOME_MS + TRIAL_MS);
        assert_eq!(joinable.admit(SOME_MS + TRIAL_MS, true), Admission::Trial);
    }

    #[test]
    fn an_answer_vouches_for_others_until_it_is_old_or_the_endpoint_is_gone() {
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
    fn what_is_not_read_pauses_it_twice_as_long_each_time_and_is_said_once() {
        let joinable = automatic();
        joinable.prove(SOME_MS);
        let mut now_ms = SOME_MS;
        for pause_s in [10, 20, 40, 80, 160, 320, 600, 600] {
            let pause = Duration::from_secs(pause_s);
            assert_eq!(joinable.pause(now_ms), Some(pause));
            assert_eq!(joinable.pause(now_ms), None);
            let end_ms = now_ms + pause_s * 1000;
            assert!(!may(&joinable, end_ms - 1) && may(&joinable, end_ms));
            // What was proven is not any more.
            assert_eq!(joinable.admit(end_ms, false), Admission::Refused);
            now_ms = end_ms;
        }
        joinable.prove(now_ms);
        assert_eq!(joinable.pause(now_ms), Some(Duration::from_secs(10)));
    }

    #[test]
    fn another_process_goes_by_what_this_one_knows_and_not_for_longer() {
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
