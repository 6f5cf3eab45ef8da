//! A deploy: new targets are checked until they are healthy, without traffic; then they replace the old ones in one
//! step, and the old ones drain. A failure before that step changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::service::api::{DeployRequest, RolloutDeployRequest};
use sluice_core::service::compile::{self, Group};
use sluice_core::service::error::ServiceError;
use sluice_core::service::logged;
use sluice_core::service::model::Service;
use sluice_core::service::options::{DeploymentOptions, ServiceOptions, TargetOptions};
use sluice_core::service::pages::ServicePages;
use sluice_core::service::set::check_against;
use sluice_core::service::slot::Gate;
use sluice_core::service::target;
use sluice_core::service::tls::ServiceTls;

use super::attached::load;
use super::shared::Side;
use super::slots::{ActiveSlot, Built};
use super::{Running, Services};

impl Services {
    /// Deploys targets that replace the current ones.
    pub(super) async fn deploy(&self, name: &str, mut request: DeployRequest) -> Result<(), ServiceError> {
        request.options.normalize();
        check_targets(&request.targets, &request.read_targets)?;
        check_texts(&request.options, &request.target_options)?;
        check_options(&request.options)?;
        logged::check(&request.target_options)?;
        let candidate = |known: Option<Service>| Service {
            name: name.to_owned(),
            options: request.options.clone(),
            target_options: request.target_options.clone(),
            active_targets: request.targets.clone(),
            active_readers: request.read_targets.clone(),
            active_adjusted: BTreeMap::new(),
            ..known.unwrap_or_default()
        };
        if let Some(fleet) = &self.fleet {
            let options = &request.deployment_options;
            let candidate = |known| Ok(candidate(known));
            return self.deploy_everywhere(fleet, (name, Side::Active), options, candidate).await;
        }
        let service = candidate(self.get(name).ok());
        self.check_room(&service)?;
        self.check_tls(&service).await?;
        let built =
            self.ready(service, Group::Active, Group::ActiveReaders, &request.deployment_options).await?;
        let replaced = {
            let _turn = self.turn.lock().await;
            // The service may have changed while the targets were checked.
            let service = candidate(self.get(name).ok());
            self.check_room(&service)?;
            self.install(service, built, Group::Active).await?
        };
        self.retire(replaced, &request.deployment_options).await;
        Ok(())
    }

    /// Deploys targets for a share of the users.
    pub(super) async fn rollout_deploy(
        &self,
        name: &str,
        request: RolloutDeployRequest,
    ) -> Result<(), ServiceError> {
        check_targets(&request.targets, &request.read_targets)?;
        let candidate = |known: Service| Service {
            rollout_targets: request.targets.clone(),
            rollout_readers: request.read_targets.clone(),
            rollout_adjusted: BTreeMap::new(),
            ..known
        };
        if let Some(fleet) = &self.fleet {
            let options = &request.deployment_options;
            let candidate = |known: Option<Service>| known.map(candidate).ok_or(ServiceError::NotFound);
            return self.deploy_everywhere(fleet, (name, Side::Rollout), options, candidate).await;
        }
        let service = candidate(self.get(name)?);
        let built =
            self.ready(service, Group::Rollout, Group::RolloutReaders, &request.deployment_options).await?;
        let replaced = {
            let _turn = self.turn.lock().await;
            self.install(candidate(self.get(name)?), built, Group::Rollout).await?
        };
        self.retire(replaced, &request.deployment_options).await;
        Ok(())
    }

    /// Checks that a service does not conflict with other services or the configuration file.
    fn check_room(&self, service: &Service) -> Result<(), ServiceError> {
        self.book.borrow().check(&service.name, &service.options)?;
        check_against(&self.site.file(), &service.name, &service.options)
    }

    /// Checks that the service's certificate can be served or obtained.
    pub(super) async fn check_tls(&self, service: &Service) -> Result<(), ServiceError> {
        let tls = ServiceTls::of(service)?;
        tls.check(&self.site.file())?;
        let loaded = tokio::task::spawn_blocking(move || load(&tls)).await.map_err(std::io::Error::other)?;
        loaded.map_err(|error| ServiceError::Certificate(error.to_string()))
    }

    pub(super) async fn ready(
        &self,
        service: Service,
        writers: Group,
        readers: Group,
        options: &DeploymentOptions,
    ) -> Result<Built, ServiceError> {
        let check = compile::health_check(&service.target_options.health_check_config);
        // The system's resolver blocks.
        let built = tokio::task::spawn_blocking(move || Built::new(&service, writers, readers)).await;
        let mut built = built.map_err(std::io::Error::other)??;
        if !options.force {
            built.until_well(check, options.deploy_timeout).await?;
        }
        Ok(built)
    }

    /// Stores the service's new state and applies it; returns the slot that was replaced.
    async fn install(
        &self,
        service: Service,
        built: Built,
        group: Group,
    ) -> Result<Option<ActiveSlot>, ServiceError> {
        let name = service.name.clone();
        let pause = service.pause_controller.clone();
        let mut book = self.book.borrow().clone();
        book.set(service);
        self.save(book).await?;
        if self.file.is_none() {
            tracing::warn!(service = name, "services.state_file is not set: a restart loses the service");
        }
        let kept = built.keep();
        let replaced = {
            let mut running = self.running.borrow_mut();
            match running.get_mut(&name) {
                Some(running) if group == Group::Active => Some(std::mem::replace(&mut running.active, kept)),
                Some(running) => running.rollout.replace(kept),
                None => {
                    let gate = Arc::new(Gate::new(pause));
                    running.insert(name, Running { gate, active: kept, rollout: None });
                    None
                }
            }
        };
        self.attach().await?;
        // From here on, requests that still use the old snapshot are routed again.
        replaced.iter().for_each(ActiveSlot::replace);
        Ok(replaced)
    }

    async fn retire(&self, replaced: Option<ActiveSlot>, options: &DeploymentOptions) {
        if let Some(replaced) = replaced {
            replaced.drain(options.drain_timeout).await;
        }
    }
}

/// Texts that become part of a head must be single words.
fn check_texts(options: &ServiceOptions, target: &TargetOptions) -> Result<(), ServiceError> {
    let check = &target.health_check_config;
    let texts = [
        ("health-check-path", &check.path),
        ("health-check-host", &check.host),
        ("canonical-host", &options.canonical_host),
        ("client-ip-header", &options.client_ip_header),
    ];
    match texts.iter().find(|(_, text)| !text.bytes().all(|byte| byte.is_ascii_graphic())) {
        Some((name, _)) => Err(ServiceError::Unsendable(name)),
        None => Ok(()),
    }
}

fn check_targets(writers: &[String], readers: &[String]) -> Result<(), ServiceError> {
    if writers.is_empty() {
        return Err(ServiceError::NoTarget);
    }
    target::endpoints(writers).and(target::endpoints(readers)).map(drop)
}

/// Options that are never valid.
pub(super) fn check_options(options: &ServiceOptions) -> Result<(), ServiceError> {
    options.validate()?;
    ServicePages::load(&options.error_page_path)?;
    Ok(())
}
