//! Decides which clients may send requests. Pure: built once from the configuration, then only read.

use std::net::IpAddr;

use ipnet::IpNet;
use sluice_config as config;

/// Networks that do not overlap, in order, so that one is found by binary search.
#[derive(Debug, Default)]
struct Networks(Vec<IpNet>);

impl Networks {
    fn new(networks: &[IpNet]) -> Self {
        let mut networks = IpNet::aggregate(&networks.to_vec());
        networks.sort();
        Self(networks)
    }

    fn contains(&self, client: &IpAddr) -> bool {
        let after = self.0.partition_point(|network| network.network() <= *client);
        after.checked_sub(1).is_some_and(|last| self.0[last].contains(client))
    }
}

/// The clients that one rule lets through.
#[derive(Debug)]
pub struct Gate {
    /// `None` allows all.
    allow: Option<Networks>,
    deny: Networks,
}

impl Gate {
    /// Prepares a rule.
    pub fn new(access: &config::Access) -> Self {
        let allow = (!access.allow.is_empty()).then(|| Networks::new(&access.allow));
        Self { allow, deny: Networks::new(&access.deny) }
    }

    /// Whether a client, whose address is in its canonical form, may pass.
    pub fn lets_through(&self, client: &IpAddr) -> bool {
        !self.deny.contains(client) && self.allow.as_ref().is_none_or(|allow| allow.contains(client))
    }
}

/// Rules that hold before any route is looked for.
#[derive(Debug)]
pub struct Gates(Vec<ScopedGate>);

#[derive(Debug)]
struct ScopedGate {
    listeners: Vec<String>,
    /// In lower case.
    hosts: Vec<String>,
    gate: Gate,
}

impl Gates {
    /// Prepares the rules; `None` if there are none.
    pub fn new(rules: &[config::AccessRule]) -> Option<Self> {
        let scoped = |rule: &config::AccessRule| ScopedGate {
            listeners: rule.listeners.clone(),
            hosts: rule.hosts.clone(),
            gate: Gate::new(&rule.access),
        };
        (!rules.is_empty()).then(|| Self(rules.iter().map(scoped).collect()))
    }

    /// Whether all rules that apply let a client through. `host` is without a port; in a tunnel, it is the name that
    /// the client's TLS handshake asks for, or empty.
    pub fn let_through(&self, listener: &str, host: &[u8], client: &IpAddr) -> bool {
        let dots = host.iter().rev().take_while(|byte| **byte == b'.').count();
        let host = &host[..host.len() - dots];
        let mut applying = self.0.iter().filter(|rule| rule.applies(listener, host));
        applying.all(|rule| rule.gate.lets_through(client))
    }
}

impl ScopedGate {
    fn applies(&self, listener: &str, host: &[u8]) -> bool {
        let is_here = self.listeners.is_empty() || self.listeners.iter().any(|name| name == listener);
        is_here && (self.hosts.is_empty() || self.hosts.iter().any(|pattern| is_host(pattern, host)))
    }
}

/// Whether a host, in any case and without a trailing dot, is the one of a pattern in lower case.
fn is_host(pattern: &str, host: &[u8]) -> bool {
    let pattern = pattern.strip_suffix('.').unwrap_or(pattern);
    match pattern.strip_prefix('*') {
        // With its dot, and not alone.
        Some(suffix) => host
            .len()
            .checked_sub(suffix.len())
            .is_some_and(|rest| rest > 0 && host[rest..].eq_ignore_ascii_case(suffix.as_bytes())),
        None => host.eq_ignore_ascii_case(pattern.as_bytes()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use ipnet::{Ipv4Net, Ipv6Net};
    use proptest::prelude::*;

    use super::*;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn access(allow: &[&str], deny: &[&str]) -> config::Access {
        config::Access { allow: networks(allow), deny: networks(deny) }
    }

    #[test]
    fn a_denied_client_stays_denied_although_it_is_allowed() {
        let gate = Gate::new(&access(&["10.0.0.0/8", "2001:db8::/32"], &["10.1.0.0/16"]));
        for (client, passes) in [
            ("10.0.0.1", true),
            ("10.1.0.1", false),
            ("11.0.0.1", false),
            ("2001:db8::1", true),
            ("::1", false),
        ] {
            assert_eq!(gate.lets_through(&client.parse().unwrap()), passes, "{client}");
        }
    }

    #[test]
    fn every_rule_that_applies_must_let_a_client_through() {
        let rule = |listeners: &[&str], hosts: &[&str], access| config::AccessRule {
            listeners: listeners.iter().map(|name| (*name).to_owned()).collect(),
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            access,
        };
        let gates = Gates::new(&[
            rule(&[], &[], access(&[], &["203.0.113.0/24"])),
            rule(&["private"], &[], access(&["10.0.0.0/8"], &[])),
            rule(&[], &["admin.example", "*.in.example"], access(&["10.0.0.0/8"], &[])),
        ])
        .unwrap();
        for (listener, host, client, passes) in [
            ("main", "example", "192.0.2.1", true),
            ("main", "example", "203.0.113.1", false),
            ("private", "example", "192.0.2.1", false),
            ("private", "", "10.0.0.1", true),
            ("main", "Admin.Example.", "192.0.2.1", false),
            ("main", "admin.example", "10.0.0.1", true),
            ("main", "a.IN.example", "192.0.2.1", false),
            ("main", ".in.example", "192.0.2.1", true),
            ("main", "in.example", "192.0.2.1", true),
            ("main", "xin.example", "192.0.2.1", true),
            ("main", "admin.example.com", "192.0.2.1", true),
        ] {
            let found = gates.let_through(listener, host.as_bytes(), &client.parse().unwrap());
            assert_eq!(found, passes, "{listener} {host} {client}");
        }
    }

    fn network() -> impl Strategy<Value = IpNet> {
        // Few distinct addresses, so that networks meet and contain each other.
        let v4 = (0..=32u8, any::<[bool; 6]>()).prop_map(|(length, bits)| {
            let address =
                bits.iter().enumerate().fold(0u32, |sum, (at, bit)| sum | (u32::from(*bit) << (at * 6)));
            Ipv4Net::new(Ipv4Addr::from(address), length).unwrap().trunc().into()
        });
        let v6 = (0..=128u8, any::<u8>()).prop_map(|(length, byte)| {
            Ipv6Net::new(Ipv6Addr::from(u128::from(byte) << 60), length).unwrap().trunc().into()
        });
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn the_search_agrees_with_a_scan(list in prop::collection::vec(network(), 0..12), client in network()) {
            let client = client.addr();
            let scanned = list.iter().any(|network| network.contains(&client));
            prop_assert_eq!(Networks::new(&list).contains(&client), scanned);
        }
    }
}
