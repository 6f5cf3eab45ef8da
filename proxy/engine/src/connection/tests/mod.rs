//! Complete connections over in-memory streams: no ring, no sockets, and a clock that advances only while all tasks
//! wait.
//!
//! `peer` plays both ends of the wire and reads strictly, `exchange` defines what they exchange, `origin` and `client`
//! run it. None of these use the crate's own HTTP code.
#![allow(clippy::unwrap_used)]

mod client;
mod deadlines;
mod desync;
mod exchange;
mod exchanges;
mod faults;
mod held;
mod http2;
mod moved;
mod origin;
mod peer;
mod pool;
mod runners;
mod tunnels;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use proptest::prelude::*;
use sluice_config as config;
use sluice_core::access_log::AccessLog;
use sluice_core::budget::Medium;
use sluice_core::cluster::{Cluster, fake};
use sluice_core::metrics::Metrics;
use sluice_net::listener::ListenerState;
use sluice_net::stream::Stream;
use sluice_net::stream::memory::{self, Behaviour, End};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::{Connection, Runners};
use crate::equipment::Equipment;
use crate::snapshot::Snapshot;
use crate::upstream::{Connector, Network};
use crate::worker::Worker;

/// No test's clock reaches this, unless something waits for ever.
const BOUND: Duration = Duration::from_secs(24 * 3600);

/// A network that neither splits nor delays anything.
const CALM: Behaviour = Behaviour { seed: 7, piece_max: usize::MAX, capacity: 1 << 20, stall_of: 0 };

/// Limits that keep tests short, and never drop a body for being long.
const LIMITS: &str = "limits: {header_timeout_ms: 10000, keep_alive_timeout_ms: 20000, \
    half_close_timeout_ms: 1000, drain_bytes_max: 100000000, drain_body_timeout_ms: 2000}\naccess_log: off\n";

/// Bytes that all bodies together may have in files, and in memory.
const SPOOL: u64 = 2_000_000;
const MEMORY: u64 = 1_500_000;

/// The keys of a route that buffers bodies, with `memory` bytes per body in memory.
fn holding(memory: usize) -> String {
    format!("buffer_requests: on, buffer_responses: on, buffer_memory_bytes: {memory},")
}

/// A worker in front of one cluster, and the connections it serves.
struct Proxy {
    worker: Rc<Worker>,
    runners: Rc<Runners>,
    listener: Arc<ListenerState>,
    cluster: Arc<Cluster>,
    serving: RefCell<Vec<JoinHandle<()>>>,
}

impl Proxy {
    /// `listener` and `cluster` are additional keys, each followed by a comma.
    fn new(listener: &str, cluster: &str, network: Network) -> Self {
        Self::with_route("", (listener, cluster), network)
    }

    /// The same with additional keys of the only route.
    fn with_route(route: &str, (listener, cluster): (&str, &str), network: Network) -> Self {
        let text = format!(
            "{LIMITS}listeners: [{{{listener} address: '127.0.0.1:80'}}]\nclusters: {{api: {{{cluster} \
             endpoints: ['10.0.0.1:80', '10.0.0.2:80']}}}}\nroutes: [{{{route} cluster: api}}]\n\
             buffers: {{spool_bytes_max: {SPOOL}, memory_bytes_max: {MEMORY}}}\n"
        );
        let config = config::parse("test.yaml", &text, &[]).unwrap_or_else(|error| panic!("{error}"));
        let api = &config.clusters["api"];
        let cluster = Arc::new(fake::cluster("api", api));
        let clusters = BTreeMap::from([("api".to_owned(), Arc::clone(&cluster))]);
        let metrics = Metrics::new();
        let log = AccessLog::start(&config.access_log, Arc::clone(&metrics)).unwrap();
        let listener = Arc::new(ListenerState::new(config.listeners[0].clone()));
        let snapshot = Snapshot::new(config, clusters, Equipment::default(), None);
        let live = Arc::new(ArcSwap::from_pointee(snapshot));
        let connector = Connector::Memory(network);
        let worker = Rc::new(Worker::new(live, connector, None, metrics.add_worker(), log.worker()));
        Self { worker, runners: Rc::default(), listener, cluster, serving: RefCell::default() }
    }

    /// Opens a connection to the proxy.
    fn connect(&self, behaviour: Behaviour) -> End {
        let (ours, theirs) = memory::connection(behaviour);
        let client = SocketAddr::from(([192, 0, 2, 1], 7));
        let (worker, runners) = (Rc::clone(&self.worker), Rc::clone(&self.runners));
        let listener = Arc::clone(&self.listener);
        let connection = Connection::new(worker, runners, listener, Stream::Memory(theirs), client);
        self.serving.borrow_mut().push(spawn_local(async move { drop(Box::new(connection).serve().await) }));
        ours
    }

    /// Waits until every connection has ended, then checks that nothing is left behind.
    async fn finish(&self) {
        let serving = self.serving.take();
        for connection in serving {
            connection.await.unwrap();
        }
        assert_eq!(self.worker.open_connections(), 0, "connections that the worker still has");
        for endpoint in self.cluster.endpoints().iter() {
            assert_eq!(endpoint.in_flight(), 0, "requests still counted as under way");
        }
        let budget = self.worker.metrics().budget();
        assert_eq!((budget.bytes(Medium::Memory), budget.bytes(Medium::Spool)), (0, 0), "still buffered");
        self.worker.resources().dialer.pool.clear();
    }
}

/// The tasks of the origins that were connected to.
type Origins = Rc<RefCell<Vec<JoinHandle<()>>>>;

/// A network on which `serve` plays the origin of every connection; it also gets the connection's number.
fn network<F: Future<Output = ()> + 'static>(
    behaviour: Behaviour,
    serve: impl Fn(usize, End) -> F + 'static,
) -> (Network, Origins) {
    let origins = Origins::default();
    let tasks = Rc::clone(&origins);
    let connect = move |_: &_| {
        let number = tasks.borrow().len();
        let seed = behaviour.seed.wrapping_add(number as u64 * 2 + 1);
        let (ours, theirs) = memory::connection(Behaviour { seed, ..behaviour });
        tasks.borrow_mut().push(spawn_local(serve(number, theirs)));
        Ok(Stream::Memory(ours))
    };
    (Rc::new(connect), origins)
}

/// Waits for the origins to end; the proxy must have closed their connections.
async fn ended(origins: &Origins) {
    let tasks = origins.take();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Runs a test; its clock stands still while any task can run.
fn run<F: Future>(test: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(BOUND, test).await.expect("nothing may wait for ever")
    })
}

/// The number of cases, unless the environment sets another.
fn cases(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases, ..config } }
}

/// Networks that split everything into small pieces; for short messages.
fn rough() -> impl Strategy<Value = Behaviour> {
    (any::<u64>(), 1usize..60, 1usize..300).prop_map(|(seed, piece_max, capacity)| Behaviour {
        seed,
        piece_max,
        capacity,
        stall_of: 4,
    })
}

/// Networks with pieces and buffers of ordinary size; for any message.
fn usual() -> impl Strategy<Value = Behaviour> {
    (any::<u64>(), 500usize..70_000, 1000usize..200_000).prop_map(|(seed, piece_max, capacity)| Behaviour {
        seed,
        piece_max,
        capacity,
        stall_of: 4,
    })
}
