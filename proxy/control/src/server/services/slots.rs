//! Prepares targets: looks up names, builds clusters, and checks targets until they are healthy.

use std::sync::Arc;
use std::time::Duration;

use sluice_config::HealthCheck;
use sluice_core::cluster::{Cluster, Endpoint};
use sluice_core::service::compile::{self, Group};
use sluice_core::service::duration::GoDuration;
use sluice_core::service::error::ServiceError;
use sluice_core::service::model::Service;
use sluice_core::service::slot::Slot;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::health::check::check;
use crate::resolve::Resolver;
use crate::server::site::Managed;

/// A slot whose clusters are not managed yet.
pub(super) struct Built {
    pub(super) slot: Arc<Slot>,
    clusters: Vec<(Arc<Cluster>, Resolver)>,
}

/// A slot, and the tasks that manage its clusters.
pub(super) struct ActiveSlot {
    pub(super) slot: Arc<Slot>,
    tasks: Vec<Managed>,
}

impl Built {
    /// The slot of two groups of a service's targets. Blocks while their names are looked up.
    ///
    /// # Errors
    /// When a target or an option cannot be used.
    pub(super) fn new(service: &Service, writers: Group, readers: Group) -> Result<Self, ServiceError> {
        let mut clusters = vec![made(service, writers)?];
        if !readers.targets(service).is_empty() {
            clusters.push(made(service, readers)?);
        }
        let readers = clusters.get(1).map(|(cluster, _)| Arc::clone(cluster));
        Ok(Self { slot: Arc::new(Slot::new(Arc::clone(&clusters[0].0), readers)), clusters })
    }

    /// Checks every target repeatedly until each has been healthy once.
    ///
    /// # Errors
    /// When one is not healthy within `patience`; with the results of the last checks.
    pub(super) async fn until_well(
        &mut self,
        check: HealthCheck,
        patience: GoDuration,
    ) -> Result<(), ServiceError> {
        let unhealthy = |last| ServiceError::Unhealthy { timeout: patience.to_string(), last };
        if self.clusters.iter().all(|(cluster, _)| cluster.config.endpoints.is_empty()) {
            return Err(unhealthy(Vec::new()));
        }
        let mut last = Vec::new();
        let check = Arc::new(check);
        let asking = async {
            let mut ticks = interval(Duration::from_millis(check.interval_ms.max(1)));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                self.look_up_the_unknown().await;
                self.ask(&check, &mut last).await;
                if self.are_well() {
                    return;
                }
            }
        };
        let well = timeout(patience.to_std(), asking).await.is_ok();
        if well { Ok(()) } else { Err(unhealthy(last)) }
    }

    /// A name may start to resolve only while its container starts.
    async fn look_up_the_unknown(&mut self) {
        for index in 0..self.clusters.len() {
            if !self.clusters[index].0.endpoints().is_empty() {
                continue;
            }
            let cluster = Arc::clone(&self.clusters[index].0);
            let mut resolver = Resolver::new(&cluster.name, &cluster.config);
            // The system's resolver blocks.
            let looked_up = tokio::task::spawn_blocking(move || (resolver.resolve(), resolver)).await;
            if let Ok((seeds, resolver)) = looked_up {
                cluster.replace_endpoints(seeds);
                self.clusters[index].1 = resolver;
            }
        }
    }

    /// Checks every endpoint once; `last` receives the results of the unhealthy ones.
    async fn ask(&self, config: &Arc<HealthCheck>, last: &mut Vec<String>) {
        let mut asked = JoinSet::new();
        for endpoint in self.endpoints() {
            let config = Arc::clone(config);
            asked.spawn(async move {
                let answer = check(&endpoint, None, &config).await;
                (endpoint, answer)
            });
        }
        let mut said = Vec::new();
        let unknown = self.clusters.iter().filter(|(cluster, _)| cluster.endpoints().is_empty());
        for target in unknown.flat_map(|(cluster, _)| &cluster.config.endpoints) {
            said.push(format!("{}: the name does not resolve", target.address));
        }
        while let Some(outcome) = asked.join_next().await {
            let Ok((endpoint, answer)) = outcome else { continue };
            endpoint.set_active_health(answer.is_ok(), 0);
            if let Err(error) = answer {
                tracing::info!(target = endpoint.label, %error, "a new target is not healthy yet");
                said.push(format!("{}: {error}", endpoint.label));
            }
            // So that a check that never ends keeps the results of the others.
            last.clone_from(&said);
        }
        said.sort();
        *last = said;
    }

    /// Whether every target has a healthy address; a name may also have addresses without a listener.
    fn are_well(&self) -> bool {
        self.clusters.iter().all(|(cluster, _)| {
            let endpoints = cluster.endpoints();
            cluster.config.endpoints.iter().all(|target| {
                let name = target.address.to_string();
                endpoints.iter().any(|endpoint| endpoint.host == name && endpoint.active_health())
            })
        })
    }

    fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        self.clusters.iter().flat_map(|(cluster, _)| cluster.endpoints().to_vec()).collect()
    }

    /// Starts managing its clusters. Needs the control plane's runtime.
    pub(super) fn keep(self) -> ActiveSlot {
        let tasks = self.clusters.into_iter();
        let tasks = tasks.map(|(cluster, resolver)| Managed::look_after(cluster, resolver)).collect();
        ActiveSlot { slot: self.slot, tasks }
    }
}

impl ActiveSlot {
    /// Its clusters.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &Arc<Cluster>> {
        self.slot.clusters()
    }

    /// Accepts no more requests, and ends the management of its clusters.
    pub(super) fn replace(&self) {
        self.slot.replace();
        self.tasks.iter().for_each(Managed::stop);
    }

    /// Waits for the running requests, then closes idle connections.
    pub(super) async fn drain(&self, patience: GoDuration) {
        self.slot.drain(patience.to_std()).await;
        for cluster in self.slot.clusters() {
            cluster.endpoints().iter().for_each(|endpoint| endpoint.drain());
        }
    }
}

fn made(service: &Service, group: Group) -> Result<(Arc<Cluster>, Resolver), ServiceError> {
    let name = group.cluster(&service.name);
    let mut config = compile::cluster(service, group)?;
    let mut resolver = Resolver::new(&name, &config);
    let seeds = resolver.resolve();
    if seeds.len() > 1 && config.health_check.is_none() {
        // Some addresses of a name may never respond, such as ::1 of localhost.
        config.health_check = Some(compile::health_check(&service.target_options.health_check_config));
    }
    let cluster = Arc::new(Cluster::new(name, config, seeds));
    group.adjusted(service).iter().for_each(|(name, adjustment)| cluster.adjust(name, *adjustment));
    Ok((cluster, resolver))
}
