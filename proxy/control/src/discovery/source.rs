//! The sources, as one.

use sluice_config::{Discovery, Endpoint, Source};

use super::consul::Consul;
use super::dns::Dns;
use super::error::SourceError;
use super::etcd::Etcd;
use super::file::ListFile;
use super::kubernetes::Kubernetes;

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
    pub(super) fn new(config: &Discovery) -> Result<Self, SourceError> {
        let most = config.endpoints_max;
        Ok(match config.source() {
            Some(Source::Consul(source)) => Self::Consul(Box::new(Consul::new(source, most)?)),
            Some(Source::Dns(source)) => Self::Dns(Box::new(Dns::new(source)?)),
            Some(Source::Etcd(source)) => Self::Etcd(Box::new(Etcd::new(source, most)?)),
            Some(Source::File(path)) => Self::File(ListFile::new(path, most)),
            Some(Source::Kubernetes(source)) => Self::Kubernetes(Box::new(Kubernetes::new(source)?)),
            None => return Err("no source is configured".into()),
        })
    }

    /// The list: at once for the first time, then when it may have changed.
    ///
    /// # Errors
    /// Why there is none. Make a new one then.
    pub(super) async fn next(&mut self) -> Result<Vec<Endpoint>, SourceError> {
        match self {
            Self::Consul(source) => source.next().await,
            Self::Dns(source) => source.next().await,
            Self::Etcd(source) => source.next().await,
            Self::File(source) => source.next().await,
            Self::Kubernetes(source) => source.next().await,
        }
    }
}
