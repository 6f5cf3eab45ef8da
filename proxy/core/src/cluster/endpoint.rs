//! One address of a cluster: its state, and the counters that workers share.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use sluice_config::{self as config, AutoLimit, Ejection, EndpointBypass, MaxInFlight, UpstreamTls};

use super::alive::Alive;
use super::health::{CheckedHealth, Failures, Health, LastCheck};
use super::idle::IdleSockets;
use super::joinable::Joinable;
use super::limit::{Limit, ServiceSample};
use super::seed::{EndpointAddress, Seed};
use super::warmth::Warmth;
use crate::balancer::{Load, first_turn};
use crate::clock::now_ms;
use crate::cluster::hash_key;

/// Fields that every request writes, on separate cache lines: otherwise readers of neighbouring fields (health, on
/// every pick of every worker) would miss each time. 128, as x86 fetches lines in pairs.
#[repr(align(128))]
pub(super) struct Traffic {
    /// Requests and tunnels; see `admission`.
    pub(super) under_way: AtomicU64,
    requests: AtomicU64,
    turn: AtomicU64,
    /// See `Endpoint::saturated`.
    pub(super) saturated_us: AtomicU64,
}

/// One address in a cluster.
pub struct Endpoint {
    /// Unique in the process and never reused.
    pub id: u32,
    /// Where it listens.
    pub address: EndpointAddress,
    /// The address as text, for logs, metrics and the state file.
    pub label: String,
    /// The Host field of sluice's own requests to it.
    pub host: String,
    /// Its identity for hashing balancers.
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

/// Its limits, and what is in use.
pub(super) struct Capacity {
    weight: AtomicU32,
    /// The weight without what an operator has set.
    own_weight: AtomicU32,
    warmth: Warmth,
    limit: Limit,
    /// Shared idle connections, if the endpoint has a limit; otherwise each worker keeps its own.
    idle: Option<IdleSockets>,
    pub(super) traffic: Traffic,
}

impl Capacity {
    fn new(weight: u32, terms: &Terms, bounds: AutoLimit) -> Self {
        let (max_in_flight, warmth) = (terms.max_in_flight, Warmth::new(terms.slow_start_ms, now_ms()));
        let first_turn = first_turn(warmth.of_weight(weight, now_ms));
        Self {
            weight: AtomicU32::new(weight),
            own_weight: AtomicU32::new(weight),
            warmth,
            limit: Limit::new(max_in_flight, bounds),
            idle: (max_in_flight != MaxInFlight::Off).then(IdleSockets::default),
            traffic: Traffic {
                under_way: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                turn: AtomicU64::new(first_turn),
                saturated_us: AtomicU64::new(0),
            },
        }
    }
}

/// Its configuration: an endpoint with different terms is a different endpoint.
#[derive(PartialEq)]
struct Terms {
    max_in_flight: MaxInFlight,
    /// Used only if the limit is automatic.
    auto_limit: Option<AutoLimit>,
    bypass: EndpointBypass,
    slow_start_ms: u64,
    is_backup: bool,
    /// The TLS settings of connections to it. Connections with other settings are not interchangeable.
    tls: Option<UpstreamTls>,
}

impl Terms {
    fn of(seed: &Seed, config: &config::Cluster) -> Self {
        let max_in_flight = seed.max_in_flight.unwrap_or(config.max_in_flight);
        Self {
            max_in_flight,
            auto_limit: (max_in_flight == MaxInFlight::Auto).then_some(config.auto_limit),
            bypass: seed.bypass.unwrap_or(config.bypass),
            slow_start_ms: config.slow_start_ms,
            is_backup: seed.is_backup,
            tls: config.tls.clone(),
        }
    }
}

/// Whether operators and the configuration allow its use.
#[derive(Default)]
pub(super) struct Standing {
    draining: AtomicBool,
    pub(super) disabled: AtomicBool,
}

impl Endpoint {
    /// An endpoint that is healthy and idle, with all counters at zero.
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
            // An application that hands encryption to the kernel (kTLS) changes how its socket divides messages, in the
            // middle of the connection.
            joinable: Joinable::new(if terms.tls.is_some() { EndpointBypass::Off } else { terms.bypass }),
            capacity: Capacity::new(weight, &terms, config.auto_limit),
            terms,
            checked: CheckedHealth::default(),
            failures: Failures::default(),
            standing: Standing::default(),
            _alive: alive,
        }
    }

    /// Whether an endpoint of this seed would be identical to this one, apart from its weight.
    pub(super) fn is_made_of(&self, seed: &Seed, config: &config::Cluster) -> bool {
        self.host == seed.host && self.terms == Terms::of(seed, config)
    }

    /// The configured limit of requests under way.
    pub fn max_in_flight(&self) -> MaxInFlight {
        self.terms.max_in_flight
    }

    /// Whether it is used only while no other endpoint is healthy.
    pub fn is_backup(&self) -> bool {
        self.terms.is_backup
    }

    /// Share of the load relative to the others.
    pub fn weight(&self) -> u32 {
        self.capacity.weight.load(Relaxed)
    }

    /// Sets the weight, to at least 1.
    pub(crate) fn set_weight(&self, weight: u32) {
        self.capacity.weight.store(weight.max(1), Relaxed);
    }

    /// The weight without what an operator has set.
    pub(super) fn own_weight(&self) -> u32 {
        self.capacity.own_weight.load(Relaxed)
    }

    pub(super) fn set_own_weight(&self, weight: u32) {
        self.capacity.own_weight.store(weight.max(1), Relaxed);
    }

    pub(super) fn count_request(&self) {
        self.capacity.traffic.requests.fetch_add(1, Relaxed);
    }

    /// The current limit of requests under way; `u32::MAX` without a limit.
    pub fn limit_now(&self) -> u32 {
        self.capacity.limit.now()
    }

    /// Idle connections that workers share, if the endpoint has a limit.
    pub fn shared_idle(&self) -> Option<&IdleSockets> {
        self.capacity.idle.as_ref()
    }

    /// The latency without load that `max_in_flight: auto` is based on, in microseconds; `None` without it.
    pub fn base_latency_us(&self) -> Option<u64> {
        self.capacity.limit.base_us()
    }

    /// Reports a response if the limit is automatic. Returns true if the limit has grown.
    pub(crate) fn observe(&self, sample: ServiceSample) -> bool {
        self.capacity.limit.observe(sample, || self.in_flight())
    }

    /// Requests started since the endpoint exists.
    pub fn requests(&self) -> u64 {
        self.capacity.traffic.requests.load(Relaxed)
    }

    /// Failures recorded since the endpoint exists.
    pub fn failures(&self) -> u64 {
        self.failures.all()
    }

    /// Time in which all its threads were busy since it exists, as far as sluice has looked.
    pub fn saturated(&self) -> Duration {
        Duration::from_micros(self.capacity.traffic.saturated_us.load(Relaxed))
    }

    /// Adds to [`Endpoint::saturated`].
    pub fn add_saturated(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.capacity.traffic.saturated_us.fetch_add(us, Relaxed);
    }

    /// Its health at `now_ms`, a time of the process's monotonic clock.
    pub fn health(&self, now_ms: u64) -> Health {
        match () {
            () if self.is_draining() => Health::Draining,
            () if !self.checked.is_healthy() => Health::Unhealthy,
            () if self.failures.is_ejected(now_ms) => Health::Ejected,
            () if self.checked.is_heard_of() => Health::Healthy,
            () => Health::Unchecked,
        }
    }

    /// Records that a request got a complete response. Does not end an ejection: the response may belong to a request
    /// sent before it.
    pub fn record_success(&self) {
        self.failures.forget_consecutive();
        self.checked.hear_of();
    }

    /// Records that a request failed through the endpoint's fault (connect error, timeout, malformed response). Returns
    /// true if this failure ejected it; if several workers fail at once, only one of them gets true.
    pub fn record_failure(&self, ejection: &Ejection, now_ms: u64) -> bool {
        let is_ejected = self.failures.add(ejection, now_ms);
        if is_ejected {
            self.capacity.warmth.begin(now_ms.saturating_add(ejection.time_ms));
        }
        is_ejected
    }

    /// Sets the result of active checks, and since when it holds (seconds of Unix time). Returns true if it changed.
    pub fn set_active_health(&self, healthy: bool, since_unix_s: u64) -> bool {
        let has_changed = self.checked.set(healthy, since_unix_s);
        if has_changed && healthy {
            self.capacity.warmth.begin(now_ms());
        }
        has_changed
    }

    /// The result of active checks, regardless of ejection.
    pub fn active_health(&self) -> bool {
        self.checked.is_healthy()
    }

    /// When [`Self::active_health`] last changed, in seconds of Unix time; 0 if it never has.
    pub fn health_since_unix_s(&self) -> u64 {
        self.checked.since_unix_s()
    }

    /// The last active check, if there was one. Takes a lock, so not for the data path.
    pub fn last_check(&self) -> Option<LastCheck> {
        self.checked.last_check()
    }

    /// Stores the result of the latest active check.
    pub fn set_last_check(&self, check: LastCheck) {
        self.checked.set_last_check(check);
    }

    /// Stops new work for it: it has left its cluster, or is about to. Its idle connections are closed; workers close
    /// theirs by their next tick.
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
        self.capacity.warmth.of_weight(Endpoint::weight(self), now_ms)
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
