//! Resolves endpoint names to addresses, at startup and then periodically.
//!
//! Lookups use the system's resolver (hosts file, nsswitch, DNS), which blocks; after the start they run on a blocking
//! thread.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use sluice_config::{self as config, Address};
use sluice_core::cluster::{Cluster, Endpoint, EndpointAddress, Replaced, Seed};
use tokio::sync::watch;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// Maximum addresses used of one name, lowest first; limits what a name server can make sluice store.
const ADDRESSES_PER_NAME_MAX: usize = 256;

/// Retry interval of a name that has never resolved, unless the configured interval is shorter.
const UNRESOLVED_RETRY: Duration = Duration::from_secs(1);

/// Names of a cluster that are looked up at the same time. One that does not resolve takes seconds, which must not add up.
const LOOKUPS_MAX: usize = 16;

type Lookup = Box<dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

/// The names of one cluster and their last addresses.
pub struct Resolver {
    cluster: String,
    endpoints: Vec<config::Endpoint>,
    /// In addition to those of the configuration.
    found: Vec<config::Endpoint>,
    /// Addresses that sluice itself listens on: endpoints that are found must not be among them.
    own: Vec<SocketAddr>,
    /// Those that were, so that it is said once.
    left_out: Vec<SocketAddr>,
    interval: Duration,
    names: BTreeMap<(String, u16), Name>,
    lookup: Lookup,
}

#[derive(Default)]
struct Name {
    /// Sorted; empty only if it has never resolved.
    addresses: Vec<SocketAddr>,
    failing: bool,
}

impl Resolver {
    /// A resolver for the endpoints of a cluster; looks up nothing yet. `cluster` is for the logs.
    pub fn new(cluster: &str, config: &config::Cluster) -> Resolver {
        let lookup = |name: &str, port| Ok((name, port).to_socket_addrs()?.collect());
        Resolver::with_lookup(cluster, config, Box::new(lookup))
    }

    fn with_lookup(cluster: &str, config: &config::Cluster, lookup: Lookup) -> Resolver {
        Resolver {
            cluster: cluster.to_owned(),
            endpoints: config.endpoints.clone(),
            found: Vec::new(),
            own: Vec::new(),
            left_out: Vec::new(),
            interval: Duration::from_millis(config.resolve_interval_ms.max(1)),
            names: BTreeMap::new(),
            lookup,
        }
    }

    /// Lets names that do not resolve now keep the addresses that `endpoints` have.
    pub(crate) fn remember(&mut self, endpoints: &[Arc<Endpoint>]) {
        let listed: Vec<_> = self.listed().map(|endpoint| endpoint.address.clone()).collect();
        for address in listed {
            let Address::Name(host, port) = &address else { continue };
            let label = format!("{host}:{port}");
            let known = endpoints.iter().filter(|endpoint| endpoint.host == label);
            let addresses = known.filter_map(|endpoint| match endpoint.address {
                EndpointAddress::Ip(address) => Some(address),
                EndpointAddress::Unix(_) => None,
            });
            self.names.entry((host.clone(), *port)).or_default().addresses = addresses.collect();
        }
    }

    /// Every address of every endpoint with its weight, in file order; the first of equal addresses counts. Blocks
    /// while names are looked up.
    ///
    /// A name whose lookup fails keeps its last addresses, and is warned about once until it resolves again; one that
    /// has never resolved adds none.
    pub fn resolve(&mut self) -> Vec<Seed> {
        self.look_up(|_| true);
        self.all_seeds()
    }

    /// The same, but names that have been looked up are not looked up again.
    fn resolve_new(&mut self) -> Vec<Seed> {
        self.look_up(|name| name.addresses.is_empty() && !name.failing);
        self.all_seeds()
    }

    /// The same for names that have never resolved.
    fn resolve_missing(&mut self) -> Vec<Seed> {
        self.look_up(|name| name.addresses.is_empty());
        self.all_seeds()
    }

    fn all_seeds(&mut self) -> Vec<Seed> {
        let (mut seen, mut left_out) = (HashSet::new(), Vec::new());
        let configured = self.endpoints.iter().flat_map(|endpoint| self.seeds(endpoint));
        let found = self.found.iter().flat_map(|endpoint| self.seeds(endpoint)).filter(|seed| {
            let own = self.own_address(&seed.address);
            left_out.extend(own);
            own.is_none()
        });
        let seeds = configured.chain(found).filter(|seed| seen.insert(seed.address.clone())).collect();
        for address in left_out.iter().filter(|address| !self.left_out.contains(address)) {
            tracing::warn!(cluster = self.cluster, %address, "an endpoint that was found is sluice itself; it is left out");
        }
        self.left_out = left_out;
        seeds
    }

    /// Leaves endpoints out that are found at the address of a listener: their requests would never end.
    pub(crate) fn avoiding(mut self, listeners: &[config::Listener]) -> Self {
        let addresses = listeners.iter().filter_map(|listener| match listener.address {
            Address::Ip(address) => Some(address),
            Address::Name(..) | Address::Unix(_) => None,
        });
        self.own = addresses.collect();
        self
    }

    /// The address, if sluice listens there.
    fn own_address(&self, address: &EndpointAddress) -> Option<SocketAddr> {
        let EndpointAddress::Ip(address) = *address else { return None };
        let is_here = |own: &SocketAddr| {
            own.ip() == address.ip() || own.ip().is_unspecified() && address.ip().is_loopback()
        };
        self.own.iter().any(|own| own.port() == address.port() && is_here(own)).then_some(address)
    }

    /// Replaces the endpoints that were found, in addition to those of the configuration.
    pub(crate) fn set_found(&mut self, found: Vec<config::Endpoint>) {
        self.found = found;
    }

    /// The endpoints that were found.
    pub(crate) fn found(&self) -> &[config::Endpoint] {
        &self.found
    }

    fn listed(&self) -> impl Iterator<Item = &config::Endpoint> {
        self.endpoints.iter().chain(&self.found)
    }

    /// Whether any endpoint has a name, so that resolving again can change anything.
    pub fn has_names(&self) -> bool {
        self.listed().any(|endpoint| matches!(endpoint.address, Address::Name(..)))
    }

    /// Looks up the names that are due.
    fn look_up(&mut self, is_due: impl Fn(&Name) -> bool) {
        let named = self.listed().filter_map(|endpoint| match &endpoint.address {
            Address::Name(host, port) => Some((host.clone(), *port)),
            Address::Ip(_) | Address::Unix(_) => None,
        });
        let named: HashSet<_> = named.collect();
        self.names.retain(|name, _| named.contains(name));
        for name in named {
            self.names.entry(name).or_default();
        }
        let due: Vec<_> = self.names.iter_mut().filter(|(_, name)| is_due(name)).collect();
        let helpers = due.len().min(LOOKUPS_MAX).saturating_sub(1);
        let due = Mutex::new(due.into_iter());
        let next = || due.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            while let Some(((host, port), name)) = next() {
                name.take((self.lookup)(host, *port), &self.cluster, host);
            }
        };
        thread::scope(|scope| {
            for _ in 0..helpers {
                // Without it, the others take longer.
                let _ = thread::Builder::new().name("names".to_owned()).spawn_scoped(scope, work);
            }
            work();
        });
    }

    fn seeds(&self, endpoint: &config::Endpoint) -> Vec<Seed> {
        let (weight, max_in_flight) = (endpoint.weight, endpoint.max_in_flight);
        let (bypass, is_backup) = (endpoint.bypass, endpoint.backup);
        let seed = |address: EndpointAddress, host: String| Seed {
            address,
            host,
            weight,
            max_in_flight,
            bypass,
            is_backup,
        };
        match &endpoint.address {
            Address::Ip(address) => vec![seed(EndpointAddress::Ip(*address), address.to_string())],
            // A path is not a host; RFC 9110 7.2 requires a Host field that the origin can ignore.
            Address::Unix(path) => vec![seed(EndpointAddress::Unix(path.clone()), "localhost".to_owned())],
            Address::Name(host, port) => {
                let name = self.names.get(&(host.clone(), *port));
                let addresses = name.into_iter().flat_map(|name| &name.addresses);
                addresses
                    .map(|&address| seed(EndpointAddress::Ip(address), format!("{host}:{port}")))
                    .collect()
            }
        }
    }

    /// Whether a name has not been looked up.
    fn has_new(&self) -> bool {
        self.listed().any(|endpoint| match &endpoint.address {
            Address::Name(host, port) => !self.names.contains_key(&(host.clone(), *port)),
            Address::Ip(_) | Address::Unix(_) => false,
        })
    }

    /// Whether a name has never resolved.
    fn has_unresolved(&self) -> bool {
        self.names.values().any(|name| name.addresses.is_empty())
    }

    /// How long until such a name is looked up again.
    fn retry(&self) -> Duration {
        self.interval.min(UNRESOLVED_RETRY)
    }
}

impl Name {
    fn take(&mut self, found: io::Result<Vec<SocketAddr>>, cluster: &str, host: &str) {
        let reason = match found {
            Ok(addresses) if !addresses.is_empty() => {
                return self.resolved(addresses, cluster, host);
            }
            Ok(_) => "no addresses found".to_owned(),
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut self.failing, true) {
            let kept = self.addresses.len();
            tracing::warn!(cluster, name = host, kept, reason, "a name does not resolve");
        }
    }

    fn resolved(&mut self, mut addresses: Vec<SocketAddr>, cluster: &str, host: &str) {
        // Name servers rotate their results; sorting makes the same result the same list, and the cut below keep the
        // same addresses.
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(ADDRESSES_PER_NAME_MAX);
        if std::mem::replace(&mut self.failing, false) {
            tracing::info!(cluster, name = host, addresses = addresses.len(), "a name resolves again");
        }
        self.addresses = addresses;
    }
}

/// Resolves the names of `cluster` again every `resolve_interval_ms`, and applies endpoints that are found, without end;
/// returns at once if it has neither names nor a source. `resolver` is the one that created the cluster's first
/// endpoints.
///
/// A lookup cannot be cancelled, so end the runtime with `shutdown_background` or a timeout.
pub async fn run(
    cluster: Arc<Cluster>,
    mut resolver: Resolver,
    mut found: Option<watch::Receiver<Vec<config::Endpoint>>>,
) {
    // Lists that change often must not put off what is due.
    let mut all_at = Instant::now() + resolver.interval;
    let mut retry_at = Instant::now() + resolver.retry();
    while resolver.has_names() || found.is_some() {
        let next_at = if resolver.has_unresolved() { all_at.min(retry_at) } else { all_at };
        let due = tokio::select! {
            () = tokio::time::sleep_until(next_at), if resolver.has_names() => match Instant::now() >= all_at {
                true => Due::All,
                false => Due::Unresolved,
            },
            Some(list) = next(&mut found) => {
                resolver.set_found(list);
                if !resolver.has_new() {
                    // Nothing is looked up, so nothing blocks.
                    apply(&cluster, resolver.resolve_new(), "found");
                    continue;
                }
                Due::New
            }
            else => return,
        };
        let looked_up = tokio::task::spawn_blocking(move || {
            let seeds = match due {
                Due::All => resolver.resolve(),
                Due::Unresolved => resolver.resolve_missing(),
                Due::New => resolver.resolve_new(),
            };
            (resolver, seeds)
        });
        let Ok((returned, seeds)) = looked_up.await else {
            tracing::error!(cluster = cluster.name, "the name lookup task failed; addresses stay unchanged");
            return;
        };
        resolver = returned;
        retry_at = Instant::now() + resolver.retry();
        if due == Due::All {
            all_at = Instant::now() + resolver.interval;
        }
        let why = if due == Due::New { "found" } else { "the names were resolved" };
        apply(&cluster, seeds, why);
    }
}

/// Which names are looked up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    All,
    /// Those that have never resolved.
    Unresolved,
    /// Those that have not been looked up.
    New,
}

/// Replaces the endpoints of a cluster, unless nothing is left of a list that was found.
fn apply(cluster: &Cluster, seeds: Vec<Seed>, why: &str) {
    let keeps_last = cluster.config.discover.as_ref().is_some_and(|discover| discover.keep_last);
    let is_unusable = keeps_last && seeds.is_empty() && !cluster.endpoints().is_empty();
    if cluster.discovery().set_unusable(is_unusable) && is_unusable {
        let cluster = &cluster.name;
        tracing::warn!(
            cluster,
            "no endpoint of the list has an address that can be used; using the last known"
        );
    }
    if is_unusable {
        return;
    }
    let replaced = cluster.replace_endpoints(seeds);
    if replaced != Replaced::default() {
        let Replaced { added, removed } = replaced;
        tracing::info!(cluster = cluster.name, added, removed, why, "the endpoints of the cluster changed");
    }
}

/// The next list that was found; `None` if there is no source any more.
async fn next(found: &mut Option<watch::Receiver<Vec<config::Endpoint>>>) -> Option<Vec<config::Endpoint>> {
    let receiver = found.as_mut()?;
    if receiver.changed().await.is_err() {
        *found = None;
        return None;
    }
    Some(receiver.borrow_and_update().clone())
}
