//! Changes the weight of targets, or disables them, while they serve. Also works on endpoints of configured clusters.

use std::sync::Arc;

use sluice_core::cluster::Cluster;
use sluice_core::service::adjust::{self, Change, adjusted};
use sluice_core::service::api::Done;
use sluice_core::service::compile::Group;
use sluice_core::service::error::ServiceError;
use sluice_core::service::model::Service;

use super::slots::ActiveSlot;
use super::{Running, Services};

/// The note about a change that no file stores.
const PASSING: &str =
    "is a cluster of the configuration file: the change lasts until the next reload, restart or upgrade";

impl Services {
    /// Changes a target of a service, or an endpoint of a configured cluster if no service has the name.
    pub(super) async fn adjust(
        &self,
        name: &str,
        target: &str,
        change: Result<Change, ServiceError>,
    ) -> Result<Done, ServiceError> {
        let change = change?;
        if let Some(fleet) = self.fleet.as_ref().filter(|_| self.get(name).is_ok()) {
            let changed = |service: &mut Service| {
                *service = adjusted(service, target, change)?;
                Ok(())
            };
            let what = (name, "adjustment");
            self.change_everywhere(fleet, what, None, changed).await?;
            return Ok(Done::default());
        }
        let _turn = self.turn.lock().await;
        match self.get(name) {
            Ok(service) => self.adjust_service(&service, target, change).await,
            Err(_) => self.adjust_cluster(name, target, change),
        }
    }

    async fn adjust_service(
        &self,
        service: &Service,
        target: &str,
        change: Change,
    ) -> Result<Done, ServiceError> {
        let service = adjusted(service, target, change)?;
        let mut book = self.book.borrow().clone();
        book.set(service.clone());
        self.save(book).await?;
        if let Some(running) = self.running.borrow().get(&service.name) {
            apply(&service, running);
        }
        Ok(Done::default())
    }

    /// Does not await anything, so that no reload can intervene.
    fn adjust_cluster(&self, name: &str, target: &str, change: Change) -> Result<Done, ServiceError> {
        let cluster = self.site.cluster_of_the_file(name);
        let cluster = cluster.ok_or_else(|| ServiceError::NobodyOfThatName(name.to_owned()))?;
        let known = known(&cluster);
        if !known.iter().any(|one| one == target) {
            let (name, target, known) = (name.to_owned(), target.to_owned(), known.join(", "));
            return Err(ServiceError::NoSuchTarget { name, target, known });
        }
        let endpoints = cluster.endpoints();
        let mut others = endpoints.iter().filter(|endpoint| !endpoint.is_called(target));
        if change == Change::Disable && others.all(|endpoint| endpoint.is_disabled()) {
            let (name, target) = (name.to_owned(), target.to_owned());
            let instead =
                "to turn requests away, use a route with respond in the configuration file".to_owned();
            return Err(ServiceError::LastTarget { name, target, instead });
        }
        cluster.adjust(target, change.of(cluster.adjustment(target)));
        Ok(Done { note: Some(format!("{name} {PASSING}")) })
    }
}

/// Adjusts the targets of a running service.
pub(super) fn apply(service: &Service, running: &Running) {
    let sides = [
        ([Group::Active, Group::ActiveReaders], Some(&running.active)),
        ([Group::Rollout, Group::RolloutReaders], running.rollout.as_ref()),
    ];
    for (groups, slot) in sides {
        let targets =
            groups.iter().flat_map(|group| group.targets(service)).map(|target| adjust::name(target));
        for target in targets {
            let adjustment = groups[0].adjusted(service).get(&target).copied().unwrap_or_default();
            let clusters = slot.into_iter().flat_map(ActiveSlot::clusters);
            clusters.for_each(|cluster| cluster.adjust(&target, adjustment));
        }
    }
}

/// Valid names of a cluster's endpoints: the configured addresses, and the resolved ones.
fn known(cluster: &Arc<Cluster>) -> Vec<String> {
    let mut known: Vec<String> = cluster.config.endpoints.iter().map(|one| one.address.to_string()).collect();
    for endpoint in cluster.endpoints().iter() {
        if !known.contains(&endpoint.label) {
            known.push(endpoint.label.clone());
        }
    }
    known
}
