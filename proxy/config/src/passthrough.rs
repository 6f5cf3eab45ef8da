//! Listeners of `protocol: tls-passthrough`: which cluster a TLS connection goes to, by the server that it names.

use std::collections::BTreeMap;

use serde_yaml::{Mapping, Value};

use super::defaults::{HOUR_MS, KIB, NumberRange, numbers};
use super::names::words;
use super::out::Out;
use super::path::Path;
use super::problem::{Problems, quote};
use super::reader::{Fields, Item};
use super::{Cluster, Listener, Protocol, Word, text};

/// Server names of one listener.
const NAMES_MAX: usize = 10_000;
/// What else only such a listener has.
const KEYS: [&str; 4] = ["sni", "starttls", "client_hello_bytes_max", "client_hello_timeout_ms"];

/// How a listener finds the cluster of a TLS connection that it passes through untouched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passthrough {
    /// Clusters by server name, exact or `*.suffix`, in lower case. The listener's own `cluster` is for others.
    pub sni: BTreeMap<String, String>,
    /// What comes before TLS.
    pub starttls: StartTls,
    /// Bytes of a ClientHello with the headers of its records.
    pub client_hello_bytes_max: usize,
    /// From the first byte expected to the whole ClientHello, in milliseconds.
    pub client_hello_timeout_ms: u64,
}

/// What comes before the TLS handshake of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartTls {
    /// Nothing.
    Off,
    /// PostgreSQL's SSLRequest and its answer, to the client and from the endpoint; or nothing.
    Postgres,
}

words!(StartTls {
    Off = "off",
    Postgres = "postgres",
});

numbers! { Passthrough {
    // Post-quantum keys make it 2 KB; tickets and certificate authorities rarely as much again.
    client_hello_bytes_max: usize = 16 * KIB as usize, 256..=256 * KIB;
    // Two round trips on a slow line; whoever drips bytes must not hold a place for longer.
    client_hello_timeout_ms: u64 = 10_000, 1..=HOUR_MS;
} rest {
    sni: BTreeMap::new(),
    starttls: StartTls::Off,
}}

impl Passthrough {
    /// The cluster of a server name in lower case: by the exact name, else by the longest `*.suffix`.
    pub fn cluster_of(&self, name: &str) -> Option<&str> {
        let exact = self.sni.get(name);
        let dots = name.match_indices('.').filter(|(at, _)| *at > 0);
        let wildcard = || dots.filter_map(|(at, _)| self.sni.get(&format!("*{}", &name[at..]))).next();
        exact.or_else(wildcard).map(String::as_str)
    }
}

/// The keys of a listener that passes TLS through; on another one each is a mistake.
pub(super) fn read(fields: &mut Fields<'_>, protocol: Protocol) -> Option<Passthrough> {
    if protocol != Protocol::TlsPassthrough {
        for item in KEYS.into_iter().filter_map(|key| fields.get(key)) {
            item.mistake("this is for protocol: tls-passthrough; take it out");
        }
        return None;
    }
    let mut passthrough = Passthrough::default();
    if let Some(item) = fields.get("sni") {
        passthrough.sni = sni(&item);
    }
    passthrough.starttls = fields.one_of("starttls", passthrough.starttls);
    passthrough.read_numbers(fields);
    Some(passthrough)
}

fn sni(item: &Item<'_>) -> BTreeMap<String, String> {
    let mut clusters = BTreeMap::new();
    for (name, item) in item.entries(NAMES_MAX) {
        if let Err(message) = server_name(&name) {
            item.mistake(message);
        }
        // A placeholder for one that is missing, so that it is not said twice.
        let cluster = item.text().unwrap_or_default().to_owned();
        if clusters.insert(name.to_ascii_lowercase(), cluster).is_some() {
            item.mistake(format!("{} is here twice, in other letters; keep one", quote(&name)));
        }
    }
    clusters
}

/// A host, for no client names an address (RFC 6066 3).
fn server_name(name: &str) -> Result<(), String> {
    if name == "*" {
        return Err("\"*\" is not a host; write cluster beside sni for any other".to_owned());
    }
    if name.starts_with('[') || name.parse::<std::net::IpAddr>().is_ok() {
        return Err(format!("{} is an address, which no client names; write a host", quote(name)));
    }
    text::host_pattern(name)
}

/// Reports what is wrong between the keys of such a listener and others.
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
        problems
            .add(&path.key("tls"), "TLS that is passed on does not end here; take this out, or the protocol");
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
        let message =
            format!("cluster {} has tls, within which TLS would be passed on; take its tls out", quote(name));
        problems.add(path, message);
    }
}

/// Writes the keys of such a listener.
pub(super) fn emit(out: &mut Out, passthrough: &Passthrough) {
    let mut sni = Out::default();
    for (name, cluster) in &passthrough.sni {
        sni.put(name, cluster.as_str());
    }
    out.put("sni", sni.done());
    out.put("starttls", passthrough.starttls.word());
    passthrough.write_numbers(&mut out.0);
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
