//! The clusters at startup.

use crate::server::StartError;
use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_config::{self as config, Config};
use sluice_core::clock::now_ms;
use sluice_core::cluster::Cluster;

use crate::discovery;
use crate::handover::Predecessor;
use crate::resolve::Resolver;
use crate::state_file;

/// Clusters by name.
pub(super) type Clusters = BTreeMap<String, Arc<Cluster>>;
/// The resolver of each cluster, for periodic lookups.
pub(super) type Resolvers = Vec<(Arc<Cluster>, Resolver)>;

/// Resolves the endpoints of every cluster for the first time.
///
/// # Errors
/// What is wrong with a file for TLS to endpoints.
pub(super) fn at_start(
    config: &Config,
    predecessor: Option<&Predecessor>,
) -> Result<(Clusters, Resolvers), StartError> {
    let mut clusters = BTreeMap::new();
    let mut resolvers = Vec::new();
    let mut found = find_first(config, predecessor)?;
    for (name, cluster) in &config.clusters {
        let mut resolver = Resolver::new(name, cluster).avoiding(&config.listeners);
        resolver.set_found(found.remove(name).unwrap_or_default());
        let cluster =
            Cluster::new(name.clone(), cluster.clone(), resolver.resolve()).with_tls().map(Arc::new)?;
        clusters.insert(name.clone(), Arc::clone(&cluster));
        resolvers.push((cluster, resolver));
    }
    state_file::restore(&clusters.values().cloned().collect::<Vec<_>>());
    predecessor.into_iter().for_each(|from| inherit_health(&clusters, from));
    Ok((clusters, resolvers))
}

/// What the sources of endpoints have at first. All are asked at the same time, on this thread: another one would keep
/// privileges that this one drops later.
fn find_first(
    config: &Config,
    predecessor: Option<&Predecessor>,
) -> Result<BTreeMap<String, Vec<config::Endpoint>>, StartError> {
    let sources = config.clusters.iter().filter_map(|(name, one)| Some((name, one.discover.as_ref()?)));
    let sources: Vec<_> = sources.collect();
    if sources.is_empty() {
        return Ok(BTreeMap::new());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("endpoints cannot be found: {error}"))?;
    let finding = sources.into_iter().map(async |(name, one)| {
        let known = predecessor.map(|from| from.found(name).to_vec()).unwrap_or_default();
        (name.clone(), discovery::first(name, one, known).await)
    });
    let found = runtime.block_on(futures_util::future::join_all(finding));
    // A lookup of a name, which cannot be cancelled, may still run.
    runtime.shutdown_background();
    Ok(found.into_iter().collect())
}

/// Takes over the health that the old process found; checks continue to verify it.
fn inherit_health(clusters: &Clusters, from: &Predecessor) {
    for unhealthy in from.unhealthy() {
        let cluster =
            clusters.get(&unhealthy.cluster).filter(|cluster| cluster.config.health_check.is_some());
        let endpoints = cluster.map(|cluster| cluster.endpoints().to_vec()).unwrap_or_default();
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.label == unhealthy.endpoint) {
            endpoint.set_active_health(false, unhealthy.since_unix_s);
        }
    }
}

/// Takes over the old process's records with joined connections, for configured and deployed endpoints.
pub(super) fn inherit_experience(clusters: &Clusters, from: &Predecessor) {
    for known in from.experienced() {
        let endpoints =
            clusters.get(&known.cluster).map(|cluster| cluster.endpoints().to_vec()).unwrap_or_default();
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.label == known.endpoint) {
            endpoint.joinable.inherit(known.experience, now_ms());
        }
    }
}
