//! Clusters for tests of this and other crates.

use sluice_config::{self as config, Address, Balance, Ejection, Pool};

use super::{Cluster, EndpointAddress, Seed};

pub(super) const EJECTION: Ejection = Ejection { consecutive_failures: 3, time_ms: 1000 };

/// A configuration for tests to modify.
pub fn config(balance: Balance, fail_open: bool) -> config::Cluster {
    let pool = Pool { idle_max_per_endpoint: 1, idle_timeout_ms: 1 };
    config::Cluster {
        balance,
        fail_open,
        ejection: EJECTION,
        pool,
        resolve_interval_ms: 1,
        ..config::Cluster::default()
    }
}

/// A seed at an address that nothing connects to.
pub fn seed(port: u16) -> Seed {
    let address = EndpointAddress::Ip(([192, 0, 2, 1], port).into());
    Seed {
        host: address.to_string(),
        address,
        weight: 1,
        max_in_flight: None,
        bypass: None,
        is_backup: false,
    }
}

/// A cluster of the addresses in its configuration. Names are skipped because nothing is resolved.
pub fn cluster(name: &str, config: &config::Cluster) -> Cluster {
    let seeds = config.endpoints.iter().filter_map(|endpoint| match endpoint.address {
        Address::Ip(address) => Some(Seed {
            address: EndpointAddress::Ip(address),
            host: address.to_string(),
            weight: endpoint.weight,
            max_in_flight: endpoint.max_in_flight,
            bypass: endpoint.bypass,
            is_backup: endpoint.backup,
        }),
        _ => None,
    });
    Cluster::new(name, config.clone(), seeds.collect())
}
