//! What an operator changes on endpoints at run time: their weight, and whether they take requests. Kept by name, so
//! that it applies to every address the name resolves to.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::{Cluster, Endpoint, Seed};

/// What was set for an endpoint. A value that was not set is as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Adjustment {
    /// Its share of the load, relative to the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Whether it takes no new requests. Open requests finish, and checks continue.
    pub disabled: bool,
}

/// What was set, by endpoint name. Only the control plane locks it.
#[derive(Debug, Default)]
pub(super) struct Adjustments(Mutex<BTreeMap<String, Adjustment>>);

impl Adjustments {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Adjustment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The adjustment for an endpoint of this seed.
    pub(super) fn of(&self, seed: &Seed) -> Adjustment {
        let set = self.lock();
        let known = set.get(&seed.host).or_else(|| set.get(&seed.address.to_string()));
        known.copied().unwrap_or_default()
    }
}

impl Endpoint {
    /// Whether the name refers to this endpoint: its configured name, or its address.
    pub fn is_called(&self, name: &str) -> bool {
        self.host == name || self.label == name
    }

    /// Whether an operator disabled new requests to it. Independent of its health.
    pub fn is_disabled(&self) -> bool {
        self.standing.disabled.load(Relaxed)
    }

    pub(super) fn set_disabled(&self, disabled: bool) {
        self.standing.disabled.store(disabled, Relaxed);
    }

    /// Whether it may get a request at `now_ms`.
    pub(crate) fn is_usable(&self, now_ms: u64) -> bool {
        !self.is_disabled() && self.health(now_ms).takes_requests()
    }
}

impl Cluster {
    /// Applies an adjustment to an endpoint and replaces an earlier one. For the control plane.
    pub fn adjust(&self, name: &str, adjustment: Adjustment) {
        self.lasting.adjusted.lock().insert(name.to_owned(), adjustment);
        for endpoint in self.endpoints().iter().filter(|endpoint| endpoint.is_called(name)) {
            endpoint.set_weight(adjustment.weight.unwrap_or_else(|| endpoint.own_weight()));
            endpoint.set_disabled(adjustment.disabled);
        }
    }

    /// What was set for an endpoint.
    pub fn adjustment(&self, name: &str) -> Adjustment {
        self.lasting.adjusted.lock().get(name).copied().unwrap_or_default()
    }

    /// Resets every endpoint to its configuration. Returns true if an adjustment was removed.
    pub fn forget_adjustments(&self) -> bool {
        let set = std::mem::take(&mut *self.lasting.adjusted.lock());
        for endpoint in self.endpoints().iter().filter(|one| set.keys().any(|name| one.is_called(name))) {
            endpoint.set_weight(endpoint.own_weight());
            endpoint.set_disabled(false);
        }
        set.values().any(|adjustment| *adjustment != Adjustment::default())
    }
}

#[cfg(test)]
mod tests {
    use sluice_config::Balance;

    use super::*;
    use crate::balancer::Load;
    use crate::cluster::fake::{config, seed};
    use crate::cluster::{Kind, NoEndpoint, Pick};

    const NAME: &str = "192.0.2.1:1";

    fn picks(cluster: &Cluster) -> Result<Vec<u16>, NoEndpoint> {
        let random = &mut fastrand::Rng::with_seed(1);
        let mut pick =
            || cluster.pick(&mut Pick { kind: Kind::Request, hash: None, exclude: &[], now_ms: 0, random });
        (0..12).map(|_| pick().map(|one| if one.is_called(NAME) { 1 } else { 2 })).collect()
    }

    fn set(weight: Option<u32>, disabled: bool) -> Adjustment {
        Adjustment { weight, disabled }
    }

    #[test]
    fn a_weight_applies_at_once_and_to_new_addresses() {
        let cluster = Cluster::new("c", config(Balance::RoundRobin, true), vec![seed(1), seed(2)]);
        cluster.adjust(NAME, set(Some(3), false));
        let ones = |cluster: &Cluster| picks(cluster).map(|all| all.iter().filter(|one| **one == 1).count());
        assert_eq!(ones(&cluster), Ok(9));
        cluster.replace_endpoints(vec![seed(2), seed(1)]);
        assert_eq!(ones(&cluster), Ok(9), "a lookup does not undo it");
        assert!(cluster.forget_adjustments() && !cluster.forget_adjustments());
        assert_eq!(ones(&cluster), Ok(6));
    }

    #[test]
    fn disabled_endpoints_are_never_picked() {
        for fail_open in [true, false] {
            let cluster =
                Cluster::new("c", config(Balance::LeastRequests, fail_open), vec![seed(1), seed(2)]);
            cluster.adjust(NAME, set(None, true));
            assert_eq!(picks(&cluster), Ok(vec![2; 12]));
            let endpoints = cluster.endpoints().to_vec();
            endpoints.iter().for_each(|endpoint| {
                endpoint.set_active_health(false, 0);
            });
            let wanted = if fail_open { Ok(vec![2; 12]) } else { Err(NoEndpoint::Unhealthy) };
            assert_eq!(picks(&cluster), wanted);
            cluster.adjust("192.0.2.1:2", set(None, true));
            assert_eq!(picks(&cluster), Err(NoEndpoint::Disabled));
            cluster.replace_endpoints(vec![seed(1)]);
            assert_eq!(picks(&cluster), Err(NoEndpoint::Disabled), "the only endpoint");
            cluster.adjust(NAME, set(None, false));
            assert_eq!(picks(&cluster).is_ok(), fail_open);
            assert_eq!(Load::weight(&cluster.endpoints()[0]), 1);
        }
    }
}
