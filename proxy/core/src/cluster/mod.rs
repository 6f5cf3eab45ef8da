//! A cluster and its endpoints, shared by every worker.
//!
//! Workers read and count with atomics and never wait for one another. The list is replaced as a whole when names
//! resolve to other addresses. Connections, checks and lookups are elsewhere.

use crate::tls::TlsConfigError;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use crossbeam_utils::CachePadded;
use sluice_config::{self as config, Balance};
use twox_hash::XxHash64;

use crate::balancer::{self, Eligible};
use crate::tls::upstream::UpstreamSessions;

mod adjust;
mod admission;
pub mod alive;
mod budget;
mod discovery;
mod endpoint;
mod health;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod idle;
mod joinable;
mod limit;
mod seed;
mod slowness;
mod snapshot;
mod warmth;
#[cfg(test)]
mod tests;

pub use crate::queue::QueueCounts;
pub use adjust::Adjustment;
use adjust::Adjustments;
use admission::ClusterQueue;
pub use admission::Wants;
pub use admission::{InFlight, Kind};
use alive::Alive;
use budget::RetryBudget;
pub use discovery::{DiscoverySnapshot, DiscoveryStatus};
pub use endpoint::Endpoint;
pub use health::{Health, LastCheck};
pub use idle::{Attached, IdleSocket, IdleSockets, closed_with_endpoints};
pub use joinable::{Admission, Experience, Locality};
pub use limit::ServiceSample;
pub use seed::{EndpointAddress, Seed};
use slowness::Slowness;
pub use snapshot::balance_word;
pub use snapshot::snapshot_json;

/// Must never change: a key must map to the same endpoint in every worker and after every restart.
const HASH_SEED: u64 = 0;

/// The hash of a request's key (or of an endpoint's label), the same in every process and release.
pub fn hash_key(bytes: &[u8]) -> u64 {
    XxHash64::oneshot(HASH_SEED, bytes)
}

/// A named group of interchangeable endpoints.
pub struct Cluster {
    /// Its name in the configuration.
    pub name: String,
    /// Its configuration.
    pub config: config::Cluster,
    /// TLS settings for its endpoints, if configured.
    tls: Option<Arc<UpstreamSessions>>,
    lasting: Arc<Lasting>,
    _alive: Alive,
}

/// What a cluster keeps when its configuration changes.
struct Lasting {
    endpoints: ArcSwap<Vec<Arc<Endpoint>>>,
    /// Virtual time of round robin. Apart from the other fields: each pick writes it, and reads those.
    turn: CachePadded<AtomicU64>,
    queue: Arc<ClusterQueue>,
    adjusted: Adjustments,
    retries: RetryBudget,
    slowness: Slowness,
    discovery: DiscoveryStatus,
}

/// The input of one pick.
pub struct Pick<'a> {
    /// What will occupy the endpoint.
    pub kind: Kind,
    /// [`hash_key`] of the key that `balance: hash` names; `None` if the request has none: it is then balanced by least
    /// requests.
    pub hash: Option<u64>,
    /// Ids of endpoints that were already tried for this request; never picked.
    pub exclude: &'a [u32],
    /// The process's monotonic clock, in milliseconds.
    pub now_ms: u64,
    /// The worker's random source.
    pub random: &'a mut fastrand::Rng,
}

/// Why no endpoint was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// the cluster has no endpoint
    #[error("the cluster has no endpoint")]
    Empty,
    /// every endpoint is disabled
    #[error("every endpoint is disabled")]
    Disabled,
    /// no endpoint is healthy
    #[error("no endpoint is healthy")]
    Unhealthy,
    /// every usable endpoint was tried
    #[error("every usable endpoint was tried")]
    Tried,
    /// every usable endpoint is at its limit
    #[error("every usable endpoint is at its limit")]
    Full,
}

/// The effect of a change of the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// New endpoints.
    pub added: usize,
    /// Endpoints that left and are draining.
    pub removed: usize,
}

impl Cluster {
    /// A cluster of the endpoints that `seeds` describe, all healthy. The first of several seeds with the same address
    /// is used.
    pub fn new(name: impl Into<String>, config: config::Cluster, seeds: Vec<Seed>) -> Cluster {
        let lasting = Lasting {
            queue: Arc::new(ClusterQueue::new(config.queue)),
            endpoints: ArcSwap::from_pointee(Vec::new()),
            turn: CachePadded::default(),
            adjusted: Adjustments::default(),
            retries: RetryBudget::default(),
            slowness: Slowness::default(),
            discovery: DiscoveryStatus::default(),
        };
        let name = name.into();
        let cluster =
            Cluster { _alive: Alive::cluster(&name), name, config, tls: None, lasting: Arc::new(lasting) };
        cluster.replace_endpoints(seeds);
        cluster
    }

    /// The same cluster with another configuration: it keeps its endpoints, their state, and its queue. Exchanges that
    /// use the old configuration use the same endpoints. Call [`Cluster::replace_endpoints`] and
    /// [`Cluster::apply_queue_rules`] to apply the new endpoints and queue rules.
    pub fn reconfigured(&self, config: config::Cluster) -> Cluster {
        let (name, lasting) = (self.name.clone(), Arc::clone(&self.lasting));
        Cluster { _alive: Alive::cluster(&name), name, config, tls: None, lasting }
    }

    /// Loads the files of the cluster's TLS configuration. Until then, no connection to endpoints that use TLS can be
    /// opened.
    ///
    /// # Errors
    /// Names the file and what is wrong with it.
    pub fn with_tls(self) -> Result<Cluster, TlsConfigError> {
        let tls = self.config.tls.as_ref().map(|tls| UpstreamSessions::load(&self.name, tls)).transpose()?;
        Ok(Cluster { tls: tls.map(Arc::new), ..self })
    }

    /// TLS settings for its endpoints, if loaded.
    pub fn tls(&self) -> Option<&Arc<UpstreamSessions>> {
        self.tls.as_ref()
    }

    /// What is known of the source of its endpoints.
    pub fn discovery(&self) -> &DiscoveryStatus {
        &self.lasting.discovery
    }

    /// Applies this configuration's rules to the queue.
    pub fn apply_queue_rules(&self) {
        self.lasting.queue.set_rules(self.config.queue);
    }

    /// Whether balancing compares requests under way.
    pub fn weighs_load(&self) -> bool {
        let compares = matches!(self.config.balance, Balance::LeastRequests | Balance::RandomTwo)
            || self.config.hash_load_percent_max.is_some();
        compares && self.endpoints().len() > 1
    }

    /// The current endpoints. Hold the guard briefly, and not across an await.
    pub fn endpoints(&self) -> Guard<Arc<Vec<Arc<Endpoint>>>> {
        self.lasting.endpoints.load()
    }

    /// Picks an endpoint by the `balance` method among the healthy endpoints that were not tried. If no endpoint of the
    /// cluster is healthy and `fail_open` is set, picks among all that were not tried. Never picks a disabled endpoint,
    /// nor a backup while another one is healthy and was not tried.
    ///
    /// Allocates only in clusters of more than 64 endpoints.
    ///
    /// # Errors
    /// If no endpoint can be used.
    pub fn pick(&self, request: &mut Pick<'_>) -> Result<Arc<Endpoint>, NoEndpoint> {
        let endpoints = self.lasting.endpoints.load();
        if let [only] = endpoints.as_slice() {
            let tried = request.exclude.contains(&only.id);
            let usable = self.config.fail_open || only.health(request.now_ms).takes_requests();
            return match (tried, usable) {
                _ if only.is_disabled() => Err(NoEndpoint::Disabled),
                (true, _) => Err(NoEndpoint::Tried),
                (false, false) => Err(NoEndpoint::Unhealthy),
                (false, true) if !only.has_room(request.kind, self.config.tunnels_max) => {
                    Err(NoEndpoint::Full)
                }
                (false, true) => Ok(Arc::clone(only)),
            };
        }
        let eligible = self.eligible(&endpoints, request)?;
        let index = self.balance(&endpoints, &eligible, request);
        index.map(|index| Arc::clone(&endpoints[index])).ok_or(NoEndpoint::Unhealthy)
    }

    /// Whether an endpoint may serve this request, now or once it has room.
    pub(crate) fn can_ever_serve(&self, request: &Pick<'_>) -> Result<(), NoEndpoint> {
        match self.eligible(&self.lasting.endpoints.load(), request) {
            Ok(_) | Err(NoEndpoint::Full) => Ok(()),
            Err(never) => Err(never),
        }
    }

    fn eligible(&self, endpoints: &[Arc<Endpoint>], request: &Pick<'_>) -> Result<Eligible, NoEndpoint> {
        let (mut any_healthy, mut any_enabled) = (false, false);
        let mut any_backup = false;
        let mut healthy = Eligible::default();
        let mut untried = Eligible::default();
        for (index, endpoint) in endpoints.iter().enumerate() {
            if endpoint.is_disabled() {
                continue;
            }
            any_enabled = true;
            let is_healthy = endpoint.health(request.now_ms).takes_requests();
            any_healthy |= is_healthy;
            if request.exclude.contains(&endpoint.id) {
                continue;
            }
            untried.insert(index);
            if is_healthy {
                healthy.insert(index);
                any_backup |= endpoint.is_backup();
            }
        }
        if any_backup {
            let mut others = healthy.clone();
            others.retain(|index| !endpoints[index].is_backup());
            if !others.is_empty() {
                healthy = others;
            }
        }
        let usable = match () {
            _ if !healthy.is_empty() => healthy,
            _ if endpoints.is_empty() => return Err(NoEndpoint::Empty),
            _ if !any_enabled => return Err(NoEndpoint::Disabled),
            _ if any_healthy || untried.is_empty() => return Err(NoEndpoint::Tried),
            _ if self.config.fail_open => untried,
            _ => return Err(NoEndpoint::Unhealthy),
        };
        self.with_room(endpoints, usable, request.kind)
    }

    /// The subset of `usable` with room for one more.
    fn with_room(
        &self,
        endpoints: &[Arc<Endpoint>],
        mut usable: Eligible,
        kind: Kind,
    ) -> Result<Eligible, NoEndpoint> {
        usable.retain(|index| endpoints[index].has_room(kind, self.config.tunnels_max));
        if usable.is_empty() { Err(NoEndpoint::Full) } else { Ok(usable) }
    }

    fn balance(
        &self,
        endpoints: &[Arc<Endpoint>],
        eligible: &Eligible,
        request: &mut Pick<'_>,
    ) -> Option<usize> {
        match (&self.config.balance, request.hash) {
            (Balance::Hash(_), Some(key)) => match self.config.hash_load_percent_max {
                Some(percent) => balancer::bounded_hash(endpoints, eligible, key, percent),
                None => balancer::hash(endpoints, eligible, key),
            },
            // A client that is kept at its endpoint.
            (_, Some(key)) if self.config.affinity.is_some() => balancer::hash(endpoints, eligible, key),
            (Balance::LeastRequests, _) | (Balance::Hash(_), None) => {
                balancer::least_requests(endpoints, eligible, request.random)
            }
            (Balance::RoundRobin, _) => balancer::round_robin(endpoints, eligible, &self.lasting.turn),
            (Balance::RandomTwo, _) => balancer::random_two(endpoints, eligible, request.random),
        }
    }

    /// How long to wait for a first byte before another endpoint is asked; `None` until enough requests are known.
    pub fn hedge_after(&self) -> Option<Duration> {
        self.lasting.slowness.estimate()
    }

    /// Counts the time to the first byte of a request that may be hedged.
    pub fn note_first_byte(&self, after: Duration) {
        self.lasting.slowness.note(after);
    }

    /// Counts a request that may be sent again because of a response, for at most `percent` of all.
    pub fn earn_retry(&self, percent: u32) {
        self.lasting.retries.earn(percent);
    }

    /// Takes a place to send a request again because of a response: false if no endpoint but these is healthy and
    /// enabled, or if as many as possible were sent again already.
    pub fn take_retry(&self, last: u32, before: &[u32], now_ms: u64) -> bool {
        let was_tried = |id: u32| id == last || before.contains(&id);
        let is_other = |endpoint: &Arc<Endpoint>| endpoint.is_usable(now_ms) && !was_tried(endpoint.id);
        self.lasting.endpoints.load().iter().any(is_other) && self.lasting.retries.take()
    }

    /// Replaces the list. An endpoint that stays keeps its id, health and counters. An endpoint whose limit or bypass
    /// setting changed is a new endpoint with the old one's health. An endpoint that leaves is marked draining. For the
    /// control plane: if called concurrently, one call may be lost.
    pub fn replace_endpoints(&self, seeds: Vec<Seed>) -> Replaced {
        let old = self.lasting.endpoints.load_full();
        let mut leaving: HashMap<_, _> = old.iter().map(|known| (&known.address, known)).collect();
        let mut taken = HashSet::with_capacity(seeds.len());
        let mut new = Vec::with_capacity(seeds.len());
        let mut replaced = Replaced::default();
        for seed in seeds {
            if !taken.insert(seed.address.clone()) {
                continue;
            }
            let known = leaving.get(&seed.address).copied();
            let adjustment = self.lasting.adjusted.of(&seed);
            let weight = adjustment.weight.unwrap_or(seed.weight);
            new.push(match known.filter(|known| known.is_made_of(&seed, &self.config)) {
                Some(known) => {
                    leaving.remove(&seed.address);
                    known.set_own_weight(seed.weight);
                    known.set_weight(weight);
                    Arc::clone(known)
                }
                None => {
                    replaced.added += 1;
                    let endpoint = Endpoint::new(seed, &self.config);
                    endpoint.set_weight(weight);
                    endpoint.set_disabled(adjustment.disabled);
                    if let Some(known) = known {
                        endpoint.set_active_health(known.active_health(), known.health_since_unix_s());
                    }
                    Arc::new(endpoint)
                }
            });
        }
        replaced.removed = leaving.len();
        leaving.into_values().for_each(|gone| gone.drain());
        self.lasting.endpoints.store(Arc::new(new));
        replaced
    }
}
