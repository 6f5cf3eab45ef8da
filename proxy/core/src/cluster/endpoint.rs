//! One address of a cluster: what is known about it, and the counters that workers share.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use sluice_config::{self as config, AutoLimit, Ejection, EndpointBypass, MaxInFlight, UpstreamTls};

use super::alive::Alive;
use super::health::{CheckedHealth, Failures, Health, LastCheck};
use super::idle::IdleSockets;
use super::joinable::Joinable;
use super::limit::Limit;
use super::seed::{EndpointAddress, Seed};
use crate::balancer::{Load, first_turn};
use crate::cluster::hash_key;

/// What every request writes, on cache lines of its own: readers of the fields beside it (health, on
/// every pick of every worker) would otherwise miss each time. 128, as x86 fetches lines in pairs.
#[repr(align(128))]
pub(super) struct Traffic {
    /// Requests and tunnels; see `admission`.
    pub(super) under_way: AtomicU64,
    requests: AtomicU64,
    turn: AtomicU64,
}

/// One address in a cluster.
pub struct Endpoint {
    /// Unique in the process and never used again.
    pub id: u32,
    /// Where it listens.
    pub address: EndpointAddress,
    /// The address as text, for logs, metrics and the state file.
    pub label: String,
    /// The Host of requests of our own to it.
    pub host: String,
    /// What a hashing balancer knows it by.
    identity: u64,
    /// Whether connections to it may be joined past loopback TCP.
    pub joinable: Joinable,
    terms: Terms,
    pub(super) capacity: Capacity,
    checked: CheckedHealth,
    failures: Failures,
    pub(super) standing: Standing,
    _alive: Alive,
}

/// What it may have, and what it has.
pub(super) struct Capacity {
    weight: AtomicU32,
    limit: Limit,
    /// Idle connections, if there is a limit; else workers keep their own.
    idle: Option<IdleSockets>,
    pub(super) traffic: Traffic,
}

impl Capacity {
    fn new(weight: u32, max_in_flight: MaxInFlight, bounds: AutoLimit) -> Self {
        Self {
            weight: AtomicU32::new(weight),
            limit: Limit::new(max_in_flight, bounds),
            idle: (max_in_flight != MaxInFlight::Off).then(IdleSockets::default),
            traffic: Traffic {
                under_way: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                turn: AtomicU64::new(first_turn(weight)),
            },
        }
    }
}

/// What it is configured with: an endpoint of other terms is another.
#[derive(PartialEq)]
struct Terms {
    max_in_flight: MaxInFlight,
    /// Of use only where the limit is found by itself.
    auto_limit: Option<AutoLimit>,
    bypass: EndpointBypass,
    /// What connections to it are secured by; they are not interchangeable with others.
    tls: Option<UpstreamTls>,
}

impl Terms {
    fn of(seed: &Seed, config: &config::Cluster) -> Self {
        let max_in_flight = seed.max_in_flight.unwrap_or(config.max_in_flight);
        Self {
            max_in_flight,
            auto_limit: (max_in_flight == MaxInFlight::Auto).then_some(config.auto_limit),
            bypass: seed.bypass.unwrap_or(config.bypass),
            tls: config.tls.clone(),
        }
    }
}

/// Whether it is to be used, as operators and configurations have it.
#[derive(Default)]
pub(super) struct Standing {
    draining: AtomicBool,
    pub(super) disabled: AtomicBool,
}

impl Endpoint {
    /// An endpoint that is healthy, idle and has counted nothing.
    pub fn new(seed: Seed, config: &config::Cluster) -> Endpoint {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let label = seed.address.to_string();
        let alive = Alive::endpoint(&label);
        let weight = seed.weight.max(1);
        let terms = Terms::of(&seed, config);
        Endpoint {
            id: NEXT_ID.fetch_add(1, Relaxed),
            address: seed.address,
            identity: hash_key(label.as_bytes()),
            label,
            host: seed.host,
            // An application that has the kernel encrypt changes what a message of its socket is, amid the connection.
            joinable: Joinable::new(if terms.tls.is_some() { EndpointBypass::Off } else { terms.bypass }),
            capacity: Capacity::new(weight, terms.max_in_flight, config.auto_limit),
            terms,
            checked: CheckedHealth::default(),
            failures: Failures::default(),
            standing: Standing::default(),
            _alive: alive,
        }
    }

    /// Whether an endpoint of that seed would be this one, but for its weight.
    pub(super) fn is_made_of(&self, seed: &Seed, config: &config::Cluster) -> bool {
        self.host == seed.host && self.terms == Terms::of(seed, config)
    }

    /// Requests it may have under way, as configured.
    pub fn max_in_flight(&self) -> MaxInFlight {
        self.terms.max_in_flight
    }

    /// Share of the load relative to the others.
    pub fn weight(&self) -> u32 {
        self.capacity.weight.load(Relaxed)
    }

    /// Sets it, to at least 1.
    pub(crate) fn set_weight(&self, weight: u32) {
        self.capacity.weight.store(weight.max(1), Relaxed);
    }

    pub(super) fn count_request(&self) {
        self.capacity.traffic.requests.fetch_add(1, Relaxed);
    }

    /// Requests it may have under way now; `u32::MAX` without a limit.
    pub fn limit_now(&self) -> u32 {
        self.capacity.limit.now()
    }

    /// Idle connections that workers share, if the endpoint has a limit.
    pub fn shared_idle(&self) -> Option<&IdleSockets> {
        self.capacity.idle.as_ref()
    }

    /// The latency without load that `max_in_flight: auto` goes by, in microseconds; `None` without it.
    pub fn base_latency_us(&self) -> Option<u64> {
        self.capacity.limit.base_us()
    }

    /// Takes an answer's latency into account where the limit is found from it. True if the limit has grown.
    pub(crate) fn observe(&self, sent: Instant, latency: Duration) -> bool {
        self.capacity.limit.observe(sent, latency, self.in_flight())
    }

    /// Requests begun since the endpoint is known.
    pub fn requests(&self) -> u64 {
        self.capacity.traffic.requests.load(Relaxed)
    }

    /// Failures recorded since the endpoint is known.
    pub fn failures(&self) -> u64 {
        self.failures.all()
    }

    /// Whether it takes requests at `now_ms`, the process's monotonic clock.
    pub fn health(&self, now_ms: u64) -> Health {
        match () {
            () if self.is_draining() => Health::Draining,
            () if !self.checked.is_healthy() => Health::Unhealthy,
            () if self.failures.is_ejected(now_ms) => Health::Ejected,
            () if self.checked.is_heard_of() => Health::Healthy,
            () => Health::Unchecked,
        }
    }

    /// Notes that a request was answered whole. Does not end an ejection: such an answer may stem from
    /// before it.
    pub fn record_success(&self) {
        self.failures.forget_consecutive();
        self.checked.hear_of();
    }

    /// Notes that a request failed by the endpoint's fault (connect error, timeout, broken answer).
    /// True if this failure ejected it; of workers that fail at once, one is told so.
    pub fn record_failure(&self, ejection: &Ejection, now_ms: u64) -> bool {
        self.failures.add(ejection, now_ms)
    }

    /// Sets what active checks say, and since when (seconds of Unix time). True if that is a change.
    pub fn set_active_health(&self, healthy: bool, since_unix_s: u64) -> bool {
        self.checked.set(healthy, since_unix_s)
    }

    /// What active checks say, ejection left out.
    pub fn active_health(&self) -> bool {
        self.checked.is_healthy()
    }

    /// When [`Self::active_health`] last changed, in seconds of Unix time; 0 if it never has.
    pub fn health_since_unix_s(&self) -> u64 {
        self.checked.since_unix_s()
    }

    /// The last active check, if there was one. Locks, so not for the data path.
    pub fn last_check(&self) -> Option<LastCheck> {
        self.checked.last_check()
    }

    /// Keeps what the latest active check came to.
    pub fn set_last_check(&self, check: LastCheck) {
        self.checked.set_last_check(check);
    }

    /// Gives it nothing new to do: it has left its cluster, or is about to. Its idle connections are closed, those of
    /// the workers by their next tick.
    pub fn drain(&self) {
        self.standing.draining.store(true, Relaxed);
        if let Some(idle) = &self.capacity.idle {
            idle.close();
        }
    }

    /// Whether it has left its cluster.
    pub fn is_draining(&self) -> bool {
        self.standing.draining.load(Relaxed)
    }
}

impl Load for Arc<Endpoint> {
    fn weight(&self) -> u32 {
        Endpoint::weight(self)
    }

    fn in_flight(&self) -> u32 {
        Endpoint::in_flight(self)
    }

    fn identity(&self) -> u64 {
        self.identity
    }

    fn turn(&self) -> &AtomicU64 {
        &self.capacity.traffic.turn
    }
}
