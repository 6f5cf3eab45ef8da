//! Commands on the services of a fleet: all members check new targets, then the change is stored, then all members serve
//! it. A failure before it is stored changes nothing anywhere.

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_core::service::duration::GoDuration;
use sluice_core::service::error::ServiceError;
use sluice_core::service::model::{Pause, Service};
use sluice_core::service::options::DeploymentOptions;
use sluice_core::service::set;
use tokio::time::Instant;

use super::Services;
use crate::fleet::state::{Head, Proposal, ServiceChange, SharedServices, new_id};
use crate::fleet::{ChangeError, Fleet, Shortfall};

/// How often a change is made again because of changes of others.
const CONFLICTS_MAX: usize = 50;

/// Which targets of a service a deploy replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Active,
    Rollout,
}

impl Services {
    /// Deploys targets on every member. `candidate` makes the new service from the one that there is.
    pub(super) async fn deploy_everywhere(
        &self,
        fleet: &Fleet,
        (name, side): (&str, Side),
        options: &DeploymentOptions,
        candidate: impl Fn(Option<Service>) -> Result<Service, ServiceError>,
    ) -> Result<(), ServiceError> {
        let expected = self.expected(fleet).await?;
        let service = candidate(shared(fleet).records.remove(name).map(|record| record.service))?;
        let id = new_id();
        self.shared.own_proposals.borrow_mut().insert(id.clone());
        let proposal = Proposal {
            owner: fleet.member.clone(),
            service: service.clone(),
            is_rollout: side == Side::Rollout,
            options: options.clone(),
        };
        let deployed = self.deploy_proposed(fleet, (&id, &proposal), &expected, &candidate).await;
        self.shared.own_proposals.borrow_mut().remove(&id);
        if deployed.is_err() {
            // What is left of it is removed when the store is back.
            let _ = fleet.try_commit(&Proposal::withdrawal(&id)).await;
        }
        let version = deployed?;
        self.until_settled(fleet, (version, &service.name), options.drain_timeout, &expected).await
    }

    /// Has all members check the proposed targets, and stores the service. Returns the version that has it.
    async fn deploy_proposed(
        &self,
        fleet: &Fleet,
        (id, proposal): (&str, &Proposal),
        expected: &BTreeSet<String>,
        candidate: &impl Fn(Option<Service>) -> Result<Service, ServiceError>,
    ) -> Result<Version, ServiceError> {
        let DeploymentOptions { deploy_timeout, drain_timeout, .. } = proposal.options;
        let announced = fleet.commit(&proposal.announcement(id)).await;
        announced.map_err(|error| ServiceError::Store(error.to_string()))?;
        let patience = deploy_timeout.to_std() + fleet.confirm_timeout();
        let missing =
            fleet.until_nothing_is_missing(patience, |members| members.without_check(id, expected)).await;
        refuse(missing, deploy_timeout)?;
        let what = format!("deploy of {}", proposal.service.name);
        self.change_shared(fleet, &what, |mut shared, change| {
            let mut record = shared.records.remove(&proposal.service.name).unwrap_or_default();
            let known = (!record.service.name.is_empty()).then_some(record.service);
            record.service = candidate(known)?;
            let others: set::Services = shared.records.into_values().map(|other| other.service).collect();
            others.check(&record.service.name, &record.service.options)?;
            match proposal.is_rollout {
                true => id.clone_into(&mut record.deploys.rollout),
                false => id.clone_into(&mut record.deploys.active),
            }
            record.drain_timeout = drain_timeout;
            change.put(&record);
            change.settle(id);
            Ok(())
        })
        .await
    }

    /// Changes a service on every member. `change` gets what is stored; a drain takes at most `drain`, if the change
    /// drains.
    pub(super) async fn change_everywhere(
        &self,
        fleet: &Fleet,
        (name, what): (&str, &str),
        drain: Option<GoDuration>,
        change: impl Fn(&mut Service) -> Result<(), ServiceError>,
    ) -> Result<(), ServiceError> {
        let expected = self.expected(fleet).await?;
        let what = format!("{what} of {name}");
        let stored = |mut shared: SharedServices, to: &mut ServiceChange| {
            let mut record = shared.records.remove(name).ok_or(ServiceError::NotFound)?;
            change(&mut record.service)?;
            record.drain_timeout = drain.unwrap_or(record.drain_timeout);
            to.put(&record);
            Ok(())
        };
        let version = self.change_shared(fleet, &what, stored).await?;
        self.until_settled(fleet, (version, name), drain.unwrap_or_default(), &expected).await
    }

    /// Pauses, stops or resumes a service on every member.
    pub(super) async fn hold_everywhere(
        &self,
        fleet: &Fleet,
        what: (&str, &str),
        drain: Option<GoDuration>,
        pause: Pause,
    ) -> Result<(), ServiceError> {
        let hold = |service: &mut Service| {
            service.pause_controller = pause.clone();
            Ok(())
        };
        self.change_everywhere(fleet, what, drain, hold).await
    }

    /// Removes a service on every member. Requests at its targets finish later, as on one host.
    pub(super) async fn remove_everywhere(&self, fleet: &Fleet, name: &str) -> Result<(), ServiceError> {
        let expected = self.expected(fleet).await?;
        let removed = |shared: SharedServices, change: &mut ServiceChange| {
            shared.records.get(name).ok_or(ServiceError::NotFound)?;
            change.remove(name);
            Ok(())
        };
        let version = self.change_shared(fleet, &format!("removal of {name}"), removed).await?;
        self.until_settled(fleet, (version, name), GoDuration::default(), &expected).await
    }

    /// Stores a change of what is stored, again if others have changed it meanwhile. Returns its version.
    async fn change_shared(
        &self,
        fleet: &Fleet,
        what: &str,
        change: impl Fn(SharedServices, &mut ServiceChange) -> Result<(), ServiceError>,
    ) -> Result<Version, ServiceError> {
        for _ in 0..CONFLICTS_MAX {
            self.until_whole(fleet).await?;
            let mut next = ServiceChange::after(&fleet.keys(), fleet.name(), what);
            let after = Head::item_version(&fleet.keys());
            change(shared(fleet), &mut next)?;
            match fleet.change(&next).await {
                Ok(()) => return Ok((next.fleet, next.version)),
                Err(ChangeError::Conflict) => {
                    let until = Instant::now() + fleet.confirm_timeout();
                    if !fleet.sees_another(after, until).await {
                        return Err(ServiceError::Store("it does not say what has changed".to_owned()));
                    }
                }
                Err(ChangeError::Unreachable(why) | ChangeError::Refused(why)) => {
                    return Err(ServiceError::Store(why));
                }
                Err(ChangeError::Unknown(why)) => return Err(ServiceError::Unconfirmed(why)),
            }
        }
        Err(ServiceError::Busy("others change services all the time; nothing has changed".to_owned()))
    }

    /// Waits until the store has the services that this member knows of: it may have lost them, or get them now.
    async fn until_whole(&self, fleet: &Fleet) -> Result<(), ServiceError> {
        let is_new = self.shared.known.borrow().is_nothing() && Head::of(&fleet.keys()).is_none();
        let until = Instant::now() + fleet.confirm_timeout();
        if is_new || fleet.sees(until, |head| head.writer.is_none()).await.is_some() {
            return Ok(());
        }
        Err(ServiceError::Store(
            "it has lost the services of the fleet, and does not have them again yet".to_owned(),
        ))
    }

    /// The members that are there before a change.
    async fn expected(&self, fleet: &Fleet) -> Result<BTreeSet<String>, ServiceError> {
        fleet.until_seen().await;
        if let Some(trouble) = fleet.trouble() {
            return Err(ServiceError::Store(trouble));
        }
        let members = fleet.members().await.map_err(|error| ServiceError::Store(error.to_string()))?;
        let mut names = members.names();
        names.insert(fleet.name().to_owned());
        Ok(names)
    }

    /// Waits until all members serve a version of a service, and no request is at what it replaced.
    async fn until_settled(
        &self,
        fleet: &Fleet,
        ((in_fleet, version), name): (Version, &str),
        drain: GoDuration,
        expected: &BTreeSet<String>,
    ) -> Result<(), ServiceError> {
        let patience = drain.to_std().saturating_add(fleet.confirm_timeout());
        let missing = fleet
            .until_nothing_is_missing(patience.min(PATIENCE_MAX), |members| {
                members.without((&in_fleet, version), name, expected)
            })
            .await;
        if missing.is_nothing() {
            return Ok(());
        }
        Err(ServiceError::NotEverywhere { what: "has switched; the change stays", missing: lines(missing) })
    }
}

/// A fleet, and a version of its services.
type Version = (String, u64);

/// A time limit that a clock can add.
const PATIENCE_MAX: Duration = Duration::from_secs(7 * 86_400);

/// What the fleet shares now.
fn shared(fleet: &Fleet) -> SharedServices {
    SharedServices::of(&fleet.keys()).unwrap_or_default()
}

fn refuse(missing: Shortfall, timeout: GoDuration) -> Result<(), ServiceError> {
    match missing {
        missing if missing.is_nothing() => Ok(()),
        Shortfall { failed, .. } if !failed.is_empty() => {
            Err(ServiceError::Unhealthy { timeout: timeout.to_string(), last: failed })
        }
        missing => {
            let what = "has checked the targets; nothing has changed";
            Err(ServiceError::NotEverywhere { what, missing: lines(missing) })
        }
    }
}

fn lines(missing: Shortfall) -> Vec<String> {
    let silent = missing.silent.iter().map(|name| format!("{name}: no answer"));
    missing.failed.iter().cloned().chain(silent).collect()
}
