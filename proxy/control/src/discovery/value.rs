//! Endpoints as servers describe them.

use std::net::IpAddr;

use sluice_config::{Address, Endpoint, WEIGHT};

/// An endpoint at an address or a name. `None` if it is neither.
pub(super) fn endpoint(host: &str, port: u16, weight: u64) -> Option<Endpoint> {
    let address = match host.parse::<IpAddr>() {
        Ok(ip) => Address::Ip((ip, port).into()),
        Err(_) => format!("{host}:{port}").parse().ok()?,
    };
    if port == 0 || matches!(address, Address::Unix(_)) {
        return None;
    }
    Some(at(address, weight))
}

/// An endpoint at this address.
pub(super) fn at(address: Address, weight: u64) -> Endpoint {
    let weight = weight.clamp(*WEIGHT.start(), *WEIGHT.end());
    let weight = u32::try_from(weight).unwrap_or(1);
    Endpoint { address, weight, max_in_flight: None, bypass: None, backup: false }
}
