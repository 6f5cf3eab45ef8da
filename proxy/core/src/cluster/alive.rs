//! Which clusters and endpoints exist, by name. An exchange holds its cluster and its endpoint, so nothing can be
//! counted any more under a name that is missing here.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

static CLUSTERS: Names = Names::new();
static ENDPOINTS: Names = Names::new();

/// Names, and how many objects have each: during a deploy to the same address there are two for a while.
#[derive(Debug)]
struct Names(Mutex<BTreeMap<String, usize>>);

impl Names {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }
}

/// Registers a name for as long as this value lives.
#[derive(Debug)]
pub(super) struct Alive {
    among: &'static Names,
    name: String,
}

impl Alive {
    pub(super) fn cluster(name: &str) -> Self {
        Self::begin(&CLUSTERS, name)
    }

    pub(super) fn endpoint(label: &str) -> Self {
        Self::begin(&ENDPOINTS, label)
    }

    fn begin(among: &'static Names, name: &str) -> Self {
        *among.lock().entry(name.to_owned()).or_default() += 1;
        Self { among, name: name.to_owned() }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let mut names = self.among.lock();
        match names.get_mut(&self.name) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(names.remove(&self.name)),
        }
    }
}

/// Whether a cluster of this name exists.
pub fn has_cluster(name: &str) -> bool {
    CLUSTERS.has(name)
}

/// Whether an endpoint of this label exists in any cluster.
pub fn has_endpoint(label: &str) -> bool {
    ENDPOINTS.has(label)
}

#[cfg(test)]
mod tests {
    use sluice_config::Balance;

    use super::*;
    use crate::cluster::Cluster;
    use crate::cluster::fake::{config, seed};

    #[test]
    fn a_name_exists_until_its_last_holder_is_dropped() {
        // No other test uses these names.
        let make = || Cluster::new("once alive", config(Balance::RoundRobin, true), vec![seed(65_001)]);
        let label = "192.0.2.1:65001";
        let (one, other) = (make(), make());
        drop(one);
        assert!(has_cluster("once alive") && has_endpoint(label));
        let changed = other.reconfigured(other.config.clone());
        drop(other);
        assert!(has_cluster("once alive") && has_endpoint(label));
        let held = changed.endpoints().to_vec();
        changed.replace_endpoints(Vec::new());
        drop(changed);
        assert!(!has_cluster("once alive") && has_endpoint(label), "a request may be under way there");
        drop(held);
        assert!(!has_endpoint(label));
    }
}
