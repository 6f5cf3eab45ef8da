//! The sources, as one.

use sluice_config::{Discovery, Endpoint, EndpointSource};

use super::consul::Consul;
use super::dns::Dns;
use super::etcd::Etcd;
use super::file::ListFile;
use super::kubernetes::Kubernetes;
use crate::remote::RemoteError;

/// Finds endpoints in one source.
pub(super) enum Finder {
    Consul(Box<Consul>),
    Dns(Box<Dns>),
    Etcd(Box<Etcd>),
    File(ListFile),
    Kubernetes(Box<Kubernetes>),
}

impl Finder {
    /// For the source of this configuration.
    ///
    /// # Errors
    /// A file that it names cannot be read.
    pub(super) fn new(config: &Discovery) -> Result<Self, RemoteError> {
        let most = config.endpoints_max;
        Ok(match config.source() {
            Some(EndpointSource::Consul(source)) => Self::Consul(Box::new(Consul::new(source, most)?)),
            Some(EndpointSource::Dns(source)) => Self::Dns(Box::new(Dns::new(source)?)),
            Some(EndpointSource::Etcd(source)) => Self::Etcd(Box::new(Etcd::new(source, most)?)),
            Some(EndpointSource::File(path)) => Self::File(ListFile::new(path, most)),
            Some(EndpointSource::Kubernetes(source)) => {
                Self::Kubernetes(Box::new(Kubernetes::new(source, most)?))
            }
            None => return Err("no source is configured".into()),
        })
    }

    /// The list: at once for the first time, then when it may have changed.
    ///
    /// # Errors
    /// Why there is none. Make a new one then.
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, RemoteError> {
        match self {
            Self::Consul(source) => source.next().await,
            Self::Dns(source) => source.next().await,
            Self::Etcd(source) => source.next().await,
            Self::File(source) => source.next().await,
            Self::Kubernetes(source) => source.next().await,
        }
    }
}
