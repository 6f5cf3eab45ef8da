//! Who may be picked, what survives a change of the list, and how ejection counts.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::config::{Ejection, HashKey, Pool, Retry};

const EJECTION: Ejection = Ejection { consecutive_failures: 3, time_ms: 1000 };

/// A configuration to change in tests of this and of other modules.
pub(crate) fn config(balance: Balance, fail_open: bool) -> config::Cluster {
    config::Cluster {
        endpoints: Vec::new(),
        balance,
        health_check: None,
        ejection: EJECTION,
        fail_open,
        state_file: None,
        pool: Pool { idle_max_per_endpoint: 1, idle_timeout_ms: 1 },
        connect_timeout_ms: 1,
        response_timeout_ms: 1,
        body_idle_timeout_ms: 1,
        tunnel_idle_timeout_ms: 1,
        response_head_bytes_max: 1,
        response_headers_max: 1,
        interim_responses_max: 1,
        resolve_interval_ms: 1,
        endpoint_header: None,
        retry: Retry { attempts_max: 1, connect_attempts_max: 1 },
    }
}

/// A seed at an address that nothing connects to.
pub(crate) fn seed(port: u16) -> Seed {
    let address = EndpointAddress::Ip(([192, 0, 2, 1], port).into());
    Seed { host: address.to_string(), address, weight: 1 }
}

fn cluster(balance: Balance, fail_open: bool, count: u16) -> Cluster {
    Cluster::new("c", config(balance, fail_open), (1..=count).map(seed).collect())
}

fn pick(cluster: &Cluster, exclude: &[u32], now_ms: u64) -> Result<Arc<Endpoint>, NoEndpoint> {
    let random = &mut fastrand::Rng::with_seed(now_ms);
    cluster.pick(Pick { hash: Some(now_ms), exclude, now_ms, random })
}

fn every_balance() -> [Balance; 4] {
    let hash = Balance::Hash(HashKey::ClientAddress);
    [Balance::LeastRequests, Balance::RoundRobin, Balance::RandomTwo, hash]
}

#[test]
fn says_why_there_is_none() {
    for balance in every_balance() {
        assert_eq!(pick(&cluster(balance.clone(), true, 0), &[], 0).err(), Some(NoEndpoint::Empty));
        for count in [1, 2] {
            let cluster = cluster(balance.clone(), false, count);
            let ids: Vec<_> = cluster.endpoints().iter().map(|endpoint| endpoint.id).collect();
            assert_eq!(pick(&cluster, &ids, 0).err(), Some(NoEndpoint::Tried));
            cluster.endpoints().iter().for_each(|endpoint| {
                endpoint.set_active_health(false, 0);
            });
            assert_eq!(pick(&cluster, &[], 0).err(), Some(NoEndpoint::Unhealthy));
        }
    }
}

#[test]
fn fail_open_never_takes_a_tried_endpoint() {
    for count in [1, 2] {
        let cluster = cluster(Balance::LeastRequests, true, count);
        let endpoints = cluster.endpoints();
        endpoints.iter().for_each(|endpoint| {
            endpoint.set_active_health(false, 0);
        });
        let first = pick(&cluster, &[], 0).unwrap();
        match pick(&cluster, &[first.id], 0) {
            Ok(second) => assert_ne!(second.id, first.id),
            Err(error) => assert_eq!((error, count), (NoEndpoint::Tried, 1)),
        }
    }
}

#[test]
fn a_tried_healthy_endpoint_still_keeps_fail_open_shut() {
    let cluster = cluster(Balance::LeastRequests, true, 2);
    let endpoints = cluster.endpoints();
    endpoints[1].set_active_health(false, 0);
    assert_eq!(pick(&cluster, &[endpoints[0].id], 0).err(), Some(NoEndpoint::Tried));
}

#[test]
fn in_flight_counts_until_the_guard_goes() {
    let cluster = cluster(Balance::LeastRequests, true, 2);
    let first = pick(&cluster, &[], 0).unwrap();
    let held = first.begin();
    assert_eq!((first.in_flight(), first.requests()), (1, 1));
    for now_ms in 0..20 {
        assert_ne!(pick(&cluster, &[], now_ms).unwrap().id, first.id);
    }
    drop(held);
    assert_eq!((first.in_flight(), first.requests()), (0, 1));
}

#[test]
fn failures_in_a_row_eject_for_a_time() {
    let endpoint = Endpoint::new(seed(1));
    assert!(!endpoint.record_failure(&EJECTION, 5));
    assert!(!endpoint.record_failure(&EJECTION, 5));
    endpoint.record_success();
    assert!(!endpoint.record_failure(&EJECTION, 6));
    assert!(!endpoint.record_failure(&EJECTION, 6));
    assert!(endpoint.record_failure(&EJECTION, 6));
    assert_eq!(endpoint.health(6), Health::Ejected);
    assert!(!endpoint.record_failure(&EJECTION, 1005));
    assert_eq!(endpoint.health(1005), Health::Ejected);
    assert_eq!(endpoint.health(1006), Health::Healthy);
    assert!(!endpoint.record_failure(&EJECTION, 1006));
    assert_eq!(endpoint.failures(), 7);
}

#[test]
fn ejection_can_be_off() {
    let (endpoint, off) = (Endpoint::new(seed(1)), Ejection { consecutive_failures: 0, time_ms: 1000 });
    assert!(!(0..100).any(|now_ms| endpoint.record_failure(&off, now_ms)));
    assert_eq!(endpoint.health(100), Health::Healthy);
}

#[test]
fn one_of_many_threads_is_told_of_an_ejection() {
    let endpoint = Endpoint::new(seed(1));
    let told = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let ejected = endpoint.record_failure(&EJECTION, 5);
                    told.fetch_add(u64::from(ejected), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(told.into_inner(), 1);
}

#[test]
fn endpoints_that_stay_are_the_same_ones() {
    let cluster = cluster(Balance::RoundRobin, true, 2);
    let before = cluster.endpoints().to_vec();
    let held = before[1].begin();
    before[1].set_active_health(false, 9);
    let replaced = cluster.replace_endpoints(vec![seed(2), seed(3), seed(3)]);
    assert_eq!(replaced, Replaced { added: 1, removed: 1 });
    let after = cluster.endpoints().to_vec();
    assert_eq!(after.len(), 2);
    assert!(Arc::ptr_eq(&after[0], &before[1]));
    assert_eq!((after[0].in_flight(), after[0].health(0)), (1, Health::Unhealthy));
    assert_eq!(before[0].health(0), Health::Draining);
    assert!(before.iter().all(|old| old.id != after[1].id));
    drop(held);
    assert_eq!(cluster.replace_endpoints(vec![seed(2), seed(3)]), Replaced::default());
}

#[test]
fn the_hash_of_a_key_is_the_published_one() {
    // From the xxHash reference: XXH64 of the empty input and of "a", seed 0.
    assert_eq!(hash_key(b""), 0xef46_db37_51d8_e999);
    assert_eq!(hash_key(b"a"), 0xd24e_c4f1_a98c_6e5b);
}

#[test]
fn shows_itself_as_json() {
    let cluster = cluster(Balance::RandomTwo, true, 1);
    let endpoints = cluster.endpoints();
    endpoints[0].set_last_check(LastCheck { outcome: "200".to_owned(), success: true, at_ms: 40 });
    endpoints[0].record_failure(&EJECTION, 40);
    drop(endpoints[0].begin());
    let endpoint = json!({
        "label": "192.0.2.1:1", "weight": 1, "health": "healthy", "in_flight": 0, "requests": 1,
        "failures": 1, "last_check": {"outcome": "200", "success": true, "age_ms": 60},
    });
    let wanted = json!({"name": "c", "balance": "random_two", "endpoints": [endpoint]});
    assert_eq!(snapshot_json(&cluster, 100), wanted);
}

proptest! {
    #[test]
    fn never_an_unhealthy_endpoint_while_one_is_healthy(
        state in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 1..80),
        balance in prop::sample::select(every_balance().to_vec()),
        fail_open: bool,
        now_ms in 0..500u64,
    ) {
        let cluster = cluster(balance, fail_open, state.len() as u16);
        let endpoints = cluster.endpoints();
        let mut tried = Vec::new();
        for (endpoint, (unhealthy, ejected, excluded)) in endpoints.iter().zip(&state) {
            endpoint.set_active_health(!unhealthy, 0);
            (0..3 * u32::from(*ejected)).for_each(|_| { endpoint.record_failure(&EJECTION, 0); });
            tried.extend(excluded.then_some(endpoint.id));
        }
        let healthy = |endpoint: &Arc<Endpoint>| endpoint.health(now_ms) == Health::Healthy;
        let any_healthy = endpoints.iter().any(healthy);
        let usable = |endpoint: &&Arc<Endpoint>| {
            !tried.contains(&endpoint.id) && (healthy(endpoint) || (fail_open && !any_healthy))
        };
        match pick(&cluster, &tried, now_ms) {
            Ok(picked) => prop_assert!(usable(&&picked)),
            Err(_) => prop_assert_eq!(endpoints.iter().filter(usable).count(), 0),
        }
    }
}
