//! Listeners with `protocol: tls-passthrough`: the cluster of a TLS connection, by server name.

use crate::Mistake;
use std::collections::BTreeMap;

use super::codec::{Own, Table, keys, number, word};
use super::defaults::{HOUR_MS, KIB};
use super::names::words;
use super::out::Out;
use super::path::Path;
use super::problem::{Problems, quote};
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::{Cluster, Listener, Protocol, text};

/// Maximum number of server names of one listener.
const NAMES_MAX: usize = 10_000;
/// How a listener selects the cluster of a TLS connection that it passes through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// Clusters by server name, exact or `*.suffix`, in lower case. Other names use the listener's `cluster`.
    pub sni: BTreeMap<String, String>,
    /// The protocol that precedes TLS.
    pub starttls: StartTls,
    /// Maximum bytes of a ClientHello, including its record headers.
    pub client_hello_bytes_max: usize,
    /// Time limit for receiving the ClientHello, in milliseconds.
    pub client_hello_timeout_ms: u64,
}

/// The protocol that precedes the TLS handshake of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartTls {
    /// None.
    Off,
    /// PostgreSQL's SSLRequest and its response, with the client and with the endpoint. Connections that start with TLS
    /// are accepted too.
    Postgres,
}

words!(StartTls {
    Off = "off",
    Postgres = "postgres",
});

keys! { Passthrough {
    // Post-quantum keys take 2 KB; tickets and certificate authorities rarely as much again.
    client_hello_bytes_max: 16 * KIB as usize, number(256..=256 * KIB);
    // Two round trips on a slow link; a client that trickles bytes must not keep a slot for longer.
    client_hello_timeout_ms: 10_000, number(1..=HOUR_MS);
    sni: BTreeMap::new(), SNI;
    starttls: StartTls::Off, word();
}}

const SNI: Own<BTreeMap<String, String>> = Own {
    read: |item| Some(sni(item)),
    write: |clusters| {
        let mut sni = Out::default();
        clusters.iter().for_each(|(name, cluster)| sni.put(name, cluster.as_str()));
        sni.done()
    },
    shape: || Shape::entries(Shape::TEXT, NAMES_MAX),
};

impl Passthrough {
    /// The cluster of a server name in lower case: the exact name, otherwise the longest matching `*.suffix`.
    pub fn cluster_of(&self, name: &str) -> Option<&str> {
        let exact = self.sni.get(name);
        let dots = name.match_indices('.').filter(|(at, _)| *at > 0);
        let wildcard = || dots.filter_map(|(at, _)| self.sni.get(&format!("*{}", &name[at..]))).next();
        exact.or_else(wildcard).map(String::as_str)
    }
}

/// Reads the keys of a tls-passthrough listener; on other listeners each of them is a mistake.
pub(super) fn read(fields: &mut Fields<'_>, protocol: Protocol) -> Option<Passthrough> {
    if protocol != Protocol::TlsPassthrough {
        for item in Passthrough::keys().iter().filter_map(|key| fields.get(key.name)) {
            item.mistake("this is only valid with protocol: tls-passthrough; remove it");
        }
        return None;
    }
    let mut passthrough = Passthrough::default();
    passthrough.read_keys(fields);
    Some(passthrough)
}

fn sni(item: &Item<'_>) -> BTreeMap<String, String> {
    let mut clusters = BTreeMap::new();
    for (name, item) in item.entries(NAMES_MAX) {
        if let Err(message) = server_name(&name) {
            item.mistake(message);
        }
        // A placeholder for a missing cluster, so that the mistake is not reported twice.
        let cluster = item.text().unwrap_or_default().to_owned();
        if clusters.insert(name.to_ascii_lowercase(), cluster).is_some() {
            item.mistake(format!("{} is listed twice, in different case; keep one", quote(&name)));
        }
    }
    clusters
}

/// A host name: SNI cannot carry an IP address (RFC 6066 3).
fn server_name(name: &str) -> Result<(), Mistake> {
    if name == "*" {
        return Err("\"*\" is not a host; write cluster next to sni for all other names".into());
    }
    if name.starts_with('[') || name.parse::<std::net::IpAddr>().is_ok() {
        return Err(format!(
            "{} is an IP address, which clients do not send as SNI; write a host",
            quote(name)
        )
        .into());
    }
    text::host_pattern(name)
}

/// Reports conflicts between the keys of such a listener and others.
pub(super) fn check(
    listener: &Listener,
    path: &Path,
    clusters: &BTreeMap<String, Cluster>,
    problems: &Problems,
    known_cluster: impl Fn(&str, &Path),
) {
    let Some(passthrough) = &listener.passthrough else {
        return;
    };
    if listener.tls.is_some() {
        problems.add(
            &path.key("tls"),
            "tls-passthrough does not terminate TLS; remove this, or change the protocol",
        );
    }
    if passthrough.sni.is_empty() && listener.cluster.is_none() {
        problems
            .add(path, "sni is missing; write which server name goes to which cluster, or a cluster for all");
    }
    for (name, cluster) in &passthrough.sni {
        known_cluster(cluster, &path.key("sni").key(name));
    }
    let all = passthrough.sni.values().chain(&listener.cluster);
    if let Some(name) = all.into_iter().find(|name| clusters.get(*name).is_some_and(|to| to.tls.is_some())) {
        let message = format!(
            "cluster {} has tls, which would encrypt the passed-through TLS again; remove its tls",
            quote(name)
        );
        problems.add(path, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_name_wins() {
        let sni = [("a.test", "exact"), ("*.a.test", "below"), ("*.test", "any")];
        let sni = sni.map(|(name, cluster)| (name.to_owned(), cluster.to_owned())).into();
        let passthrough = Passthrough { sni, ..Passthrough::default() };
        let cases = [
            ("a.test", Some("exact")),
            ("b.a.test", Some("below")),
            ("c.b.a.test", Some("below")),
            ("b.test", Some("any")),
            ("test", None),
            (".test", None),
            ("*.other", None),
        ];
        for (name, cluster) in cases {
            assert_eq!(passthrough.cluster_of(name), cluster, "{name}");
        }
    }
}
