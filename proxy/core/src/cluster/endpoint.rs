//! One address of a cluster: what is known about it, and the counters that workers share.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sluice_config::{self as config, AutoLimit, Ejection, EndpointBypass, MaxInFlight, UpstreamTls};

use super::alive::Alive;
use super::idle::IdleSockets;
use super::joinable::Joinable;
use super::limit::Limit;
use super::seed::{EndpointAddress, Seed};
use crate::balancer::{Load, first_turn};
use crate::cluster::hash_key;

/// Whether an endpoint takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It does: it has answered a check or a request.
    Healthy,
    /// It does, though nothing has been heard of it yet.
    Unchecked,
    /// Active checks found it wanting.
    Unhealthy,
    /// Live traffic found it wanting; it is left alone for a time.
    Ejected,
    /// It left the cluster; what is under way ends, nothing new comes.
    Draining,
}

impl Health {
    /// Whether an endpoint of that health takes new requests.
    pub fn takes_requests(self) -> bool {
        matches!(self, Health::Healthy | Health::Unchecked)
    }

    /// The word that logs, metrics and the admin listener show.
    pub fn word(self) -> &'static str {
        match self {
            Health::Healthy => "healthy",
            Health::Unchecked => "unchecked",
            Health::Unhealthy => "unhealthy",
            Health::Ejected => "ejected",
            Health::Draining => "draining",
        }
    }
}

/// The last active check of an endpoint, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastCheck {
    /// The status, or what went wrong.
    pub outcome: String,
    /// Whether it counted as a success.
    pub success: bool,
    /// When it ended on the process's monotonic clock, in milliseconds.
    pub at_ms: u64,
}

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
    weight: AtomicU32,
    /// Requests it may have under way, as configured.
    pub max_in_flight: MaxInFlight,
    limit: Limit,
    auto_limit: AutoLimit,
    bypass: EndpointBypass,
    /// What connections to it are secured by; they are not interchangeable with others.
    tls: Option<UpstreamTls>,
    /// Idle connections, if there is a limit; else workers keep their own.
    idle: Option<IdleSockets>,
    /// Whether connections to it may be joined past loopback TCP.
    pub joinable: Joinable,
    identity: u64,
    pub(super) traffic: Traffic,
    failures: AtomicU64,
    consecutive_failures: AtomicU32,
    ejected_until_ms: AtomicU64,
    unhealthy: AtomicBool,
    /// It has answered a check or a request.
    heard_of: AtomicBool,
    health_since_unix_s: AtomicU64,
    draining: AtomicBool,
    pub(super) disabled: AtomicBool,
    last_check: Mutex<Option<LastCheck>>,
    _alive: Alive,
}

impl Endpoint {
    /// An endpoint that is healthy, idle and has counted nothing.
    pub fn new(seed: Seed, config: &config::Cluster) -> Endpoint {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let label = seed.address.to_string();
        let alive = Alive::endpoint(&label);
        let weight = seed.weight.max(1);
        let max_in_flight = seed.max_in_flight.unwrap_or(config.max_in_flight);
        let bypass = seed.bypass.unwrap_or(config.bypass);
        Endpoint {
            id: NEXT_ID.fetch_add(1, Relaxed),
            address: seed.address,
            identity: hash_key(label.as_bytes()),
            label,
            host: seed.host,
            weight: AtomicU32::new(weight),
            max_in_flight,
            limit: Limit::new(max_in_flight, config.auto_limit),
            auto_limit: config.auto_limit,
            bypass,
            tls: config.tls.clone(),
            // An application that has the kernel encrypt changes what a message of its socket is, amid the connection.
            joinable: Joinable::new(if config.tls.is_some() { EndpointBypass::Off } else { bypass }),
            idle: (max_in_flight != MaxInFlight::Off).then(IdleSockets::default),
            traffic: Traffic {
                under_way: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                turn: AtomicU64::new(first_turn(weight)),
            },
            failures: AtomicU64::new(0),
            consecutive_failures: AtomicU32::new(0),
            ejected_until_ms: AtomicU64::new(0),
            unhealthy: AtomicBool::new(false),
            heard_of: AtomicBool::new(false),
            health_since_unix_s: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            disabled: AtomicBool::new(false),
            last_check: Mutex::new(None),
            _alive: alive,
        }
    }

    /// Whether an endpoint of that seed would be this one, but for its weight.
    pub(super) fn is_made_of(&self, seed: &Seed, config: &config::Cluster) -> bool {
        self.host == seed.host
            && self.max_in_flight == seed.max_in_flight.unwrap_or(config.max_in_flight)
            && self.bypass == seed.bypass.unwrap_or(config.bypass)
            && self.tls == config.tls
            && (self.max_in_flight != MaxInFlight::Auto || self.auto_limit == config.auto_limit)
    }

    /// Share of the load relative to the others.
    pub fn weight(&self) -> u32 {
        self.weight.load(Relaxed)
    }

    /// Sets it, to at least 1.
    pub(crate) fn set_weight(&self, weight: u32) {
        self.weight.store(weight.max(1), Relaxed);
    }

    pub(super) fn count_request(&self) {
        self.traffic.requests.fetch_add(1, Relaxed);
    }

    /// Requests it may have under way now; `u32::MAX` without a limit.
    pub fn limit_now(&self) -> u32 {
        self.limit.now()
    }

    /// Idle connections that workers share, if the endpoint has a limit.
    pub fn shared_idle(&self) -> Option<&IdleSockets> {
        self.idle.as_ref()
    }

    /// The latency without load that `max_in_flight: auto` goes by, in microseconds; `None` without it.
    pub fn base_latency_us(&self) -> Option<u64> {
        self.limit.base_us()
    }

    /// Takes an answer's latency into account where the limit is found from it. True if the limit has grown.
    pub(crate) fn observe(&self, sent: Instant, latency: Duration) -> bool {
        self.limit.observe(sent, latency, self.in_flight())
    }

    /// Requests begun since the endpoint is known.
    pub fn requests(&self) -> u64 {
        self.traffic.requests.load(Relaxed)
    }

    /// Failures recorded since the endpoint is known.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Whether it takes requests at `now_ms`, the process's monotonic clock.
    pub fn health(&self, now_ms: u64) -> Health {
        match () {
            _ if self.draining.load(Relaxed) => Health::Draining,
            _ if self.unhealthy.load(Relaxed) => Health::Unhealthy,
            _ if self.is_ejected(now_ms) => Health::Ejected,
            _ if self.heard_of.load(Relaxed) => Health::Healthy,
            _ => Health::Unchecked,
        }
    }

    fn is_ejected(&self, now_ms: u64) -> bool {
        now_ms < self.ejected_until_ms.load(Relaxed)
    }

    /// Notes that a request was answered whole. Does not end an ejection: such an answer may stem from
    /// before it.
    pub fn record_success(&self) {
        // Read first: a plain store would take the cache line from every other worker each time.
        if self.consecutive_failures.load(Relaxed) != 0 {
            self.consecutive_failures.store(0, Relaxed);
        }
        self.hear_of();
    }

    fn hear_of(&self) {
        if !self.heard_of.load(Relaxed) {
            self.heard_of.store(true, Relaxed);
        }
    }

    /// Notes that a request failed by the endpoint's fault (connect error, timeout, broken answer).
    /// True if this failure ejected it; of workers that fail at once, one is told so.
    pub fn record_failure(&self, ejection: &Ejection, now_ms: u64) -> bool {
        self.failures.fetch_add(1, Relaxed);
        let until_ms = self.ejected_until_ms.load(Relaxed);
        // Requests that were under way when it was ejected say nothing new.
        if ejection.consecutive_failures == 0 || now_ms < until_ms {
            return false;
        }
        let count = self.consecutive_failures.fetch_add(1, Relaxed).saturating_add(1);
        if count < ejection.consecutive_failures {
            return false;
        }
        let next_ms = now_ms.saturating_add(ejection.time_ms);
        let ejected = self.ejected_until_ms.compare_exchange(until_ms, next_ms, Relaxed, Relaxed);
        self.consecutive_failures.store(0, Relaxed);
        ejected.is_ok() && next_ms > until_ms
    }

    /// Sets what active checks say, and since when (seconds of Unix time). True if that is a change.
    pub fn set_active_health(&self, healthy: bool, since_unix_s: u64) -> bool {
        let changed = self.unhealthy.swap(!healthy, Relaxed) == healthy;
        if changed {
            self.health_since_unix_s.store(since_unix_s, Relaxed);
        }
        changed
    }

    /// What active checks say, ejection left out.
    pub fn active_health(&self) -> bool {
        !self.unhealthy.load(Relaxed)
    }

    /// When [`Self::active_health`] last changed, in seconds of Unix time; 0 if it never has.
    pub fn health_since_unix_s(&self) -> u64 {
        self.health_since_unix_s.load(Relaxed)
    }

    /// The last active check, if there was one. Locks, so not for the data path.
    pub fn last_check(&self) -> Option<LastCheck> {
        self.last_check.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what the latest active check came to.
    pub fn set_last_check(&self, check: LastCheck) {
        if check.success {
            self.hear_of();
        }
        *self.last_check.lock().unwrap_or_else(PoisonError::into_inner) = Some(check);
    }

    /// Gives it nothing new to do: it has left its cluster, or is about to. Its idle connections are closed, those of
    /// the workers by their next tick.
    pub fn drain(&self) {
        self.draining.store(true, Relaxed);
        if let Some(idle) = &self.idle {
            idle.close();
        }
    }

    /// Whether it has left its cluster.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
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
        &self.traffic.turn
    }
}
