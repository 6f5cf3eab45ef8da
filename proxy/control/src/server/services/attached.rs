//! Deployed services as part of each snapshot, next to the configuration file.

use crate::server::ReloadError;
use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use sluice_config::{self as config, CertificateFiles, Config, Route};
use sluice_core::cluster::Cluster;
use sluice_core::service::entry::ServiceEntry;
use sluice_core::service::options::ServiceOptions;
use sluice_core::service::set::check_against;
use sluice_core::service::tls::ServiceTls;
use sluice_core::tls::{self, Pair, TlsConfigError, now_unix_s};
use sluice_engine::equipment::Equipment;
use sluice_engine::snapshot::{Live, Snapshot};

use crate::authority;
use crate::server::clusters::Clusters;

/// The current services, ready for a snapshot.
#[derive(Clone, Default)]
pub(crate) struct Attached {
    routes: Vec<Route>,
    configs: BTreeMap<String, config::Cluster>,
    clusters: BTreeMap<String, Arc<Cluster>>,
    /// By the name of each route.
    entries: BTreeMap<String, Arc<ServiceEntry>>,
    /// What the configuration file must not conflict with.
    claims: Vec<(String, ServiceOptions)>,
    /// TLS of the services, for listeners that serve their certificates.
    tls: Vec<(String, ServiceTls)>,
}

impl Attached {
    /// Adds a service with its routes.
    pub(super) fn add(&mut self, entry: ServiceEntry, routes: Vec<Route>, tls: ServiceTls) {
        let entry = Arc::new(entry);
        self.tls.push((entry.name.clone(), tls));
        self.claims.push((entry.name.clone(), entry.options.clone()));
        let slots = std::iter::once(&entry.active).chain(entry.rollout.iter().map(|(slot, _)| slot));
        for cluster in slots.flat_map(|slot| slot.clusters()) {
            self.configs.insert(cluster.name.clone(), cluster.config.clone());
            self.clusters.insert(cluster.name.clone(), Arc::clone(cluster));
        }
        for route in routes {
            self.entries.insert(route.name.clone(), Arc::clone(&entry));
            self.routes.push(route);
        }
    }

    /// Checks that a configuration file does not conflict with any service.
    ///
    /// # Errors
    /// A sentence about the first conflict.
    pub(crate) fn check(&self, file: &Config) -> Result<(), ReloadError> {
        for (name, options) in &self.claims {
            check_against(file, name, options)
                .map_err(|error| format!("conflict with the deployed service {name:?}: {error}"))?;
        }
        Ok(())
    }

    /// Whether listeners serve the same certificates with these services as with others.
    pub(crate) fn has_same_certificates(&self, other: &Self) -> bool {
        let some = |attached: &Self| -> Vec<ServiceTls> {
            let tls = attached.tls.iter().map(|(_, tls)| tls);
            tls.filter(|tls| **tls != ServiceTls::Off).cloned().collect()
        };
        some(self) == some(other)
    }

    /// A configuration file whose listeners include the certificates of services, for planning TLS. A certificate that
    /// cannot be used now is left out, so that it does not block other changes. Blocks.
    pub(crate) fn with_certificates(&self, file: &Config) -> Config {
        let mut config = file.clone();
        let usable: Vec<&ServiceTls> =
            self.tls.iter().filter(|one| is_usable(one)).map(|(_, tls)| tls).collect();
        for listener in &mut config.listeners {
            if let Some(tls) = listener.tls.as_mut().filter(|tls| tls.services) {
                usable.iter().for_each(|service| service.add_to(tls));
            }
        }
        config
    }

    /// The same on a blocking thread.
    ///
    /// # Errors
    /// When it panics.
    pub(crate) async fn read_certificates(&self, file: &Config) -> Result<Config, ReloadError> {
        let (attached, file) = (self.clone(), file.clone());
        let read = tokio::task::spawn_blocking(move || attached.with_certificates(&file)).await;
        read.map_err(|error| format!("reading certificates failed: {error}").into())
    }

    /// The snapshot of a configuration file and these services.
    pub(crate) fn snapshot(
        &self,
        file: &Config,
        mut clusters: Clusters,
        equipment: Equipment,
        before: Option<&Snapshot>,
    ) -> Snapshot {
        let mut config = file.clone();
        config.routes.extend(self.routes.iter().cloned());
        config.clusters.extend(self.configs.clone());
        clusters.extend(self.clusters.clone());
        Snapshot::new(config, clusters, equipment, before).with_services(&self.entries)
    }

    /// The same at startup.
    ///
    /// # Errors
    /// When an error page or another file cannot be used.
    pub(crate) fn live(&self, file: &Config, clusters: Clusters) -> Result<Live, ReloadError> {
        let equipment = Equipment::load(file, None, authority::start)?;
        Ok(Arc::new(ArcSwap::from_pointee(self.snapshot(file, clusters, equipment, None))))
    }

    /// Whether a cluster belongs to a service.
    pub(crate) fn has_cluster(&self, name: &str) -> bool {
        self.clusters.contains_key(name)
    }
}

fn is_usable((name, tls): &(String, ServiceTls)) -> bool {
    let loaded = load(tls);
    if let Err(error) = &loaded {
        tracing::warn!(service = name, "the service's certificate is not served: {error}");
    }
    loaded.is_ok()
}

/// Reads the certificate of a service, if it names one. Blocks.
///
/// # Errors
/// Why it cannot be used.
pub(super) fn load(tls: &ServiceTls) -> Result<(), TlsConfigError> {
    let ServiceTls::Files(CertificateFiles::Pair { cert, key, ocsp }) = tls else { return Ok(()) };
    let pair = Pair { cert: cert.clone(), key: key.clone(), ocsp: ocsp.clone() };
    tls::load(&pair, now_unix_s()).map(drop)
}
