//! The variants in which every app runs: the location of its origin, and whether its connections are joined.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use anyhow::{Context, Result, bail};
use sluice_testkit::packages::Tools;
use sluice_testkit::process::free_ports;

use super::network::Network;

/// One variant.
pub(super) struct Variant {
    /// Prefix of the names of its checks.
    pub(super) name: &'static str,
    place: Where,
    /// `kernel.bypass` is required, otherwise off.
    pub(super) joined: bool,
    /// Whether a check with this name is worth its time here.
    pub(super) wants: fn(&str) -> bool,
}

#[derive(Clone, Copy)]
enum Where {
    Loopback4,
    Loopback6,
    Veth4,
    Veth6,
}

/// Copying, which works on every host: joined connections are compared with it.
pub(super) const HOST: Variant =
    Variant { name: "apps", place: Where::Loopback4, joined: false, wants: |_| true };

/// Joined.
pub(super) const JOINED: &[Variant] = &[
    Variant { name: "apps_bypass::v4", place: Where::Loopback4, joined: true, wants: |_| true },
    Variant { name: "apps_bypass::v6", place: Where::Loopback6, joined: true, wants: short },
    Variant { name: "apps_bypass::veth4", place: Where::Veth4, joined: true, wants: short },
    Variant { name: "apps_bypass::veth6", place: Where::Veth6, joined: true, wants: short },
];

/// Checks that depend on addresses, or on how bytes are moved.
fn short(name: &str) -> bool {
    const NAMES: &[&str] = &["get", "keep_alive", "sizes", "files", "big_head", "trickled_uploads", "load"];
    NAMES.contains(&name)
}

/// A prepared place for origins.
pub(super) struct Ground {
    ip: IpAddr,
    /// A separate namespace, unless the origin is on loopback.
    pub(super) network: Option<Network>,
}

impl Ground {
    /// Prepares the variant's requirements.
    ///
    /// # Errors
    /// When this host cannot provide them.
    pub(super) fn prepare(variant: &Variant, tools: &Tools) -> Result<Self> {
        let loopback = |ip| Ok(Self { ip, network: None });
        match variant.place {
            Where::Loopback4 => loopback(Ipv4Addr::LOCALHOST.into()),
            Where::Loopback6 => {
                TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).context("::1 cannot be bound")?;
                loopback(Ipv6Addr::LOCALHOST.into())
            }
            Where::Veth4 | Where::Veth6 => {
                if let Some(lack) = tools.lack(&["ip", "nsenter", "unshare"]) {
                    bail!(lack);
                }
                let network = Network::make().context("no network namespace could be created")?;
                let v6 = matches!(variant.place, Where::Veth6);
                let ip = if v6 { network.inside_v6.into() } else { network.inside_v4.into() };
                Ok(Self { ip, network: Some(network) })
            }
        }
    }

    /// A free address for an origin.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn address(&self) -> Result<std::net::SocketAddr> {
        // In a separate namespace every address is free.
        let ask = if self.network.is_some() { Ipv4Addr::LOCALHOST.into() } else { self.ip };
        let [port] = free_ports(ask)?;
        Ok((self.ip, port).into())
    }
}
