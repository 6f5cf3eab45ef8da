//! Serves what a fleet has deployed: takes over what has changed in the shared state, and checks targets that are
//! proposed there.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::service::compile::Group;
use sluice_core::service::duration::GoDuration;
use sluice_core::service::error::ServiceError;
use sluice_core::service::model::{PauseState, Service};
use sluice_core::service::set::{self, check_against};
use sluice_core::service::slot::{Gate, Slot};
use sluice_core::service::state::Deploys;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use super::slots::{ActiveSlot, Built};
use super::{Running, Services};
use crate::fleet::state::{Proposal, Record, SharedServices};
use crate::fleet::{ALL, Fleet, Readiness};
use crate::store::Outcome;

/// After this time, what has failed is tried again, and what nobody needs is removed.
const AGAIN: Duration = Duration::from_secs(5);
/// A proposal is older than this before anybody but its owner removes it.
const ORPHANED_AFTER: Duration = Duration::from_secs(60);

/// A proposal that this member has seen.
pub(super) struct Checked {
    since: Instant,
    task: AbortHandle,
    /// What was made for it, once it is healthy.
    built: Option<Built>,
}

/// What becomes of one service.
struct Next {
    record: Record,
    gate: Arc<Gate>,
    active: Option<Built>,
    rollout: Option<Built>,
    /// Whether it was served before, with other settings of its pause.
    is_held: bool,
}

impl Services {
    /// Follows the fleet without end.
    pub(in crate::server) async fn follow_fleet(self: Rc<Self>, fleet: Rc<Fleet>) {
        let mut changes = fleet.changes();
        loop {
            // A handover reads the state itself; if it fails, it is made up for here.
            if fleet.has_seen() && !self.site.changes.is_handing_over() {
                self.adopt(&fleet).await;
                self.check_proposals(&fleet);
            }
            if timeout(AGAIN, changes.changed()).await.is_err() {
                self.remove_orphans(&fleet).await;
            }
        }
    }

    /// Takes over the shared state, or gives the store what it has lost.
    async fn adopt(self: &Rc<Self>, fleet: &Rc<Fleet>) {
        let shared = SharedServices::of(&fleet.keys());
        let mark = self.shared.mark.borrow().clone();
        let (shared, damaged) = match shared {
            Some((shared, damaged)) if !shared.is_older_than(&mark) => (shared, damaged),
            Some(_) => return self.give_back(fleet).await,
            // A fleet begins with the services of the first host that has some.
            None if mark.version > 0 || self.book.borrow().iter().next().is_some() => {
                return self.give_back(fleet).await;
            }
            None => return,
        };
        if shared.mark() == mark && self.shared.failed.borrow().is_empty() {
            // Said again after a reconnect.
            return self.report(fleet);
        }
        if shared.fleet != mark.fleet {
            self.leave_behind(&shared).await;
        }
        let (version, failed) = (shared.version, damaged.into_iter().map(|one| (one.clone(), one)).collect());
        let drains = self.serve(shared, failed).await;
        self.settle_when(fleet, version, drains);
        self.report(fleet);
    }

    /// Gives the store the services that this member knows: it has lost them, or has older ones.
    async fn give_back(&self, fleet: &Fleet) {
        let known = SharedServices::remembered(self.book.borrow().iter(), &self.shared.mark.borrow());
        let commits = known.publish(&fleet.keys(), fleet.name());
        tracing::warn!(
            version = known.version,
            services = known.records.len(),
            "the store lacks services that this member knows; it gets them"
        );
        for commit in commits {
            match fleet.commit(&commit).await {
                Ok(Outcome::Made) => {}
                // Another member was faster.
                Ok(Outcome::Conflict) => return,
                Err(error) => return tracing::warn!(%error, "the store did not take the services"),
            }
        }
    }

    /// Services of a host, or of another fleet, that it does not serve from now on: their file is kept.
    async fn leave_behind(&self, shared: &SharedServices) {
        let gone = |service: &&Service| !shared.records.contains_key(&service.name);
        let gone: Vec<_> = self.book.borrow().iter().filter(gone).map(|one| one.name.clone()).collect();
        if gone.is_empty() {
            return;
        }
        let services = gone.join(", ");
        tracing::warn!(services, "these services are not of the fleet, and are no longer served");
        if let Some(file) = self.file.clone() {
            let book = self.book.borrow().clone();
            let kept = tokio::task::spawn_blocking(move || file.keep_aside(&book)).await;
            match kept.map_err(std::io::Error::other).flatten() {
                Ok(path) => tracing::warn!(path = %path.display(), "they are kept in a file"),
                Err(error) => tracing::warn!(%error, "they cannot be kept in a file"),
            }
        }
    }

    /// Serves these services. Returns the drains of what they replace.
    async fn serve(&self, shared: SharedServices, mut failed: BTreeMap<String, String>) -> Vec<Drain> {
        let _turn = self.turn.lock().await;
        let mut next = Vec::new();
        let mut mark = shared.mark();
        let mut book = set::Services::default();
        // Some settings of services follow from those of others.
        let all: set::Services = shared.records.values().map(|record| record.service.clone()).collect();
        for mut record in shared.records.into_values() {
            let name = record.service.name.clone();
            if let Ok(service) = all.get(&name) {
                record.service.clone_from(service);
            }
            match self.prepare(record).await {
                Ok(Some(one)) => {
                    book.set(one.record.service.clone());
                    next.push(one);
                }
                Ok(None) => drop(self.get(&name).map(|same| book.set(same))),
                Err(error) => {
                    tracing::error!(service = name, %error, "cannot serve what the fleet has deployed");
                    failed.insert(name.clone(), error.to_string());
                    // What it has is better than nothing, and is tried again.
                    let known = self.shared.mark.borrow().deploys.get(&name).cloned().unwrap_or_default();
                    mark.deploys.insert(name.clone(), known);
                    let _ = self.get(&name).map(|before| book.set(before));
                }
            }
        }
        let gone: Vec<String> = self.book.borrow().iter().map(|one| one.name.clone()).collect();
        let gone: Vec<String> = gone.into_iter().filter(|name| book.get(name).is_err()).collect();
        self.shared.mark.replace(mark);
        if let Err(error) = self.save(book).await {
            // The store has it; only a restart while the store is away would miss it.
            tracing::error!(%error, "the services of the fleet are served, but not stored here");
        }
        let mut drains = self.install_all(next);
        let removed: Vec<_> = gone.iter().filter_map(|name| self.running.borrow_mut().remove(name)).collect();
        if let Err(error) = self.attach().await {
            tracing::error!(%error, "cannot serve what the fleet has deployed");
            failed.insert(ALL.to_owned(), error.to_string());
        }
        for Running { gate, active, rollout } in removed {
            // Paused requests are routed again, and find no route.
            gate.set(sluice_core::service::model::Pause::default());
            let slots = [Some(active), rollout].into_iter().flatten();
            // As on one host, nobody waits for what is removed.
            slots.for_each(|slot| {
                slot.replace();
                tokio::task::spawn_local(async move {
                    slot.drain(sluice_core::service::options::DRAIN_TIMEOUT).await;
                });
            });
        }
        drains.iter().for_each(Drain::begin);
        self.shared.failed.replace(failed);
        drains.retain(|drain| !drain.is_nothing());
        drains
    }

    /// What becomes of a service; `None` if nothing.
    async fn prepare(&self, record: Record) -> Result<Option<Next>, ServiceError> {
        let name = record.service.name.clone();
        check_against(&self.site.file(), &name, &record.service.options)?;
        let before = self.get(&name).ok();
        let known = self.shared.mark.borrow().deploys.get(&name).cloned().unwrap_or_default();
        let is_running = self.running.borrow().contains_key(&name);
        if is_running && before.as_ref() == Some(&record.service) && known == record.deploys {
            return Ok(None);
        }
        let Deploys { active, rollout } = &record.deploys;
        let active = match is_running && *active == known.active {
            true => None,
            false => Some(self.built(active, &record.service, Group::Active, Group::ActiveReaders).await?),
        };
        let is_new = record.service.has_rollout() && !(is_running && *rollout == known.rollout);
        let rollout = match is_new {
            false => None,
            true => Some(self.built(rollout, &record.service, Group::Rollout, Group::RolloutReaders).await?),
        };
        let gate = self.running.borrow().get(&name).map(|running| Arc::clone(&running.gate));
        let pause = &record.service.pause_controller;
        let is_held = before.is_some_and(|before| before.pause_controller != *pause);
        let gate = gate.unwrap_or_else(|| Arc::new(Gate::new(pause.clone())));
        Ok(Some(Next { record, gate, active, rollout, is_held }))
    }

    /// What was checked for a proposal; otherwise it is made now, without a check: the fleet has decided.
    async fn built(
        &self,
        proposal: &str,
        service: &Service,
        writers: Group,
        readers: Group,
    ) -> Result<Built, ServiceError> {
        let checked =
            self.shared.checked.borrow_mut().get_mut(proposal).and_then(|checked| checked.built.take());
        if let Some(built) = checked {
            return Ok(built);
        }
        let service = service.clone();
        // The system's resolver blocks.
        let built = tokio::task::spawn_blocking(move || Built::new(&service, writers, readers)).await;
        built.map_err(std::io::Error::other)?
    }

    /// Replaces what has changed. Returns the drains of what it replaces.
    fn install_all(&self, next: Vec<Next>) -> Vec<Drain> {
        let mut all = self.running.borrow_mut();
        let mut drains = Vec::new();
        for Next { record, gate, active, rollout, is_held } in next {
            let mut drain = Drain { patience: record.drain_timeout, ..Drain::default() };
            let name = record.service.name.clone();
            match all.get_mut(&name) {
                Some(running) => {
                    if let Some(built) = active {
                        drain.replaced.push(std::mem::replace(&mut running.active, built.keep()));
                    }
                    if let Some(built) = rollout {
                        drain.replaced.extend(running.rollout.replace(built.keep()));
                    }
                }
                None => {
                    let Some(active) = active.map(Built::keep) else { continue };
                    let rollout = rollout.map(Built::keep);
                    all.insert(name.clone(), Running { gate: Arc::clone(&gate), active, rollout });
                }
            }
            let Some(running) = all.get(&name) else { continue };
            if is_held {
                gate.set(record.service.pause_controller.clone());
                if record.service.pause_controller.state != PauseState::Running {
                    let slots = [Some(&running.active), running.rollout.as_ref()].into_iter().flatten();
                    drain.held.extend(slots.map(|slot| Arc::clone(&slot.slot)));
                }
            }
            super::targets::apply(&record.service, running);
            drains.push(drain);
        }
        drains
    }

    /// Says what this member serves.
    fn report(&self, fleet: &Fleet) {
        let (applied, failed) = (self.shared.mark.borrow().version, self.shared.failed.borrow().clone());
        let settled = self.shared.settling.borrow().first().map_or(applied, |first| first - 1);
        fleet.say(|report| (report.applied, report.settled, report.failed) = (applied, settled, failed));
    }

    /// Says so once all drains of a version have ended.
    fn settle_when(self: &Rc<Self>, fleet: &Rc<Fleet>, version: u64, drains: Vec<Drain>) {
        if drains.is_empty() {
            return;
        }
        self.shared.settling.borrow_mut().insert(version);
        let (services, fleet) = (Rc::clone(self), Rc::clone(fleet));
        tokio::task::spawn_local(async move {
            futures_util::future::join_all(drains.into_iter().map(Drain::run)).await;
            services.shared.settling.borrow_mut().remove(&version);
            services.report(&fleet);
        });
    }

    /// Checks the targets of new proposals, and forgets those that are gone.
    fn check_proposals(self: &Rc<Self>, fleet: &Rc<Fleet>) {
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
            if self.shared.checked.borrow().contains_key(&id) {
                continue;
            }
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
            let checked = Checked { since: Instant::now(), task: task.abort_handle(), built: None };
            self.shared.checked.borrow_mut().insert(id, checked);
        }
    }

    async fn check_proposal(&self, proposal: &Proposal) -> Result<Built, ServiceError> {
        let service = &proposal.service;
        check_against(&self.site.file(), &service.name, &service.options)?;
        self.check_tls(service).await?;
        let (writers, readers) = match proposal.is_rollout {
            true => (Group::Rollout, Group::RolloutReaders),
            false => (Group::Active, Group::ActiveReaders),
        };
        self.ready(service.clone(), writers, readers, &proposal.options).await
    }

    /// Removes proposals that nobody carries out any more.
    async fn remove_orphans(&self, fleet: &Fleet) {
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

/// What is replaced or paused, until its requests have ended.
#[derive(Default)]
pub(super) struct Drain {
    patience: GoDuration,
    replaced: Vec<ActiveSlot>,
    held: Vec<Arc<Slot>>,
}

impl Drain {
    /// From here on, requests that still use the old snapshot are routed again.
    fn begin(&self) {
        self.replaced.iter().for_each(ActiveSlot::replace);
    }

    fn is_nothing(&self) -> bool {
        self.replaced.is_empty() && self.held.is_empty()
    }

    async fn run(self) {
        let patience = self.patience;
        let replaced = self.replaced.iter().map(|slot| slot.drain(patience));
        let held = self.held.iter().map(|slot| slot.drain(patience.to_std()));
        futures_util::future::join(
            futures_util::future::join_all(replaced),
            futures_util::future::join_all(held),
        )
        .await;
    }
}
