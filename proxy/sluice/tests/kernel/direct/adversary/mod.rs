//! An adversary: random clients and origins at their worst; no byte may belong to another response.
//!
//! Each response carries its request's id in head and body. The origin's behaviour follows from seed and id, so the
//! client knows how its response must look and how it may end. A stray response is distinguishable from a requested one
//! only if it arrives before the request is sent; requests carry times for that purpose.
//!
//! SLUICE_ADVERSARY_EXCHANGES sets the total number of exchanges, SLUICE_ADVERSARY_SEED the seed.

mod client;
mod line;
mod origin;
mod plan;

use std::collections::HashMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use super::{LANDED, exchanges, holding, missed, returning};
use crate::namespace::Namespace;
use crate::proxy_support::{Proxy, Setup, poll};
use client::{Client, Tally};
use plan::Rules;

/// About 15 seconds on two busy cores, with the debug build.
const EXCHANGES: u64 = 16_000;
const CLIENTS: u64 = 64;
const ORIGINS: usize = 3;
/// After this time a worker has seen what arrived on a kept connection. It checks when it next enters the ring, and may
/// have been preempted with a request in hand.
const NOTICED_NS: u64 = 50_000_000;
/// Variants; the exchanges are divided among them.
const WAYS: u64 = 4;

/// Shared between both sides.
pub(super) struct World {
    rules: Rules,
    begun: Instant,
    address: SocketAddr,
    /// When stray responses were sent, by the id of the preceding one.
    strays: Mutex<HashMap<u64, u64>>,
    faults: Mutex<Vec<String>>,
}

impl World {
    /// Nanoseconds since it began.
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn note_stray(&self, id: u64) {
        let now = self.now();
        self.strays.lock().unwrap().insert(id, now);
    }

    /// Whether the stray response after that of `id` had been sent before `time`, early enough for sluice to have seen
    /// it.
    fn is_stray_before(&self, id: u64, time: u64) -> bool {
        self.strays.lock().unwrap().get(&id).is_some_and(|sent| *sent + NOTICED_NS < time)
    }

    fn fault(&self, what: String) {
        self.faults.lock().unwrap().push(what);
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |value| value.parse().expect("a number"))
}

fn start(origins: &[TcpListener], workers: u32, limit: Option<u32>) -> Proxy {
    let addresses: Vec<String> =
        origins.iter().map(|origin| origin.local_addr().unwrap().to_string()).collect();
    let endpoints: Vec<&str> = addresses.iter().map(String::as_str).collect();
    // Heads are held either from the first one on, or after the path has proved suitable.
    let direct = if workers == 1 { returning } else { holding };
    let mut setup = direct(Setup::to(&endpoints), 0)
        .with("workers", workers)
        .with("access_log", "off")
        // No request should be refused because the machine is busy.
        .with("limits.half_close_timeout_ms", 100_000)
        .with("limits.header_timeout_ms", 100_000)
        .with("clusters.default.queue", json!({"timeout_ms": 100_000}))
        // Broken connections must not eject an endpoint here.
        .with("clusters.default.ejection", json!({"consecutive_failures": 0}));
    if let Some(limit) = limit {
        setup = setup.with("clusters.default.max_in_flight", limit);
    }
    setup.start().unwrap()
}

/// Serves until the test process ends, with one thread per connection.
fn serve(listener: TcpListener, world: &Arc<World>) {
    let world = Arc::clone(world);
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let world = Arc::clone(&world);
            thread::spawn(move || origin::serve(stream, &world));
        }
    });
}

/// One variant.
#[derive(Clone, Copy, Debug)]
struct Way {
    workers: u32,
    /// Requests that each origin may have in flight.
    limit: Option<u32>,
    /// See `Rules`.
    strays: bool,
    /// Send queues are small.
    narrow: bool,
}

impl Way {
    fn run(self) {
        if !self.narrow {
            return self.play();
        }
        let namespace = Namespace::new();
        namespace.inside(|| {
            fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 65536").unwrap();
            self.play();
        });
    }

    fn play(self) {
        let Self { workers, limit, strays, .. } = self;
        let seed = from_env("SLUICE_ADVERSARY_SEED", 20_261_121);
        let each = (from_env("SLUICE_ADVERSARY_EXCHANGES", EXCHANGES) / WAYS / CLIENTS).max(1);
        let origins: Vec<_> =
            (0..ORIGINS).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        let proxy = start(&origins, workers, limit);
        let world = Arc::new(World {
            rules: Rules { seed, strays },
            begun: Instant::now(),
            address: proxy.address(),
            strays: Mutex::default(),
            faults: Mutex::default(),
        });
        origins.into_iter().for_each(|listener| serve(listener, &world));
        let tallies = thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    scope.spawn({
                        let world = &*world;
                        move || {
                            let mut client = Client::new(world, number);
                            if let Err(fault) = client.run(each) {
                                world.fault(format!("client {number}: {fault}"));
                            }
                            client.tally
                        }
                    })
                })
                .collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
        });
        let mut tally = Tally::default();
        tallies.iter().for_each(|one| tally.add(one));
        let straight = exchanges(&proxy);
        let missed = missed(&proxy);
        eprintln!(
            "{workers} workers, limit {limit:?}, seed {seed}: {tally:?}, {straight} direct, not for \
             {missed}"
        );
        let faults = world.faults.lock().unwrap();
        assert!(faults.is_empty(), "seed {seed}: {} faults\n{}", faults.len(), faults.join("\n"));
        self.judge(&proxy, &tally, straight, &missed);
    }

    /// Nothing is left over, and rare outcomes are rare.
    fn judge(self, proxy: &Proxy, tally: &Tally, straight: f64, missed: &str) {
        poll("nothing to be in flight", || (in_flight(proxy) == 0).then_some(()));
        assert!(tally.excused <= if self.strays { tally.whole / 100 } else { 0 }, "{tally:?}");
        assert!(tally.refused + tally.cut <= tally.whole / 5, "{tally:?}");
        if LANDED {
            // With a queue, few responses use direct return: sluice must know at once when they end.
            let wanted = if self.limit.is_some() { 1.0 } else { tally.whole as f64 / 5.0 };
            assert!(straight >= wanted, "{straight} of {tally:?} used direct return");
            assert_eq!(missed.contains("room "), self.narrow, "{missed}");
        }
    }
}

fn in_flight(proxy: &Proxy) -> u64 {
    let clusters: Value = serde_json::from_slice(&proxy.admin("/clusters").body).unwrap();
    let endpoints = clusters[0]["endpoints"].as_array().unwrap();
    endpoints.iter().map(|endpoint| endpoint["in_flight"].as_u64().unwrap()).sum()
}

#[test]
#[ignore = "needs root and BPF"]
fn no_response_reaches_another_client() {
    Way { workers: 1, limit: None, strays: true, narrow: false }.run();
}

#[test]
#[ignore = "needs root and BPF"]
fn no_response_reaches_another_client_with_two_workers_and_little_room() {
    Way { workers: 2, limit: None, strays: false, narrow: true }.run();
}

#[test]
#[ignore = "needs root and BPF"]
fn no_response_reaches_another_client_with_a_queue_and_little_room() {
    Way { workers: 1, limit: Some(8), strays: false, narrow: true }.run();
}

#[test]
#[ignore = "needs root and BPF"]
fn no_response_reaches_another_client_with_a_queue_and_two_workers() {
    Way { workers: 2, limit: Some(8), strays: true, narrow: false }.run();
}
