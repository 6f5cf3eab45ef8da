//! `discover` of a cluster: where its endpoints are found, and which lists of them are believed.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::codec::{File, Flag, List, Optional, Or, Own, checked, keys, map, number, word};
use super::defaults::{DAY_MS, HOUR_MS, MINUTE_MS, PORT};
use super::names::words;
use super::problem::quote;
use super::reader::{Fields, Item};
use super::shape::Shape;
use super::text::Check;
use super::{ClientCertificate, HttpUrl, text};

/// Most servers of one source, and tags of a service.
const LIST_MAX: usize = 32;
/// Where Consul's agent listens.
const CONSUL_PORT: u16 = 8500;
/// Where etcd listens.
const ETCD_PORT: u16 = 2379;
/// The port of DNS.
const DNS_PORT: u16 = 53;

/// How the endpoints of a cluster are found.
#[derive(Clone, Debug, PartialEq)]
pub struct Discovery {
    /// Exactly one of the following five is set: the DNS.
    pub dns: Option<DnsSource>,
    /// A file.
    pub file: Option<PathBuf>,
    /// A service of Consul.
    pub consul: Option<ConsulSource>,
    /// Keys of etcd.
    pub etcd: Option<EtcdSource>,
    /// A service of Kubernetes.
    pub kubernetes: Option<KubernetesSource>,
    /// A list with fewer endpoints than this share of those in use, in percent, is not believed at once.
    pub min_percent: u32,
    /// How long a source must say so before it is believed, in milliseconds.
    pub hold_time_ms: u64,
    /// Keep the last endpoints when the source has none.
    pub keep_last: bool,
    /// A longer list is not believed.
    pub endpoints_max: usize,
    /// How long a start or a reload waits for the first list, in milliseconds.
    pub first_timeout_ms: u64,
    /// Where the last list is kept for the next start.
    pub memory_file: Option<PathBuf>,
}

/// Records of the DNS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsSource {
    /// The name that is looked up.
    pub name: String,
    /// The records.
    pub record: RecordType,
    /// The port of addresses; SRV records have their own.
    pub port: Option<u16>,
    /// The name servers; none are the system's.
    pub servers: Vec<SocketAddr>,
    /// The shortest time between two lookups, in milliseconds, whatever the records say.
    pub interval_min_ms: u64,
    /// The longest.
    pub interval_max_ms: u64,
}

/// A type of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordType {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Names with ports, weights and priorities (RFC 2782).
    Srv,
}

words!(RecordType {
    A = "A",
    Aaaa = "AAAA",
    Srv = "SRV",
});

/// A service that is registered with Consul.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsulSource {
    /// The agent.
    pub url: HttpUrl,
    /// The name of the service.
    pub service: String,
    /// Tags that an instance must have.
    pub tags: Vec<String>,
    /// Whether its checks must pass.
    pub passing_only: bool,
    /// The data centre; `None` is the agent's own.
    pub datacenter: Option<String>,
    /// A file with the token.
    pub token_file: Option<PathBuf>,
    /// PEM: the trusted CAs; `None` uses the system's.
    pub ca_file: Option<PathBuf>,
}

/// Keys of etcd, one for each endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdSource {
    /// Its members. One of them is used, another one if it fails.
    pub endpoints: Vec<HttpUrl>,
    /// What the keys begin with.
    pub prefix: String,
    /// The user.
    pub user: Option<String>,
    /// A file with the password of the user.
    pub password_file: Option<PathBuf>,
    /// PEM: the trusted CAs; `None` uses the system's.
    pub ca_file: Option<PathBuf>,
    /// The certificate that sluice shows.
    pub client_certificate: Option<ClientCertificate>,
}

/// A service of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubernetesSource {
    /// The name of the service.
    pub service: String,
    /// Its namespace.
    pub namespace: String,
    /// The name or the number of its port; `None` is the first.
    pub port: Option<String>,
    /// The zone that sluice is in: endpoints with a hint for it are used, if there are any.
    pub zone: Option<String>,
    /// The API server; `None` is the one of the pod.
    pub url: Option<HttpUrl>,
    /// A file with the token.
    pub token_file: PathBuf,
    /// PEM: the trusted CAs.
    pub ca_file: PathBuf,
}

/// Where the endpoints of a cluster come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EndpointSource<'d> {
    /// The DNS.
    Dns(&'d DnsSource),
    /// A file.
    File(&'d PathBuf),
    /// Consul.
    Consul(&'d ConsulSource),
    /// etcd.
    Etcd(&'d EtcdSource),
    /// Kubernetes.
    Kubernetes(&'d KubernetesSource),
}

keys! { Discovery, settle has_one_source {
    dns: None, Optional(map());
    file: None, Optional(File);
    consul: None, Optional(map());
    etcd: None, Optional(map());
    kubernetes: None, Optional(map());
    // A deploy replaces a part of the endpoints; half of them at once is more often a fault of the source.
    min_percent: 50, number(0..=100);
    // Longer than the restart of an agent, shorter than anyone waits who has meant it.
    hold_time_ms: 10_000, number(0..=HOUR_MS);
    keep_last: true, Flag;
    // As many as a configuration may list.
    endpoints_max: 1000, number(1..=100_000);
    // Every source answers within milliseconds, or is away.
    first_timeout_ms: 5000, number(0..=MINUTE_MS);
    memory_file: None, Optional(File);
}}

keys! { DnsSource, settle has_a_port {
    record: RecordType::A, word();
    port: None, Optional(number(PORT));
    servers: Vec::new(), List(LIST_MAX, SERVER);
    // Many name servers say 0; once a second is enough for a change to apply within a second.
    interval_min_ms: 1000, number(100..=HOUR_MS);
    // Some records say a day; applications move more often.
    interval_max_ms: MINUTE_MS, number(100..=DAY_MS);
} required {
    name: String::new(), "the name to look up", checked(name);
}}

keys! { ConsulSource {
    url: HttpUrl::here(CONSUL_PORT, "/"), SERVER_URL;
    tags: Vec::new(), List(LIST_MAX, checked(word_of_a_path));
    passing_only: true, Flag;
    datacenter: None, Optional(checked(word_of_a_path));
    token_file: None, Optional(File);
    ca_file: None, Optional(File);
} required {
    service: String::new(), "the name of the service", checked(word_of_a_path);
}}

keys! { EtcdSource, settle has_a_password {
    endpoints: vec![HttpUrl::here(ETCD_PORT, "/")], List(LIST_MAX, SERVER_URL);
    user: None, Optional(checked(text::field_value));
    password_file: None, Optional(File);
    ca_file: None, Optional(File);
    client_certificate: None, Optional(map());
} required {
    prefix: String::new(), "what the keys begin with, such as /sluice/app/", checked(text::field_value);
}}

keys! { KubernetesSource {
    namespace: "default".to_owned(), checked(word_of_a_path);
    port: None, Or("first", checked(word_of_a_path));
    zone: None, Optional(checked(word_of_a_path));
    url: None, Optional(SERVER_URL);
    token_file: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/token"), File;
    ca_file: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"), File;
} required {
    service: String::new(), "the name of the service", checked(word_of_a_path);
}}

impl Discovery {
    /// Where the endpoints come from.
    pub fn source(&self) -> Option<EndpointSource<'_>> {
        let Self { dns, file, consul, etcd, kubernetes, .. } = self;
        let sources = [
            dns.as_ref().map(EndpointSource::Dns),
            file.as_ref().map(EndpointSource::File),
            consul.as_ref().map(EndpointSource::Consul),
            etcd.as_ref().map(EndpointSource::Etcd),
            kubernetes.as_ref().map(EndpointSource::Kubernetes),
        ];
        sources.into_iter().flatten().next()
    }

    fn sources(&self) -> usize {
        let Self { dns, file, consul, etcd, kubernetes, .. } = self;
        [dns.is_some(), file.is_some(), consul.is_some(), etcd.is_some(), kubernetes.is_some()]
            .into_iter()
            .filter(|is_set| *is_set)
            .count()
    }
}

fn has_one_source(discovery: &mut Discovery, fields: &mut Fields<'_>) {
    if discovery.sources() != 1 && !fields.is_broken() {
        fields.mistake("expected exactly one source; write dns, file, consul, etcd or kubernetes");
    }
    if discovery.file.is_some() && discovery.file == discovery.memory_file {
        fields.mistake("memory_file would replace file; write another path");
    }
}

fn has_a_port(dns: &mut DnsSource, fields: &mut Fields<'_>) {
    match (dns.record, dns.port) {
        (RecordType::Srv, Some(_)) => {
            fields.mistake("SRV records have their own ports; remove port");
        }
        (RecordType::A | RecordType::Aaaa, None) => {
            fields.mistake("the port is missing; write the one that the endpoints listen on");
        }
        _ => {}
    }
    if dns.interval_min_ms > dns.interval_max_ms {
        fields.mistake("interval_min is longer than interval_max; make it shorter");
    }
}

fn has_a_password(etcd: &mut EtcdSource, fields: &mut Fields<'_>) {
    if etcd.user.is_some() != etcd.password_file.is_some() {
        fields.mistake("user and password_file belong together; write both or none");
    }
    if etcd.endpoints.is_empty() {
        fields.mistake("the list of endpoints is empty; write at least one URL");
    }
}

/// A server: a URL without a path.
pub(super) const SERVER_URL: Own<HttpUrl> =
    Own { read: server_url, write: |url| url.to_string().into(), shape: || Shape::TEXT };

fn server_url(item: &Item<'_>) -> Option<HttpUrl> {
    let url = HttpUrl::parse(item.text()?, "/").map_err(|message| item.mistake(message)).ok()?;
    if url.path != "/" {
        item.mistake(format!("{} has a path; write http://host:port", quote(&url.to_string())));
        return None;
    }
    Some(url)
}

/// A name server.
const SERVER: Own<SocketAddr> =
    Own { read: server, write: |address| address.to_string().into(), shape: || Shape::TEXT };

fn server(item: &Item<'_>) -> Option<SocketAddr> {
    let text = item.text()?;
    let address = text.parse().or_else(|_| text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, DNS_PORT)));
    address
        .map_err(|_| {
            item.mistake(format!("{} is not the address of a name server; write ip or ip:port", quote(text)));
        })
        .ok()
}

/// A name of the DNS. A dot at its end says that it is complete.
fn name(text: &str) -> Check {
    if text::is_host_name(text.strip_suffix('.').unwrap_or(text)) {
        return Ok(());
    }
    Err(format!("{} is not a name of the DNS", quote(text)).into())
}

/// What may stand in a path or a query as it is.
fn word_of_a_path(text: &str) -> Check {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if !text.is_empty() && text.len() <= 253 && text.bytes().all(is_plain) && !text.starts_with('.') {
        return Ok(());
    }
    Err(format!("{} is not a name; write letters, digits, -, _ and .", quote(text)).into())
}
