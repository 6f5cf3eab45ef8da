//! Where an endpoint is, for the purpose of joining. Reads the host's interfaces; opens no connection.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ipnet::IpNet;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use sluice_core::cluster::{EndpointAddress, Locality};

/// Finds out where `address` is.
pub(super) fn of(address: &EndpointAddress) -> Locality {
    match address {
        EndpointAddress::Ip(address) if address.ip().to_canonical().is_loopback() => Locality::SameHost,
        EndpointAddress::Ip(address) => find(address.ip().to_canonical(), &interfaces()),
        EndpointAddress::Unix(_) => Locality::Elsewhere,
    }
}

/// An address of an interface.
struct Interface {
    network: IpNet,
    /// Whether the other side of the interface may be on this host.
    virtual_link: bool,
}

fn find(address: IpAddr, interfaces: &[Interface]) -> Locality {
    if interfaces.iter().any(|one| one.network.addr() == address) {
        return Locality::SameHost;
    }
    // Traffic is routed to the most specific network.
    let direct = interfaces.iter().filter(|one| one.network.contains(&address));
    match direct.max_by_key(|one| one.network.prefix_len()) {
        Some(one) if one.virtual_link => Locality::Neighbour,
        _ => Locality::Elsewhere,
    }
}

/// Every address of an interface in this namespace.
fn interfaces() -> Vec<Interface> {
    let Ok(found) = getifaddrs() else {
        return Vec::new();
    };
    let interface = |one: nix::ifaddrs::InterfaceAddress| {
        let address = ip(one.address?)?;
        let network = IpNet::with_netmask(address, ip(one.netmask?)?).ok()?;
        Some(Interface { network, virtual_link: is_virtual(&one.interface_name) })
    };
    found.filter_map(interface).collect()
}

fn ip(address: SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}

/// Whether an interface is a bridge, or one end of a pair whose other end is elsewhere on this host.
fn is_virtual(name: &str) -> bool {
    let folder = Path::new("/sys/class/net").join(name);
    let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
    // A veth is linked to its peer's index; an interface without a link is linked to itself.
    let is_linked = read("iflink") != read("ifindex");
    folder.join("bridge").is_dir() || is_linked || is_pair(&folder, &read)
}

/// Whether it is a veth whose peer, in another namespace, happens to have the same index: a virtual Ethernet device of no
/// named type (DEVTYPE; bonds, VLANs, bridges and tunnels have one) and without the flags of a tap.
fn is_pair(folder: &Path, read: &impl Fn(&str) -> Option<String>) -> bool {
    /// `ARPHRD_ETHER` of if_arp.h.
    const ETHERNET: &str = "1";
    let is_below_virtual =
        folder.canonicalize().is_ok_and(|path| path.starts_with("/sys/devices/virtual/net"));
    is_below_virtual
        && read("type").is_some_and(|kind| kind.trim() == ETHERNET)
        && read("uevent").is_some_and(|text| !text.contains("DEVTYPE="))
        && read("tun_flags").is_none()
}

/// Whether a configured address can only be in this network namespace.
pub(crate) fn is_loopback(address: &sluice_config::Address) -> bool {
    match address {
        sluice_config::Address::Ip(SocketAddr::V4(v4)) => v4.ip().is_loopback(),
        sluice_config::Address::Ip(SocketAddr::V6(v6)) => v6.ip().to_canonical().is_loopback(),
        sluice_config::Address::Name(name, _) => name == "localhost",
        sluice_config::Address::Unix(_) => true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_most_specific_network_decides_the_locality() {
        let interface =
            |network: &str, virtual_link| Interface { network: network.parse().unwrap(), virtual_link };
        let interfaces = [
            interface("10.0.0.5/8", false),
            interface("10.88.0.1/16", true),
            interface("10.88.7.1/24", false),
            interface("fd00:5::1/64", true),
        ];
        for (address, place) in [
            ("10.0.0.5", Locality::SameHost),
            ("fd00:5::1", Locality::SameHost),
            ("10.1.2.3", Locality::Elsewhere),
            ("10.88.0.2", Locality::Neighbour),
            ("10.88.7.2", Locality::Elsewhere),
            ("fd00:5::2", Locality::Neighbour),
            ("192.0.2.1", Locality::Elsewhere),
        ] {
            assert_eq!(find(address.parse().unwrap(), &interfaces), place, "{address}");
        }
    }

    #[test]
    fn loopback_is_this_host_and_a_unix_socket_has_no_locality() {
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(of(&EndpointAddress::Ip(address.parse().unwrap())), Locality::SameHost, "{address}");
        }
        assert_eq!(of(&EndpointAddress::Unix("/run/app.sock".into())), Locality::Elsewhere);
    }
}
