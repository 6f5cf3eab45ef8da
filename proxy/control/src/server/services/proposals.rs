//! Checks targets that are proposed in the shared state, so that a deploy changes nothing if a member finds them unhealthy.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use sluice_core::service::compile::Group;
use sluice_core::service::error::ServiceError;
use sluice_core::service::set::check_against;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Services;
use super::deploy::check_options;
use super::slots::Built;
use crate::fleet::state::Proposal;
use crate::fleet::{Fleet, Readiness};

/// A proposal is older than this before anybody but its owner removes it.
const ORPHANED_AFTER: Duration = Duration::from_secs(60);

/// Proposals that are checked at the same time; a deploy beyond them gets no answer.
const CHECKED_MAX: usize = 256;

/// A proposal that this member has seen.
pub(super) struct Candidate {
    since: Instant,
    task: AbortHandle,
    /// What was made for it, once it is healthy.
    built: Option<Built>,
}

impl Candidate {
    /// What was made for it.
    pub(super) fn take(&mut self) -> Option<Built> {
        self.built.take()
    }
}

impl Services {
    /// Checks the targets of new proposals, and forgets those that are gone.
    pub(super) fn check_proposals(self: &Rc<Self>, fleet: &Rc<Fleet>) {
        let proposals = Proposal::all(&fleet.keys());
        self.shared.checked.borrow_mut().retain(|id, checked| {
            let stays = proposals.contains_key(id);
            if !stays {
                checked.task.abort();
                fleet.say(|report| drop(report.ready.remove(id)));
            }
            stays
        });
        for (id, proposal) in proposals {
            let known = self.shared.checked.borrow();
            if known.contains_key(&id) || known.len() >= CHECKED_MAX {
                continue;
            }
            drop(known);
            let (services, fleet, of) = (Rc::clone(self), Rc::clone(fleet), id.clone());
            let task = tokio::task::spawn_local(async move {
                let outcome = services.check_proposal(&proposal).await;
                let readiness = match outcome {
                    Ok(built) => {
                        if let Some(checked) = services.shared.checked.borrow_mut().get_mut(&of) {
                            checked.built = Some(built);
                        }
                        Readiness::Healthy
                    }
                    Err(error) => Readiness::Unusable { error: error.to_string(), details: error.details() },
                };
                fleet.say(|report| drop(report.ready.insert(of, readiness)));
            });
            let checked = Candidate { since: Instant::now(), task: task.abort_handle(), built: None };
            self.shared.checked.borrow_mut().insert(id, checked);
        }
    }

    async fn check_proposal(&self, proposal: &Proposal) -> Result<Built, ServiceError> {
        let service = &proposal.service;
        check_against(&self.site.file(), &service.name, &service.options)?;
        check_options(&service.options)?;
        self.check_tls(service).await?;
        let (writers, readers) = match proposal.is_rollout {
            true => (Group::Rollout, Group::RolloutReaders),
            false => (Group::Active, Group::ActiveReaders),
        };
        self.ready(service.clone(), writers, readers, &proposal.options).await
    }

    /// Removes proposals that nobody carries out any more.
    pub(super) async fn remove_orphans(&self, fleet: &Fleet) {
        let proposals = Proposal::all(&fleet.keys());
        let is_old = |id: &String| {
            self.shared
                .checked
                .borrow()
                .get(id)
                .is_some_and(|checked| checked.since.elapsed() > ORPHANED_AFTER)
        };
        let is_own = |proposal: &Proposal| proposal.owner == fleet.member;
        let own = proposals.iter().filter(|(_, proposal)| is_own(proposal));
        let own = own.filter(|(id, _)| !self.shared.own_proposals.borrow().contains(*id));
        let mut gone: Vec<String> = own.map(|(id, _)| id.clone()).collect();
        let others: BTreeMap<_, _> =
            proposals.iter().filter(|(id, proposal)| !is_own(proposal) && is_old(id)).collect();
        if !others.is_empty()
            && let Ok(members) = fleet.members().await
        {
            let is_orphan = |proposal: &Proposal| !members.0.contains_key(&proposal.owner);
            gone.extend(
                others.iter().filter(|(_, proposal)| is_orphan(proposal)).map(|(id, _)| (*id).clone()),
            );
        }
        for id in gone {
            let _ = fleet.try_commit(&Proposal::withdrawal(&id)).await;
        }
    }
}
