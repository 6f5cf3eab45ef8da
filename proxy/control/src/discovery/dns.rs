//! Records of the DNS, looked up again when they expire.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{Resolver, TokioResolver};
use sluice_config::{Address, DnsSource, Endpoint, RecordType as Records};

use super::value;
use crate::remote::RemoteError;

/// Targets of SRV records that are looked up.
const TARGETS_MAX: usize = 256;

/// Lookups of targets at the same time.
const LOOKUPS: usize = 16;

/// A name of the DNS.
pub(super) struct Dns {
    config: DnsSource,
    resolver: TokioResolver,
    /// When the records expire.
    due: Option<Instant>,
}

impl Dns {
    /// # Errors
    /// The system has no name servers.
    pub(super) fn new(config: &DnsSource) -> Result<Self, RemoteError> {
        let mut builder = match config.servers.as_slice() {
            [] => Resolver::builder_tokio().map_err(|error| format!("/etc/resolv.conf: {error}"))?,
            servers => {
                let servers = servers.iter().map(name_server).collect();
                let config = ResolverConfig::from_parts(None, Vec::new(), servers);
                Resolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
        };
        let options = builder.options_mut();
        // Expired records are looked up here.
        options.cache_size = 0;
        options.timeout = Duration::from_secs(2);
        options.attempts = 2;
        let resolver = builder.build().map_err(|error| error.to_string())?;
        Ok(Self { config: config.clone(), resolver, due: None })
    }

    /// See [`super::source::Finder::next`].
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, RemoteError> {
        if let Some(due) = self.due {
            tokio::time::sleep_until(due.into()).await;
        }
        let (list, ttl) = self.look_up().await?;
        let DnsSource { interval_min_ms, interval_max_ms, .. } = self.config;
        let [least, most] = [interval_min_ms, interval_max_ms].map(Duration::from_millis);
        self.due = Some(Instant::now() + ttl.clamp(least, most.max(least)));
        Ok(list)
    }

    async fn look_up(&self) -> Result<(Vec<Endpoint>, Duration), RemoteError> {
        match (self.config.record, self.config.port) {
            (Records::Srv, _) => self.services().await,
            (Records::A, Some(port)) => self.addresses(RecordType::A, port).await,
            (Records::Aaaa, Some(port)) => self.addresses(RecordType::AAAA, port).await,
            (_, None) => Err("the port is missing".into()),
        }
    }

    async fn addresses(&self, kind: RecordType, port: u16) -> Result<(Vec<Endpoint>, Duration), RemoteError> {
        let (addresses, ttl) = self.addresses_of(&self.config.name, kind).await?;
        let endpoint = |ip| value::at(Address::Ip(SocketAddr::new(ip, port)), 1);
        Ok((addresses.into_iter().map(endpoint).collect(), ttl))
    }

    /// Sorted; none if the name has none.
    async fn addresses_of(
        &self,
        name: &str,
        kind: RecordType,
    ) -> Result<(BTreeSet<IpAddr>, Duration), RemoteError> {
        let answer = match self.resolver.lookup(name, kind).await {
            Ok(answer) => answer,
            Err(error) => return negative(&error).map(|ttl| (BTreeSet::new(), ttl)),
        };
        let mut ttl = Duration::MAX;
        let mut addresses = BTreeSet::new();
        for record in answer.answers() {
            ttl = ttl.min(Duration::from_secs(record.ttl.into()));
            match &record.data {
                RData::A(address) => _ = addresses.insert(IpAddr::V4(address.0)),
                RData::AAAA(address) => _ = addresses.insert(IpAddr::V6(address.0)),
                _ => {}
            }
        }
        Ok((addresses, ttl))
    }

    /// SRV records: those of the best priority, and the others as backups.
    async fn services(&self) -> Result<(Vec<Endpoint>, Duration), RemoteError> {
        let answer = match self.resolver.lookup(self.config.name.as_str(), RecordType::SRV).await {
            Ok(answer) => answer,
            Err(error) => return negative(&error).map(|ttl| (Vec::new(), ttl)),
        };
        let mut ttl = Duration::MAX;
        let mut services = Vec::new();
        for record in answer.answers() {
            ttl = ttl.min(Duration::from_secs(record.ttl.into()));
            // A dot says that there is no such service (RFC 2782).
            if let RData::SRV(service) = &record.data
                && !service.target.is_root()
            {
                services.push(service);
            }
        }
        services.sort_by_key(|one| (one.priority, one.target.clone(), one.port));
        let best = services.first().map(|one| one.priority);
        let mut list = Vec::new();
        let mut failed = None;
        services.truncate(TARGETS_MAX);
        for some in services.chunks(LOOKUPS) {
            let looking = some.iter().map(|service| self.target(&service.target));
            for (service, found) in some.iter().zip(join_all(looking).await) {
                // One that cannot be looked up does not hide the others.
                let (addresses, target_ttl) = match found {
                    Ok(found) => found,
                    Err(error) => {
                        failed = Some(error);
                        continue;
                    }
                };
                ttl = ttl.min(target_ttl);
                for ip in addresses {
                    // A weight of 0 is the smallest there is.
                    let weight = u64::from(service.weight).max(1);
                    let mut found = value::at(Address::Ip(SocketAddr::new(ip, service.port)), weight);
                    found.backup = Some(service.priority) != best;
                    list.push(found);
                }
            }
        }
        match failed {
            Some(error) if list.is_empty() => Err(error),
            _ => Ok((list, ttl)),
        }
    }

    /// The addresses of a target: of IPv4, otherwise of IPv6.
    async fn target(&self, name: &Name) -> Result<(BTreeSet<IpAddr>, Duration), RemoteError> {
        let name = name.to_string();
        let v4 = self.addresses_of(&name, RecordType::A).await?;
        if !v4.0.is_empty() {
            return Ok(v4);
        }
        self.addresses_of(&name, RecordType::AAAA).await
    }
}

/// An answer that there are no records is one; anything else is a failure. With the time that it is good for.
fn negative(error: &NetError) -> Result<Duration, RemoteError> {
    if error.is_no_records_found() {
        return Ok(Duration::ZERO);
    }
    Err(error.to_string().into())
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.into())
}
