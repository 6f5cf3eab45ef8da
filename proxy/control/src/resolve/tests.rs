//! Resolving with a fake lookup.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::{Barrier, Mutex};

use sluice_config::{Balance, Endpoint};

use super::*;

type Answers = Arc<Mutex<HashMap<String, Vec<SocketAddr>>>>;

fn config(endpoints: &[(&str, u32)]) -> config::Cluster {
    let endpoint = |&(address, weight): &(&str, u32)| {
        let address = match (address.strip_prefix("unix:"), address.parse()) {
            (Some(path), _) => Address::Unix(path.into()),
            (None, Ok(literal)) => Address::Ip(literal),
            (None, Err(_)) => {
                let (name, port) = address.rsplit_once(':').unwrap();
                Address::Name(name.to_owned(), port.parse().unwrap())
            }
        };
        Endpoint { address, weight, max_in_flight: None, bypass: None, backup: false }
    };
    let mut config = sluice_core::cluster::fake::config(Balance::LeastRequests, false);
    config.endpoints = endpoints.iter().map(endpoint).collect();
    config
}

/// A resolver that knows the names in `Answers`; every other lookup fails.
fn resolver(config: &config::Cluster) -> (Resolver, Answers) {
    let answers = Answers::default();
    let known = Arc::clone(&answers);
    let lookup = move |name: &str, port| {
        let found = known.lock().unwrap().get(name).cloned();
        let found = found.ok_or_else(|| io::Error::other("no such name"))?;
        Ok(found.into_iter().map(|address: SocketAddr| (address.ip(), port).into()).collect())
    };
    (Resolver::with_lookup("c", config, Box::new(lookup)), answers)
}

fn answer(answers: &Answers, name: &str, addresses: &[&str]) {
    let addresses = addresses.iter().map(|address| format!("{address}:0").parse().unwrap()).collect();
    answers.lock().unwrap().insert(name.to_owned(), addresses);
}

fn shown(seeds: &[Seed]) -> Vec<String> {
    seeds.iter().map(|seed| format!("{} {} {}", seed.address, seed.host, seed.weight)).collect()
}

#[test]
fn every_address_of_a_name_is_an_endpoint() {
    let config = config(&[("192.0.2.9:80", 2), ("app:81", 3), ("unix:/run/x", 1), ("192.0.2.1:81", 9)]);
    let (mut resolver, answers) = resolver(&config);
    answer(&answers, "app", &["192.0.2.2", "192.0.2.1", "[2001:db8::1]", "192.0.2.2"]);
    assert_eq!(
        shown(&resolver.resolve()),
        [
            "192.0.2.9:80 192.0.2.9:80 2",
            "192.0.2.1:81 app:81 3",
            "192.0.2.2:81 app:81 3",
            "[2001:db8::1]:81 app:81 3",
            "unix:/run/x localhost 1",
        ]
    );
    assert!(resolver.has_names());
}

#[test]
fn a_failing_name_keeps_its_addresses() {
    let config = config(&[("a:1", 1), ("b:2", 1)]);
    let (mut resolver, answers) = resolver(&config);
    assert!(resolver.resolve().is_empty());
    assert_eq!((resolver.has_unresolved(), resolver.retry()), (true, Duration::from_millis(1)));
    answer(&answers, "a", &["192.0.2.1"]);
    answer(&answers, "b", &["192.0.2.2"]);
    assert_eq!(shown(&resolver.resolve()), ["192.0.2.1:1 a:1 1", "192.0.2.2:2 b:2 1"]);
    answers.lock().unwrap().remove("a");
    answer(&answers, "b", &["192.0.2.3"]);
    let kept = ["192.0.2.1:1 a:1 1", "192.0.2.3:2 b:2 1"];
    assert_eq!(shown(&resolver.resolve()), kept);
    answer(&answers, "b", &[]);
    assert_eq!(shown(&resolver.resolve()), kept);
}

#[test]
fn an_unresolved_name_is_retried_sooner() {
    let mut config = config(&[("a:1", 1)]);
    config.resolve_interval_ms = 30_000;
    let (mut resolver, answers) = resolver(&config);
    resolver.resolve();
    assert!(resolver.has_unresolved());
    assert_eq!(resolver.retry(), UNRESOLVED_RETRY);
    answer(&answers, "a", &["192.0.2.1"]);
    resolver.resolve();
    assert!(!resolver.has_unresolved());
}

#[test]
fn the_addresses_of_a_name_are_limited() {
    let config = config(&[("a:1", 1)]);
    let (mut resolver, answers) = resolver(&config);
    let many: Vec<SocketAddr> =
        (0..300u32).rev().map(|low| ((0xc000_0200 + low).to_be_bytes(), 0).into()).collect();
    answers.lock().unwrap().insert("a".to_owned(), many);
    let seeds = resolver.resolve();
    assert_eq!(seeds.len(), ADDRESSES_PER_NAME_MAX);
    assert_eq!(seeds[0].address.to_string(), "192.0.2.0:1");
}

#[test]
fn names_are_looked_up_at_the_same_time() {
    let config = config(&[("a:1", 1), ("b:1", 1), ("c:1", 1)]);
    // Each waits for the others.
    let all = Barrier::new(3);
    let lookup = move |_: &str, port| {
        all.wait();
        Ok(vec![([127, 0, 0, 1], port).into()])
    };
    let mut resolver = Resolver::with_lookup("c", &config, Box::new(lookup));
    assert_eq!(resolver.resolve().len(), 1);
    assert!(resolver.names.values().all(|name| name.addresses.len() == 1));
}

#[test]
fn literals_need_no_further_lookups() {
    let config = config(&[("127.0.0.1:1", 1), ("unix:/run/x", 1)]);
    let mut resolver = Resolver::new("c", &config);
    assert_eq!(resolver.resolve().len(), 2);
    assert!(!resolver.has_names());
}

#[tokio::test]
async fn a_running_cluster_follows_its_names() {
    let config = config(&[("a:1", 1)]);
    let (mut resolver, answers) = resolver(&config);
    let seeds = resolver.resolve();
    let cluster = Arc::new(Cluster::new("c", config, seeds));
    assert!(cluster.endpoints().is_empty());
    let running = tokio::spawn(run(Arc::clone(&cluster), resolver, None));
    for address in ["192.0.2.1", "192.0.2.2"] {
        answer(&answers, "a", &[address]);
        let wanted = format!("{address}:1");
        let follows = async {
            while cluster.endpoints().first().is_none_or(|endpoint| endpoint.label != wanted) {
                tokio::task::yield_now().await;
            }
        };
        // Only so that a failure ends the test; a success takes as long as it needs.
        tokio::time::timeout(Duration::from_secs(60), follows).await.unwrap();
    }
    running.abort();
}
