//! The validated configuration, which the rest of the program reads.
//!
//! Plain data, immutable once built. `file` parses YAML into it, `validate` checks rules that span several keys. Only
//! `load` opens files; nothing here resolves a name or binds a port.

mod access;
mod access_log;
mod acme;
mod acme_names;
mod address;
mod affinity;
mod assist;
mod auth;
mod buffering;
mod cluster;
mod clusters;
mod codec;
mod caches;
mod compress;
mod condition;
mod control;
mod cors;
mod defaults;
mod discovery;
mod disk;
mod file;
mod files;
mod general;
mod http2;
mod http3;
mod https;
mod jwt;
mod limits;
mod location;
mod lines;
mod mistake;
mod names;
mod nearest;
mod out;
mod overrides;
mod passthrough;
mod path;
mod problem;
mod qlog;
mod rate_limit;
mod reader;
mod retry;
mod rewrite;
mod root;
mod route;
mod routes;
mod scan;
mod schema;
mod sendfile;
mod shape;
mod store;
#[cfg(test)]
mod tests;
mod template;
mod text;
mod tls;
mod token;
mod tracing;
mod tree;
mod unit;
mod url;
mod upstream_tls;
mod validate;
mod validate_acme;
mod validate_tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;

pub use access::{Access, AccessRule};
pub use access_log::{AccessLog, LogField, LogFormat, LogOutput};
pub use acme::{Acme, AcmeChallenge, AcmeDirectory, DnsHook, ExternalAccount};
pub use acme_names::is_issuable;
pub use acme_names::{ListenerAcme, OnDemand, Question};
pub use address::with_host;
pub use affinity::{Affinity, AffinityCookie, SameSite};
pub use assist::{
    AssistMode, EndpointBypass, KernelAssists, RouteDirect, Runtime, Switch, WorkerPlacement,
    WorkerScheduling,
};
pub use auth::{Auth, BasicAuth, CertificateAuth, ForwardAuth};
pub use buffering::{Buffering, Buffers};
pub use caches::{Cache, CacheDisk};
pub use cluster::{
    AutoLimit, Balance, CheckProtocol, Cluster, Ejection, Endpoint, HashKey, HealthCheck, MaxInFlight, Pool,
    Queue, QueueOrder, UpstreamProtocol,
};
pub use compress::{Compress, CompressLevel, Compression};
pub use condition::{Conditions, Exceptions, HeaderMatch, ParameterMatch, pattern, patterns};
pub use control::{ControlSocket, ServicesState};
pub use cors::Cors;
pub use defaults::WEIGHT;
pub use discovery::{
    ConsulSource, Discovery, DnsSource, EndpointSource, EtcdSource, KubernetesSource, RecordType,
};
pub use disk::can_spool;
pub use disk::lacks_unnamed_files;
pub use file::{
    load, outdated_keys, parse, parse_endpoint, parse_endpoints, short_form, to_json, to_yaml,
    write_endpoints,
};
pub use files::{CacheRule, ContentCoding, FileCache, Files};
pub use general::network_of;
pub use http2::{Http2, Http2Limits};
pub use http3::{EarlyData, Http3, Http3Limits};
pub use https::{Hsts, RedirectToHttps};
pub use jwt::{JwtAlgorithm, JwtAuth};
pub use limits::Limits;
pub use mistake::Mistake;
pub use names::Word;
pub use overrides::Override;
pub use passthrough::{Passthrough, StartTls};
pub use problem::{ConfigError, Origin, Problem};
pub use qlog::Qlog;
pub use rate_limit::{Excess, Rate, RateLimit, Sharing};
pub use retry::{Retry, ServerErrors};
pub use rewrite::{QueryRule, RewritePart, RewriteTemplate};
pub use route::{Action, HeaderEdits, Route};
pub use schema::{NumberRange, number_ranges, schema};
pub use sendfile::Sendfile;
pub use store::{ConsulStore, RedisStore, Store, StoreEngine};
pub use template::{Template, TemplatePart, Variable, group_of};
pub use tls::{CIPHER_SUITES, CertificateFiles, ClientAuth, ClientAuthMode, Tls, TlsVersion};
pub use token::read_token;
pub use tracing::Tracing;
pub use upstream_tls::{ClientCertificate, Pin, UpstreamTls};
pub use url::HttpUrl;

/// The whole configuration.
///
/// Many fields: one for each key of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Addresses on which sluice accepts connections.
    pub listeners: Vec<Listener>,
    /// Match rules, in file order.
    pub routes: Vec<Route>,
    /// Clusters by name.
    pub clusters: BTreeMap<String, Cluster>,
    /// Default limits of every listener.
    pub limits: Limits,
    /// Peers whose `X-Forwarded-*` and `X-Request-Id` fields are trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Which clients may send requests, whatever the route.
    pub access: Vec<AccessRule>,
    /// How many requests a client may send, by name; routes say which apply.
    pub rate_limits: BTreeMap<String, RateLimit>,
    /// Addresses that are turned away at the same time.
    pub bans_max: usize,
    /// Add a `Via` field to forwarded messages (RFC 9110 7.6.3).
    pub via: bool,
    /// Name the request in X-Request-Id of every response that has none of its own.
    pub response_request_id: bool,
    /// Files used as the body of our own responses, by status.
    pub error_pages: BTreeMap<u16, PathBuf>,
    /// Statuses of applications whose responses they replace, as ranges.
    pub error_pages_for: Vec<(u16, u16)>,
    /// Where and how exchanges are logged.
    pub access_log: AccessLog,
    /// How exchanges are traced; `None` is off.
    pub tracing: Option<Tracing>,
    /// Which HTTP/3 connections are recorded; `None` is off.
    pub qlog: Option<Qlog>,
    /// File with the token that enables debug fields; `None` is off.
    pub debug_token_file: Option<PathBuf>,
    /// A secret of HTTP/3 that outlives the process.
    pub http3_secret_file: Option<PathBuf>,
    /// Address of the admin listener; `None` is off.
    pub admin: Option<Address>,
    /// The admin listener serves only /metrics and /healthz, and may do so without a token on any address.
    pub admin_metrics_only: bool,
    /// Whether to do without the admin listener if its address is in use: nobody asked for it.
    pub admin_if_free: bool,
    /// The control socket.
    pub control: ControlSocket,
    /// File with the token that the admin listener requires; mandatory if the address is not a loopback address.
    pub admin_token_file: Option<PathBuf>,
    /// Where deployed services are stored.
    pub services: ServicesState,
    /// What a fleet shares; `None` is off.
    pub store: Option<Store>,
    /// Automatic certificates; `None` is off.
    pub acme: Option<Acme>,
    /// Number of worker threads, each with its own engine; 0 is one per core.
    pub workers: usize,
    /// The I/O engine of the workers.
    pub runtime: Runtime,
    /// How worker threads are scheduled.
    pub worker_scheduling: WorkerScheduling,
    /// Which cores worker threads run on.
    pub worker_placement: WorkerPlacement,
    /// User to switch to once every listener is bound.
    pub user: Option<String>,
    /// Group to switch to once every listener is bound.
    pub group: Option<String>,
    /// Where responses are kept that may be used again, by name; routes say which.
    pub caches: BTreeMap<String, Cache>,
    /// What workers keep of files that routes respond with.
    pub file_cache: FileCache,
    /// What encoding responses may cost.
    pub compression: Compression,
    /// Limits on buffered bodies, over all exchanges.
    pub buffers: Buffers,
    /// Which kernel assists may be used.
    pub kernel: KernelAssists,
    /// How long a drain waits for running exchanges, in milliseconds.
    pub drain_timeout_ms: u64,
    /// How long sluice still accepts connections after SIGTERM, while `/healthz` says that it drains, in milliseconds.
    pub drain_delay_ms: u64,
    /// Address of the embedded demo origin; `None` is off.
    pub demo_origin: Option<SocketAddr>,
}

impl Config {
    /// Whether a rate limit bans clients.
    pub fn bans_clients(&self) -> bool {
        self.rate_limits.values().any(|limit| limit.then == Excess::Ban && !limit.dry_run)
    }

    /// Number of workers to start.
    pub fn worker_count(&self) -> usize {
        match self.workers {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        }
    }
}

/// An address to bind or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// A literal IP address and port.
    Ip(SocketAddr),
    /// A host name and port, resolved when used.
    Name(String, u16),
    /// A unix socket path.
    Unix(PathBuf),
}

/// An address on which sluice accepts connections.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// Name, unique among listeners.
    pub name: String,
    /// The address to bind.
    pub address: Address,
    /// The protocol of its connections.
    pub protocol: Protocol,
    /// Whether a connection starts with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
    /// When HTTP/2 is spoken.
    pub http2: Http2,
    /// HTTP/3 on the UDP port of the same number; `None` is off.
    pub http3: Option<Http3>,
    /// The cluster that a `tcp` listener tunnels to. On a `tls-passthrough` listener, the cluster for names that `sni`
    /// does not list.
    pub cluster: Option<String>,
    /// Where passed-through TLS connections go; only on a `tls-passthrough` listener.
    pub passthrough: Option<Passthrough>,
    /// TLS termination; `None` is plain text.
    pub tls: Option<Tls>,
    /// Redirect of requests to https; `None` is off.
    pub redirect_to_https: Option<RedirectToHttps>,
    /// The Strict-Transport-Security field of responses; `None` is off.
    pub hsts: Option<Hsts>,
    /// The effective limits of this listener.
    pub limits: Limits,
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 and HTTP/1.0.
    Http,
    /// Opaque bytes, tunnelled to one cluster.
    Tcp,
    /// TLS that is not terminated: tunnelled to a cluster by the server name in the ClientHello.
    TlsPassthrough,
}

/// Which PROXY protocol header a listener expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// None.
    Off,
    /// The text form only.
    V1,
    /// The binary form only.
    V2,
    /// Either form; one is required.
    Any,
}
