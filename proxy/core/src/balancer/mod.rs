//! Picks one of the eligible endpoints for a request. Pure given their state and a random source.
//!
//! Eligibility is decided in `cluster`, from health and from what was already tried.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(test)]
mod tests;

/// Virtual time that one turn of an endpoint of weight 1 takes. Large compared with the maximum weight (1000), so that
/// the division by weight loses no visible precision.
const TURN: u64 = 1 << 24;

/// The balancer's view of an endpoint.
pub(crate) trait Load {
    /// Share relative to the others, at least 1.
    fn weight(&self) -> u32;
    /// Requests under way.
    fn in_flight(&self) -> u32;
    /// A hash of the endpoint's identity, the same in every process.
    fn identity(&self) -> u64;
    /// Where round robin keeps the virtual time of the next turn; starts at [`first_turn`].
    fn turn(&self) -> &AtomicU64;
}

/// A set of endpoint indices. The first 64 need no allocation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Eligible {
    first: u64,
    rest: Vec<u64>,
}

impl Eligible {
    pub(crate) fn insert(&mut self, index: usize) {
        let word = match (index / 64).checked_sub(1) {
            None => &mut self.first,
            Some(at) => {
                if self.rest.len() <= at {
                    self.rest.resize(at + 1, 0);
                }
                &mut self.rest[at]
            }
        };
        *word |= 1 << (index % 64);
    }

    /// Keeps only the indices for which `keep` returns true.
    pub(crate) fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        let words = std::iter::once(&mut self.first).chain(&mut self.rest);
        for (at, word) in words.enumerate() {
            for bit in Bits(*word) {
                if !keep(at * 64 + bit) {
                    *word &= !(1 << bit);
                }
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == 0 && self.rest.iter().all(|&word| word == 0)
    }

    /// The indices in ascending order.
    fn iter(&self) -> impl Iterator<Item = usize> {
        let words = [self.first].into_iter().chain(self.rest.iter().copied());
        words.enumerate().flat_map(|(at, word)| Bits(word).map(move |bit| at * 64 + bit))
    }
}

struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0.checked_sub(1)?;
        Some(bit)
    }
}

/// Picks the endpoint with the fewest requests under way in proportion to its weight, counting the new request; at
/// random among equals.
///
/// Returns `None` only if no endpoint is eligible; so do the other functions.
pub(crate) fn least_requests<L: Load>(
    endpoints: &[L],
    eligible: &Eligible,
    random: &mut fastrand::Rng,
) -> Option<usize> {
    let mut best: Option<(usize, u64, u64)> = None;
    let mut equals = 1;
    for index in eligible.iter() {
        let requests = u64::from(endpoints[index].in_flight()) + 1;
        let weight = u64::from(endpoints[index].weight());
        let order = best.map(|(_, least, of)| (requests * of).cmp(&(least * weight)));
        let better = match order {
            None | Some(std::cmp::Ordering::Less) => {
                equals = 1;
                true
            }
            Some(std::cmp::Ordering::Greater) => false,
            // Each of n equals is kept with a probability of 1/n.
            Some(std::cmp::Ordering::Equal) => {
                equals += 1;
                random.u32(0..equals) == 0
            }
        };
        if better {
            best = Some((index, requests, weight));
        }
    }
    best.map(|(index, ..)| index)
}

/// Picks endpoints in turn, by weight: the endpoint whose turn is earliest in virtual time. `now` is the cluster's
/// virtual time.
///
/// A turn belongs to its endpoint and not to a fixed sequence. All others therefore share the turns of an ineligible
/// endpoint, and the endpoint cannot catch up on missed turns: its turn is never before `now`. Workers that race may
/// take the same turn; the turn is then charged twice, so shares hold over time.
pub(crate) fn round_robin<L: Load>(endpoints: &[L], eligible: &Eligible, now: &AtomicU64) -> Option<usize> {
    let current = now.load(Relaxed);
    let wait = |index: &usize| turns_ahead(endpoints[*index].turn().load(Relaxed), current);
    let index = eligible.iter().min_by_key(wait)?;
    let endpoint = &endpoints[index];
    let start = current.wrapping_add(wait(&index));
    let next =
        |turn: u64| start.wrapping_add(turns_ahead(turn, start)).wrapping_add(stride(endpoint.weight()));
    // The closure always yields a value, so neither outcome is an error.
    let _ = endpoint.turn().fetch_update(Relaxed, Relaxed, |turn| Some(next(turn)));
    if turns_ahead(start, now.load(Relaxed)) > 0 {
        now.store(start, Relaxed);
    }
    Some(index)
}

/// How far a turn lies after `now`; 0 for a past turn. Correct across the wrap of the counter.
fn turns_ahead(turn: u64, now: u64) -> u64 {
    let ahead = turn.wrapping_sub(now);
    if ahead > u64::MAX / 2 { 0 } else { ahead }
}

fn stride(weight: u32) -> u64 {
    TURN / u64::from(weight.max(1))
}

/// The first turn of a new endpoint: half a stride in, so that a heavy endpoint does not wait for every light endpoint.
pub(crate) fn first_turn(weight: u32) -> u64 {
    stride(weight) / 2
}

/// Picks two endpoints at random by weight and returns the less loaded one; the first if they are equal.
pub(crate) fn random_two<L: Load>(
    endpoints: &[L],
    eligible: &Eligible,
    random: &mut fastrand::Rng,
) -> Option<usize> {
    let first = weighted(endpoints, || eligible.iter(), random)?;
    let others = || eligible.iter().filter(move |&index| index != first);
    let Some(second) = weighted(endpoints, others, random) else {
        return Some(first);
    };
    let (one, two) = (&endpoints[first], &endpoints[second]);
    let two_is_lower = u64::from(two.in_flight()) * u64::from(one.weight())
        < u64::from(one.in_flight()) * u64::from(two.weight());
    Some(if two_is_lower { second } else { first })
}

fn weighted<L: Load, I: Iterator<Item = usize>>(
    endpoints: &[L],
    candidates: impl Fn() -> I,
    random: &mut fastrand::Rng,
) -> Option<usize> {
    let weight = |index: usize| u64::from(endpoints[index].weight());
    let total: u64 = candidates().map(weight).sum();
    if total == 0 {
        return candidates().next();
    }
    let mut left = random.u64(0..total);
    candidates().find(|&index| match left.checked_sub(weight(index)) {
        Some(rest) => {
            left = rest;
            false
        }
        None => true,
    })
}

/// Picks the highest random weight for a key (weighted rendezvous hashing): removing an endpoint moves only its own
/// keys, adding one moves only its share.
pub(crate) fn hash<L: Load>(endpoints: &[L], eligible: &Eligible, key: u64) -> Option<usize> {
    let score = |index: usize| {
        let mixed = mix(key ^ endpoints[index].identity());
        // 53 bits and a half step: strictly between 0 and 1, so that the logarithm is finite and below 0.
        let uniform = ((mixed >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        f64::from(endpoints[index].weight()) / -uniform.ln()
    };
    let scored = eligible.iter().map(|index| (index, score(index)));
    scored.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(index, _)| index)
}

/// The same among the endpoints that have at most `percent` of their share of the requests under way, the new one
/// included (consistent hashing with bounded loads, Mirrokni and others, 2016): a key that everybody asks for moves to
/// its next endpoint before it overloads its own. Some endpoint always has less than its share.
pub(crate) fn bounded_hash<L: Load>(
    endpoints: &[L],
    eligible: &Eligible,
    key: u64,
    percent: u32,
) -> Option<usize> {
    let sum = |value: fn(&L) -> u32| -> u128 {
        eligible.iter().map(|index| u128::from(value(&endpoints[index]))).sum()
    };
    let (requests, weights) = (sum(L::in_flight) + 1, sum(L::weight));
    let has_room = |index: usize| {
        let (own, weight) = (u128::from(endpoints[index].in_flight()), u128::from(endpoints[index].weight()));
        // The share is rounded up: with few requests, everybody may have one.
        own < (requests * weight * u128::from(percent)).div_ceil(weights.max(1) * 100)
    };
    let mut bounded = eligible.clone();
    bounded.retain(has_room);
    hash(endpoints, if bounded.is_empty() { eligible } else { &bounded }, key)
}

/// The finaliser of splitmix64: every input bit reaches every output bit.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
