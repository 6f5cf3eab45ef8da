//! The parameters of an endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use sluice_config::{EndpointBypass, MaxInFlight};

/// Where an endpoint listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointAddress {
    /// A TCP address.
    Ip(SocketAddr),
    /// A unix socket path.
    Unix(PathBuf),
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndpointAddress::Ip(address) => address.fmt(f),
            EndpointAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The parameters of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Where it listens.
    pub address: EndpointAddress,
    /// The Host field of sluice's own requests to it: the configured `name:port`, else its address.
    pub host: String,
    /// Share of the load relative to the others, 1 to 1000.
    pub weight: u32,
    /// Requests it may have under way, if it differs from the cluster's setting.
    pub max_in_flight: Option<MaxInFlight>,
    /// Whether connections to it may be joined, if it differs from the cluster's setting.
    pub bypass: Option<EndpointBypass>,
    /// Whether it is used only while no other endpoint is healthy.
    pub is_backup: bool,
}
