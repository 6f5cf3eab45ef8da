//! The guarantees of each balancing method, over endpoints that are plain numbers.
#![allow(clippy::unwrap_used)]

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

struct Origin {
    weight: u32,
    in_flight: Cell<u32>,
    identity: u64,
    turn: AtomicU64,
}

impl Load for Origin {
    fn weight(&self) -> u32 {
        self.weight
    }
    fn in_flight(&self) -> u32 {
        self.in_flight.get()
    }
    fn identity(&self) -> u64 {
        self.identity
    }
    fn turn(&self) -> &AtomicU64 {
        &self.turn
    }
}

fn origins(weights: &[u32]) -> Vec<Origin> {
    let origin = |(index, &weight)| Origin {
        weight,
        in_flight: Cell::new(0),
        identity: mix(index as u64 + 1),
        turn: AtomicU64::new(first_turn(weight)),
    };
    weights.iter().enumerate().map(origin).collect()
}

fn set(indices: impl IntoIterator<Item = usize>) -> Eligible {
    let mut eligible = Eligible::default();
    indices.into_iter().for_each(|index| eligible.insert(index));
    eligible
}

/// How often each of `count` endpoints was picked in `picks` picks.
fn tally(count: usize, picks: usize, mut pick: impl FnMut() -> Option<usize>) -> Vec<usize> {
    let mut tally = vec![0; count];
    (0..picks).for_each(|_| tally[pick().unwrap()] += 1);
    tally
}

/// Asserts that the shares match the weights to within `tolerance` of the whole.
fn assert_shares(tally: &[usize], weights: &[u32], tolerance: f64) {
    let picks: usize = tally.iter().sum();
    let total: u32 = weights.iter().sum();
    for (&count, &weight) in tally.iter().zip(weights) {
        let share = count as f64 / picks as f64;
        let wanted = f64::from(weight) / f64::from(total);
        assert!((share - wanted).abs() < tolerance, "{tally:?} for {weights:?}");
    }
}

#[test]
fn a_set_contains_the_inserted_indices() {
    let indices = [0, 3, 63, 64, 200];
    assert_eq!(set(indices).iter().collect::<Vec<_>>(), indices);
    assert!(Eligible::default().is_empty());
    assert!(!set([200]).is_empty());
}

#[test]
fn no_pick_without_an_eligible_endpoint() {
    let (origins, nobody) = (origins(&[1, 1]), Eligible::default());
    let random = &mut fastrand::Rng::with_seed(1);
    assert_eq!(least_requests(&origins, &nobody, random), None);
    assert_eq!(random_two(&origins, &nobody, random), None);
    assert_eq!(round_robin(&origins, &nobody, &AtomicU64::new(0)), None);
    assert_eq!(hash(&origins, &nobody, 7), None);
}

#[test]
fn equal_idle_endpoints_get_equal_shares() {
    let weights = [1; 5];
    let (origins, random) = (origins(&weights), &mut fastrand::Rng::with_seed(2));
    let all = set(0..5);
    assert_shares(&tally(5, 20_000, || least_requests(&origins, &all, random)), &weights, 0.02);
}

#[test]
fn round_robin_picks_in_turn() {
    let (origins, now) = (origins(&[1, 1, 1]), AtomicU64::new(0));
    let all = set(0..3);
    let order: Vec<_> = (0..6).map(|_| round_robin(&origins, &all, &now).unwrap()).collect();
    assert_eq!(order, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn round_robin_spreads_a_heavy_endpoint() {
    let (origins, now) = (origins(&[5, 1, 1]), AtomicU64::new(0));
    let all = set(0..3);
    let order: Vec<_> = (0..70).map(|_| round_robin(&origins, &all, &now).unwrap()).collect();
    assert!(order.windows(7).all(|turn| turn.iter().filter(|&&index| index == 0).count() >= 4), "{order:?}");
}

#[test]
fn round_robin_distributes_turns_of_an_absent_endpoint() {
    let (origins, now) = (origins(&[1, 1, 1]), AtomicU64::new(0));
    let two = set([0, 2]);
    assert_eq!(tally(3, 100, || round_robin(&origins, &two, &now)), [50, 0, 50]);
    let all = set(0..3);
    let back = tally(3, 30, || round_robin(&origins, &all, &now));
    assert!(back[1] <= 11, "caught up on missed turns: {back:?}");
}

#[test]
fn round_robin_keeps_shares_across_the_wrap() {
    let (origins, now) = (origins(&[1, 3]), AtomicU64::new(u64::MAX - 5 * TURN));
    let all = set(0..2);
    assert_shares(&tally(2, 400, || round_robin(&origins, &all, &now)), &[1, 3], 0.02);
}

#[test]
fn a_bounded_hash_spreads_a_key_that_everybody_asks_for() {
    let origins = origins(&[1, 1, 2]);
    let all = set(0..3);
    let home = hash(&origins, &all, 7).unwrap();
    assert_eq!(bounded_hash(&origins, &all, 7, 125), Some(home));
    let add = |origin: &Origin, requests: u32| origin.in_flight.set(origin.in_flight.get() + requests);
    for _ in 0..400 {
        add(&origins[bounded_hash(&origins, &all, 7, 125).unwrap()], 1);
    }
    // A quarter more than the share of 400, rounded up.
    let most = origins.iter().map(|origin| origin.in_flight.get() / origin.weight).max().unwrap();
    assert!((100..=126).contains(&most), "{most}");
    // While there is room, keys stay where they are.
    origins.iter().for_each(|origin| origin.in_flight.set(40 * origin.weight));
    for key in 0..100 {
        assert_eq!(bounded_hash(&origins, &all, key, 125), hash(&origins, &all, key), "{key}");
    }
    assert_eq!(bounded_hash(&origins, &Eligible::default(), 7, 125), None);
}

proptest! {
    #[test]
    fn only_eligible_endpoints_are_picked(
        state in prop::collection::vec((1..1000u32, 0..50u32, any::<bool>()), 1..100),
        seed: u64,
    ) {
        let weights: Vec<_> = state.iter().map(|(weight, ..)| *weight).collect();
        let origins = origins(&weights);
        origins.iter().zip(&state).for_each(|(origin, (_, load, _))| origin.in_flight.set(*load));
        let eligible = set((0..state.len()).filter(|&index| state[index].2));
        let random = &mut fastrand::Rng::with_seed(seed);
        let picks = [
            least_requests(&origins, &eligible, random),
            random_two(&origins, &eligible, random),
            round_robin(&origins, &eligible, &AtomicU64::new(seed)),
            hash(&origins, &eligible, seed),
        ];
        for pick in picks {
            prop_assert_eq!(pick.is_none(), eligible.is_empty());
            prop_assert!(pick.is_none_or(|index| state[index].2));
        }
    }

    #[test]
    fn least_requests_picks_a_minimum(
        state in prop::collection::vec((1..1000u32, 0..50u32), 1..80),
        seed: u64,
    ) {
        let weights: Vec<_> = state.iter().map(|(weight, _)| *weight).collect();
        let origins = origins(&weights);
        origins.iter().zip(&state).for_each(|(origin, (_, load))| origin.in_flight.set(*load));
        let picked = least_requests(&origins, &set(0..state.len()), &mut fastrand::Rng::with_seed(seed)).unwrap();
        let (weight, load) = state[picked];
        for (other, other_load) in state {
            prop_assert!(u64::from(load + 1) * u64::from(other) <= u64::from(other_load + 1) * u64::from(weight));
        }
    }

    #[test]
    fn weights_are_honoured(weights in prop::collection::vec(1..20u32, 1..8), seed: u64) {
        let (origins, now) = (origins(&weights), AtomicU64::new(0));
        let (all, count) = (set(0..weights.len()), weights.len());
        let random = &mut fastrand::Rng::with_seed(seed);
        assert_shares(&tally(count, 4000, || round_robin(&origins, &all, &now)), &weights, 0.01);
        assert_shares(&tally(count, 4000, || random_two(&origins, &all, random)), &weights, 0.06);
        let keys = &mut fastrand::Rng::with_seed(seed);
        assert_shares(&tally(count, 4000, || hash(&origins, &all, keys.u64(..))), &weights, 0.06);
        // Requests do not end here: the more are in flight, the closer the shares are to the weights.
        let held = tally(count, 4000, || {
            let index = least_requests(&origins, &all, random)?;
            origins[index].in_flight.set(origins[index].in_flight.get() + 1);
            Some(index)
        });
        assert_shares(&held, &weights, 0.01);
    }

    #[test]
    fn a_leaving_endpoint_moves_only_its_keys(
        weights in prop::collection::vec(1..1000u32, 2..30),
        keys in prop::collection::vec(any::<u64>(), 100),
        leaving: prop::sample::Index,
    ) {
        let origins = origins(&weights);
        let leaving = leaving.index(weights.len());
        let (all, without) = (set(0..weights.len()), set((0..weights.len()).filter(|&index| index != leaving)));
        for key in keys {
            let before = hash(&origins, &all, key).unwrap();
            prop_assert_eq!(hash(&origins, &all, key).unwrap(), before);
            let after = hash(&origins, &without, key).unwrap();
            prop_assert_eq!(after == before, before != leaving);
        }
    }
}
