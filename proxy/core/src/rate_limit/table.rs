//! A table of clients' times in a fixed amount of memory, shared by the workers.
//!
//! A client belongs to one set of eight places. A set without a free place gives up the client that is nearest to
//! having used up nothing: it loses least by being forgotten, and those that send most stay. The memory is zeros, which
//! the kernel hands out only where clients come.

use std::cmp::Reverse;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use siphasher::sip::SipHasher13;

use super::gcra::{Pace, Step};

/// Places of one set: 128 bytes, two cache lines.
const WAYS: usize = 8;
/// Parts with a lock each, so that workers rarely meet.
const PARTS: usize = 64;
/// The sets have this much more room than clients: they do not fill evenly.
const SPARE: usize = 4;

/// What identifies a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientKey<'a> {
    /// An address, as [`crate::client::share`] makes it.
    Address(IpAddr),
    /// The value of a field or cookie.
    Value(&'a [u8]),
}

/// A client's key and time; a time of 0 is a free place.
type Place = [u64; 2];

pub(super) struct Table {
    parts: Box<[Mutex<Vec<Place>>]>,
    sets_of_part: usize,
    /// Secret, so that nobody can choose clients that meet.
    seed: ArcSwapOption<[u64; 2]>,
    forgotten: AtomicU64,
}

impl Table {
    /// Room for this many clients.
    pub(super) fn new(clients: usize) -> Self {
        let sets = (clients + clients / SPARE).div_ceil(WAYS);
        let sets_of_part = sets.div_ceil(PARTS).max(1);
        let part = |_| Mutex::new(vec![[0; 2]; sets_of_part * WAYS]);
        Self {
            parts: (0..PARTS).map(part).collect(),
            sets_of_part,
            seed: ArcSwapOption::empty(),
            forgotten: AtomicU64::new(0),
        }
    }

    /// Clients that were forgotten before their time.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// Takes the step for one request, and stores the client's new time. Returns the client's key as well.
    pub(super) fn step(&self, pace: Pace, client: ClientKey<'_>, now: u64) -> (u64, Step) {
        let key = self.key(client);
        (key, self.step_of(pace, key, now))
    }

    /// The same for a key.
    pub(super) fn step_of(&self, pace: Pace, key: u64, now: u64) -> Step {
        let (mut part, set) = self.set(key);
        let place = place(&mut part[set..][..WAYS], key);
        let known = if place[0] == key { place[1] } else { 0 };
        let step = pace.step(known, now);
        if let Step::Serve { next } | Step::Wait { next, .. } = step {
            if place[0] != key && place[1] > now {
                self.forgotten.fetch_add(1, Ordering::Relaxed);
            }
            *place = [key, next];
        }
        step
    }

    /// What would become of a request; nothing is counted.
    pub(super) fn foresee(&self, pace: Pace, key: u64, now: u64) -> Step {
        let (part, set) = self.set(key);
        let place = part[set..][..WAYS].iter().find(|place| place[0] == key);
        pace.step(place.map_or(0, |place| place[1]), now)
    }

    /// Keeps that a client is refused for so long from now on, as others have found.
    pub(super) fn refuse_for(&self, pace: Pace, key: u64, after: u64, now: u64) {
        let (mut part, set) = self.set(key);
        let place = place(&mut part[set..][..WAYS], key);
        let known = if place[0] == key { place[1] } else { 0 };
        *place = [key, known.max(pace.refused_for(after, now))];
    }

    /// Puts a client's time later by requests that were served elsewhere.
    pub(super) fn advance(&self, pace: Pace, key: u64, requests: u64, now: u64) {
        let (mut part, set) = self.set(key);
        let place = place(&mut part[set..][..WAYS], key);
        let known = if place[0] == key { place[1] } else { 0 };
        *place = [key, pace.advanced(known, requests, now)];
    }

    /// Makes keys with this secret from now on. If it is another one, all clients are forgotten.
    pub(super) fn set_seed(&self, seed: [u64; 2]) {
        let before = self.seed.swap(Some(Arc::new(seed)));
        if before.is_none_or(|before| *before == seed) {
            return;
        }
        for part in &self.parts {
            part.lock().unwrap_or_else(PoisonError::into_inner).fill([0; 2]);
        }
    }

    /// Forgets a client.
    pub(super) fn forget(&self, client: ClientKey<'_>) {
        let key = self.key(client);
        let (mut part, set) = self.set(key);
        part[set..][..WAYS].iter_mut().filter(|place| place[0] == key).for_each(|place| *place = [0; 2]);
    }

    /// The key of a client.
    pub(super) fn key(&self, client: ClientKey<'_>) -> u64 {
        let [first, second] = self.seed();
        let mut hasher = SipHasher13::new_with_keys(first, second);
        client.hash(&mut hasher);
        hasher.finish()
    }

    /// The secret.
    pub(super) fn seed(&self) -> [u64; 2] {
        if let Some(seed) = self.seed.load().as_deref() {
            return *seed;
        }
        // The keys of each are of the system's generator.
        let made = [(); 2].map(|()| RandomState::new().hash_one(0));
        self.seed_or(made)
    }

    /// The secret, which is this one if there is none yet.
    fn seed_or(&self, seed: [u64; 2]) -> [u64; 2] {
        let before = self.seed.compare_and_swap(&None::<Arc<_>>, Some(Arc::new(seed)));
        before.as_deref().copied().unwrap_or(seed)
    }

    /// The clients whose time is later than now: their keys, and by how much. If there are more than a number, those
    /// with the latest.
    pub(super) fn known(&self, now: u64, most: usize) -> Vec<Place> {
        let later = |[key, time]: &Place| (*time > now).then(|| [*key, *time - now]);
        let of_part = |part: &Mutex<Vec<Place>>| {
            let part = part.lock().unwrap_or_else(PoisonError::into_inner);
            part.iter().filter_map(later).collect::<Vec<_>>()
        };
        let mut known: Vec<Place> = self.parts.iter().flat_map(of_part).collect();
        if known.len() > most {
            known.select_nth_unstable_by_key(most, |[_, ahead]| Reverse(*ahead));
            known.truncate(most);
        }
        known
    }

    /// Takes over the clients of another table. Does nothing once this one has its own secret.
    pub(super) fn inherit(&self, seed: [u64; 2], known: &[Place], now: u64) {
        if self.seed_or(seed) != seed {
            return;
        }
        for [key, ahead] in known {
            let (mut part, set) = self.set(*key);
            *place(&mut part[set..][..WAYS], *key) = [*key, now.saturating_add(*ahead)];
        }
    }

    /// The part of a key, locked, and where its set begins.
    fn set(&self, key: u64) -> (MutexGuard<'_, Vec<Place>>, usize) {
        let part = self.parts[key as usize % PARTS].lock().unwrap_or_else(PoisonError::into_inner);
        (part, (key as usize / PARTS) % self.sets_of_part * WAYS)
    }
}

/// The place of a key in its set, or the one that it may have.
fn place(places: &mut [Place], key: u64) -> &mut Place {
    let at = places.iter().position(|[other, time]| *other == key && *time > 0);
    // A time before now says no more than a free place does.
    let earliest = || (0..places.len()).min_by_key(|at| places[*at][1]).unwrap_or(0);
    let at = at.unwrap_or_else(earliest);
    &mut places[at]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::net::Ipv4Addr;
    use std::sync::atomic::AtomicU32;

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn address(number: u32) -> ClientKey<'static> {
        ClientKey::Address(Ipv4Addr::from(number).into())
    }

    fn is_served(step: Step) -> bool {
        matches!(step, Step::Serve { .. })
    }

    #[test]
    fn a_flood_of_clients_does_not_make_a_greedy_one_forgotten() {
        let (table, pace) = (Table::new(1000), Pace::new(10, 60 * SECOND, 10, false));
        for _ in 0..10 {
            assert!(is_served(table.step(pace, address(0), SECOND).1));
        }
        for other in 1..100_000 {
            assert!(is_served(table.step(pace, address(other), SECOND).1));
        }
        assert!(!is_served(table.step(pace, address(0), SECOND).1));
        assert!(table.forgotten() > 90_000);
        let bytes: usize = table.parts.iter().map(|part| part.lock().map_or(0, |part| part.len() * 16)).sum();
        assert!(bytes < 2000 * 16, "{bytes}");
    }

    #[test]
    fn as_many_clients_as_promised_are_remembered() {
        let (table, pace) = (Table::new(10_000), Pace::new(1, 60 * SECOND, 1, false));
        let served = |number| is_served(table.step(pace, address(number), SECOND).1);
        assert!((0..10_000).all(served));
        let again = (0..10_000).filter(|number| served(*number)).count();
        assert!(again < 1000, "{again} of 10 000 were forgotten");
        let much_later = 120 * SECOND;
        assert!((0..10_000).all(|number| is_served(table.step(pace, address(number), much_later).1)));
    }

    #[test]
    fn threads_together_are_served_no_more_than_the_burst() {
        let (table, pace) = (Table::new(1000), Pace::new(1, 60 * SECOND, 100, false));
        let served = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let (_, step) = table.step(pace, ClientKey::Value(b"one"), SECOND);
                        served.fetch_add(u32::from(is_served(step)), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(served.into_inner(), 100);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map(steps in prop::collection::vec((0..20_u32, 0..SECOND), 1..300)) {
            let (table, pace) = (Table::new(1000), Pace::new(3, SECOND, 2, false));
            let (mut model, mut now) = (HashMap::new(), SECOND);
            for (client, gap) in steps {
                now += gap / 20;
                let wanted = pace.step(model.get(&client).copied().unwrap_or(0), now);
                if let Step::Serve { next } = wanted {
                    model.insert(client, next);
                }
                prop_assert_eq!(table.step(pace, address(client), now).1, wanted);
            }
        }
    }
}
