//! Which endpoints may be picked, what survives a change of the list, and how ejection counts.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;
use serde_json::json;
use sluice_config::{Ejection, HashKey, MaxInFlight};

use super::fake::{EJECTION, config, seed};
use super::*;
use crate::queue::{Refusal, Waiting};

fn cluster(balance: Balance, fail_open: bool, count: u16) -> Cluster {
    Cluster::new("c", config(balance, fail_open), (1..=count).map(seed).collect())
}

fn pick(cluster: &Cluster, exclude: &[u32], now_ms: u64) -> Result<Arc<Endpoint>, NoEndpoint> {
    let random = &mut fastrand::Rng::with_seed(now_ms);
    cluster.pick(&mut Pick { kind: Kind::Request, hash: Some(now_ms), exclude, now_ms, random })
}

fn every_balance() -> [Balance; 4] {
    let hash = Balance::Hash(HashKey::ClientAddress);
    [Balance::LeastRequests, Balance::RoundRobin, Balance::RandomTwo, hash]
}

#[test]
fn a_failed_pick_returns_its_reason() {
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
fn fail_open_does_not_apply_if_a_tried_endpoint_is_healthy() {
    let cluster = cluster(Balance::LeastRequests, true, 2);
    let endpoints = cluster.endpoints();
    endpoints[1].set_active_health(false, 0);
    assert_eq!(pick(&cluster, &[endpoints[0].id], 0).err(), Some(NoEndpoint::Tried));
}

/// Takes a place at any endpoint except these.
fn begin(cluster: &Arc<Cluster>, kind: Kind, exclude: &[u32]) -> Result<InFlight, NoEndpoint> {
    let random = &mut fastrand::Rng::with_seed(1);
    cluster.begin(Pick { kind, hash: None, exclude, now_ms: 0, random })
}

#[test]
fn in_flight_counts_until_the_guard_is_dropped() {
    let cluster = Arc::new(cluster(Balance::LeastRequests, true, 2));
    let held = begin(&cluster, Kind::Request, &[]).unwrap();
    let first = Arc::clone(held.endpoint());
    assert_eq!((first.in_flight(), first.requests()), (1, 1));
    for now_ms in 0..20 {
        assert_ne!(pick(&cluster, &[], now_ms).unwrap().id, first.id);
    }
    drop(held);
    assert_eq!((first.in_flight(), first.requests()), (0, 1));
}

#[test]
fn a_backup_serves_only_while_no_other_endpoint_is_healthy() {
    let config = config(Balance::LeastRequests, false);
    let backup = Seed { is_backup: true, ..seed(3) };
    let limited = Seed { max_in_flight: Some(MaxInFlight::Fixed(1)), ..seed(1) };
    let cluster = Arc::new(Cluster::new("c", config, vec![limited, seed(2), backup]));
    let ids: Vec<u32> = cluster.endpoints().iter().map(|endpoint| endpoint.id).collect();
    assert!((0..20).all(|now_ms| pick(&cluster, &[], now_ms).unwrap().id != ids[2]));
    assert_eq!(pick(&cluster, &ids[..2], 0).unwrap().id, ids[2], "the others were tried");
    cluster.endpoints()[1].set_active_health(false, 0);
    let held = begin(&cluster, Kind::Request, &[]).unwrap();
    assert_eq!(held.endpoint().id, ids[0]);
    assert_eq!(begin(&cluster, Kind::Request, &[]).err(), Some(NoEndpoint::Full), "it waits for the other");
    cluster.endpoints()[0].set_active_health(false, 0);
    assert_eq!(pick(&cluster, &[], 0).unwrap().id, ids[2]);
}

#[test]
fn a_retry_needs_another_endpoint() {
    let cluster = cluster(Balance::LeastRequests, true, 2);
    let ids: Vec<u32> = cluster.endpoints().iter().map(|endpoint| endpoint.id).collect();
    assert!(cluster.take_retry(ids[0], &[], 0) && !cluster.take_retry(ids[1], &ids[..1], 0));
    cluster.endpoints()[1].set_disabled(true);
    assert!(!cluster.take_retry(ids[0], &[], 0));
    cluster.endpoints()[1].set_disabled(false);
    cluster.endpoints()[1].set_active_health(false, 0);
    assert!(!cluster.take_retry(ids[0], &[], 0));
    cluster.endpoints()[1].set_active_health(true, 0);
    assert_eq!((0..20).filter(|_| cluster.take_retry(ids[0], &[], 0)).count(), 9, "the rest of ten");
}

#[test]
fn an_endpoint_that_comes_back_gets_little_at_first() {
    const HOUR_MS: u64 = 3_600_000;
    for balance in [Balance::RoundRobin, Balance::RandomTwo] {
        let config = sluice_config::Cluster { slow_start_ms: 1, ..config(balance.clone(), false) };
        let cluster = Cluster::new("c", config, vec![seed(1), seed(2)]);
        let endpoints = cluster.endpoints();
        let ejection = Ejection { consecutive_failures: 1, time_ms: HOUR_MS };
        // By the clock its start begins in an hour, and by the time of the requests that is over.
        assert!(endpoints[0].record_failure(&ejection, crate::clock::now_ms()));
        while crate::balancer::Load::weight(&endpoints[1]) < 100 {
            std::hint::spin_loop();
        }
        let (mut count, random) = (0, &mut fastrand::Rng::with_seed(7));
        for _ in 0..1100 {
            let pick =
                &mut Pick { kind: Kind::Request, hash: None, exclude: &[], now_ms: 2 * HOUR_MS, random };
            let picked = cluster.pick(pick).unwrap();
            count += usize::from(picked.id == endpoints[0].id);
        }
        match balance {
            Balance::RoundRobin => assert!((99..=101).contains(&count), "{count}"),
            // The better of two: the first choice decides among idle ones.
            _ => assert!((60..140).contains(&count), "{count}"),
        }
    }
}

#[test]
fn consecutive_failures_eject_for_a_time() {
    let endpoint = Endpoint::new(seed(1), &config(Balance::LeastRequests, false));
    assert!(!endpoint.record_failure(&EJECTION, 5));
    assert!(!endpoint.record_failure(&EJECTION, 5));
    endpoint.record_success();
    assert!(!endpoint.record_failure(&EJECTION, 6));
    assert!(!endpoint.record_failure(&EJECTION, 6));
    assert!(endpoint.record_failure(&EJECTION, 6));
    assert_eq!(endpoint.health(6), Health::Ejected);
    assert!(!endpoint.record_failure(&EJECTION, 1005));
    assert_eq!(endpoint.health(1005), Health::Ejected);
    assert!(endpoint.health(1006).takes_requests());
    assert!(!endpoint.record_failure(&EJECTION, 1006));
    assert_eq!(endpoint.failures(), 7);
}

#[test]
fn ejection_can_be_disabled() {
    let endpoint = Endpoint::new(seed(1), &config(Balance::LeastRequests, false));
    let off = Ejection { consecutive_failures: 0, time_ms: 1000 };
    assert!(!(0..100).any(|now_ms| endpoint.record_failure(&off, now_ms)));
    assert_eq!(endpoint.health(100), Health::Unchecked);
    endpoint.record_success();
    assert_eq!(endpoint.health(100), Health::Healthy);
}

#[test]
fn only_one_thread_is_notified_of_an_ejection() {
    let endpoint = Endpoint::new(seed(1), &config(Balance::LeastRequests, false));
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
fn endpoints_that_stay_are_kept() {
    let cluster = Arc::new(cluster(Balance::RoundRobin, true, 2));
    let before = cluster.endpoints().to_vec();
    let held = begin(&cluster, Kind::Request, &[before[0].id]).unwrap();
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
fn the_hash_of_a_key_matches_the_xxhash_reference() {
    // From the xxHash reference: XXH64 of the empty input and of "a", seed 0.
    assert_eq!(hash_key(b""), 0xef46_db37_51d8_e999);
    assert_eq!(hash_key(b"a"), 0xd24e_c4f1_a98c_6e5b);
}

#[test]
fn snapshot_renders_the_cluster_as_json() {
    let cluster = Arc::new(cluster(Balance::RandomTwo, true, 1));
    let endpoints = cluster.endpoints();
    endpoints[0].set_last_check(LastCheck { outcome: "200".to_owned(), success: true, at_ms: 40 });
    endpoints[0].record_failure(&EJECTION, 40);
    drop(begin(&cluster, Kind::Request, &[]));
    let endpoint = json!({
        "label": "192.0.2.1:1", "weight": 1, "disabled": false, "health": "healthy", "in_flight": 0, "tunnels": 0, "limit": null,
        "base_latency_us": null, "requests": 1, "failures": 1, "last_check": {"outcome": "200", "success": true, "age_ms": 60},
    });
    let queue = json!({"length": 0, "entered": 0, "full": 0, "timed_out": 0});
    let wanted = json!({"name": "c", "balance": "random_two", "queue": queue, "endpoints": [endpoint]});
    assert_eq!(snapshot_json(&cluster, 100), wanted);
}

fn limited(max_in_flight: MaxInFlight, max_length: usize, endpoints: u16) -> Arc<Cluster> {
    let mut config = config(Balance::LeastRequests, true);
    config.max_in_flight = max_in_flight;
    config.tunnels_max = 1;
    config.queue.max_length = max_length;
    Arc::new(Cluster::new("c", config, (1..=endpoints).map(seed).collect()))
}

fn wants() -> Wants {
    Wants { hash: None, exclude: Vec::new() }
}

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

#[test]
fn requests_beyond_the_limit_wait_and_are_served_in_order() {
    let cluster = limited(MaxInFlight::Fixed(2), 2, 2);
    let mut held: Vec<_> = (0..4).map(|_| begin(&cluster, Kind::Request, &[]).unwrap()).collect();
    assert!(cluster.endpoints().iter().all(|endpoint| endpoint.in_flight() == 2), "both endpoints are full");
    assert_eq!(begin(&cluster, Kind::Request, &[]).err(), Some(NoEndpoint::Full));
    let mut first = pin!(cluster.wait(wants(), CLIENT).unwrap());
    let mut second = pin!(cluster.wait(wants(), CLIENT).unwrap());
    assert!(cluster.wait(wants(), CLIENT).is_err(), "the queue is full");
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(cx).is_pending());
    held.pop();
    assert!(second.as_mut().poll(cx).is_pending());
    let Poll::Ready(Ok(given)) = first.as_mut().poll(cx) else { panic!("the first is next") };
    // A later request does not overtake queued requests.
    assert_eq!(begin(&cluster, Kind::Request, &[]).err(), Some(NoEndpoint::Full));
    drop(given);
    assert!(second.as_mut().poll(cx).is_ready());
    assert!(begin(&cluster, Kind::Request, &[]).is_ok());
    assert_eq!(cluster.queue_counts(), QueueCounts { length: 0, entered: 2, full: 1, timed_out: 0 });
}

/// The outcome of a wait, if it has ended.
fn outcome(waiting: &mut Waiting<Wants, InFlight>) -> Option<Result<u32, Refusal>> {
    match Pin::new(waiting).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome.map(|place| place.endpoint().id)),
        Poll::Pending => None,
    }
}

#[test]
fn an_unservable_request_is_not_queued_and_leaves_the_queue() {
    let cluster = limited(MaxInFlight::Fixed(1), 99, 2);
    let ids: Vec<_> = cluster.endpoints().iter().map(|endpoint| endpoint.id).collect();
    let held: Vec<_> = ids.iter().map(|_| begin(&cluster, Kind::Request, &[]).unwrap()).collect();
    let mut patient = cluster.wait(wants(), CLIENT).unwrap();
    assert_eq!(begin(&cluster, Kind::Request, &ids).err(), Some(NoEndpoint::Tried));
    assert_eq!(begin(&cluster, Kind::Request, &ids[..1]).err(), Some(NoEndpoint::Full));
    let mut tried = cluster.wait(Wants { hash: None, exclude: ids.clone() }, CLIENT).unwrap();
    let mut other = cluster.wait(Wants { hash: None, exclude: ids[..1].to_vec() }, CLIENT).unwrap();
    drop(held);
    assert!(matches!(outcome(&mut patient), Some(Ok(_))));
    assert_eq!(outcome(&mut tried), Some(Err(Refusal::Hopeless)));
    assert_eq!(outcome(&mut other), Some(Ok(ids[1])));
}

#[test]
fn a_request_that_cannot_use_a_free_place_does_not_block_later_ones() {
    let cluster = limited(MaxInFlight::Fixed(1), 99, 2);
    let ids: Vec<_> = cluster.endpoints().iter().map(|endpoint| endpoint.id).collect();
    let held: Vec<_> = ids.iter().map(|_| begin(&cluster, Kind::Request, &[]).unwrap()).collect();
    let tried = || cluster.wait(Wants { hash: None, exclude: vec![ids[0]] }, CLIENT).unwrap();
    let mut in_front: Vec<_> = (0..20).map(|_| tried()).collect();
    let mut behind = cluster.wait(wants(), CLIENT).unwrap();
    let (free, busy): (Vec<_>, Vec<_>) = held.into_iter().partition(|held| held.endpoint().id == ids[0]);
    drop(free);
    assert!(in_front.iter_mut().all(|waiting| outcome(waiting).is_none()));
    assert_eq!(outcome(&mut behind), Some(Ok(ids[0])));
    drop(busy);
    assert_eq!(outcome(&mut in_front[0]), Some(Ok(ids[1])));
}

#[test]
fn queued_requests_are_rejected_when_the_last_healthy_endpoint_fails() {
    let mut config = config(Balance::LeastRequests, false);
    config.max_in_flight = MaxInFlight::Fixed(1);
    let cluster = Arc::new(Cluster::new("c", config, vec![seed(1)]));
    let _held = begin(&cluster, Kind::Request, &[]).unwrap();
    let mut waiting = cluster.wait(wants(), CLIENT).unwrap();
    assert_eq!(outcome(&mut waiting), None);
    cluster.endpoints()[0].set_active_health(false, 0);
    cluster.serve_waiting();
    assert_eq!(outcome(&mut waiting), Some(Err(Refusal::Hopeless)));
}

#[test]
fn a_place_given_to_a_cancelled_request_goes_to_the_next() {
    let cluster = limited(MaxInFlight::Fixed(1), 10, 1);
    let held = begin(&cluster, Kind::Request, &[]).unwrap();
    let gone = cluster.wait(wants(), CLIENT).unwrap();
    let left_before = cluster.wait(wants(), CLIENT).unwrap();
    let mut next = pin!(cluster.wait(wants(), CLIENT).unwrap());
    drop(left_before);
    drop(held);
    drop(gone);
    assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    assert_eq!((cluster.queue_counts().length, cluster.endpoints()[0].in_flight()), (0, 0));
}

#[test]
fn tunnels_have_a_separate_limit() {
    let cluster = limited(MaxInFlight::Fixed(1), 10, 1);
    let tunnel = begin(&cluster, Kind::Request, &[]).unwrap().into_tunnel();
    assert_eq!(begin(&cluster, Kind::Tunnel, &[]).err(), Some(NoEndpoint::Full));
    let request = begin(&cluster, Kind::Request, &[]).unwrap();
    let endpoint = Arc::clone(&cluster.endpoints()[0]);
    assert_eq!((endpoint.in_flight(), endpoint.tunnels()), (2, 1));
    drop(tunnel);
    assert!(begin(&cluster, Kind::Tunnel, &[]).is_ok());
    drop(request);
    assert_eq!((endpoint.in_flight(), endpoint.tunnels()), (0, 0));
}

#[test]
fn an_endpoints_limit_overrides_the_clusters() {
    let mut config = config(Balance::LeastRequests, true);
    config.max_in_flight = MaxInFlight::Fixed(1);
    let own = |port, max_in_flight| Seed { max_in_flight, ..seed(port) };
    let cluster = Cluster::new("c", config, vec![own(1, None), own(2, Some(MaxInFlight::Fixed(3)))]);
    assert_eq!(cluster.endpoints().iter().map(|endpoint| endpoint.limit_now()).sum::<u32>(), 4);
    let replaced =
        cluster.replace_endpoints(vec![own(1, Some(MaxInFlight::Off)), own(2, Some(MaxInFlight::Fixed(3)))]);
    assert_eq!(replaced, Replaced { added: 1, removed: 1 });
}

#[test]
fn threads_share_the_limit_and_every_request_is_served() {
    const LIMIT: u32 = 3;
    let cluster = limited(MaxInFlight::Fixed(LIMIT), 1000, 1);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                for turn in 0..2000 {
                    let held = match begin(&cluster, Kind::Request, &[]) {
                        Ok(held) => held,
                        Err(_) if turn % 7 == 0 => {
                            drop(cluster.wait(wants(), CLIENT));
                            continue;
                        }
                        Err(_) => runtime.block_on(cluster.wait(wants(), CLIENT).unwrap()).unwrap(),
                    };
                    assert!(held.endpoint().in_flight() <= LIMIT);
                }
            });
        }
    });
    assert_eq!((cluster.queue_counts().length, cluster.endpoints()[0].in_flight()), (0, 0));
}

proptest! {
    #[test]
    fn no_unhealthy_endpoint_is_picked_while_one_is_healthy(
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
        let healthy = |endpoint: &Arc<Endpoint>| endpoint.health(now_ms).takes_requests();
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
