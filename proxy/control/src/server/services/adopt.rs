//! Serves what a fleet has deployed: takes over what has changed in the shared state, and gives the store what it has
//! lost.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::service::compile::Group;
use sluice_core::service::duration::GoDuration;
use sluice_core::service::error::ServiceError;
use sluice_core::service::model::{Pause, PauseState, Service};
use sluice_core::service::options::DRAIN_TIMEOUT;
use sluice_core::service::set::{self, check_against};
use sluice_core::service::slot::{Gate, Slot};
use sluice_core::service::state::{Deploys, FleetMark};
use tokio::time::{Instant, timeout};

use super::attached::Attached;
use super::slots::{ActiveSlot, Built};
use super::{FleetMemory, Running, Services, add, targets};
use crate::fleet::state::{Head, Keys, Record, SharedServices, fingerprint, new_id};
use crate::fleet::{ALL, Fleet, Report};
use crate::store::{Commit, Outcome};

/// After this time, what has failed is tried again, and what nobody needs is removed.
const AGAIN: Duration = Duration::from_secs(5);
/// A member that writes services piece by piece is believed to do so for this long.
const WRITES_MAX: Duration = Duration::from_secs(20);

/// What becomes of one service.
pub(super) struct Next {
    record: Record,
    gate: Arc<Gate>,
    active: Option<Built>,
    rollout: Option<Built>,
    /// Whether its pause has changed.
    is_held: bool,
}

/// What is to be served, and what is not.
#[derive(Default)]
struct Plan {
    next: Vec<Next>,
    services: Vec<Service>,
    deploys: BTreeMap<String, Deploys>,
    failed: BTreeMap<String, String>,
}

/// What this host serves first: what the fleet has, if the store has answered and has lost nothing; otherwise what it
/// remembers. Services of another fleet, or of this host alone, are replaced later, with care.
pub(super) fn at_start(fleet: &Fleet, book: set::Services, mark: FleetMark) -> (set::Services, FleetMemory) {
    let known = SharedServices::remembered(&mark);
    let stored = SharedServices::of(&fleet.keys());
    let is_new = known.is_nothing() && book.iter().next().is_none();
    let is_ours = |stored: &SharedServices| {
        is_new || (!known.is_nothing() && mark.place == fleet.place() && stored.follows(&known))
    };
    let Some(stored) = stored.filter(is_ours) else {
        let shared = FleetMemory {
            known: RefCell::new(known),
            place: RefCell::new(mark.place),
            deploys: RefCell::new(mark.deploys),
            is_saved: Cell::new(true),
            ..FleetMemory::default()
        };
        return (book, shared);
    };
    // Those that cannot be read stay as they are here.
    let kept = book.iter().filter(|one| stored.unreadable.contains_key(&one.name)).cloned();
    let served = stored.records.values().map(|record| record.service.clone()).chain(kept).collect();
    let deploys =
        stored.records.iter().map(|(name, record)| (name.clone(), record.deploys.clone())).collect();
    let shared = FleetMemory {
        known: RefCell::new(stored),
        place: RefCell::new(fleet.place()),
        deploys: RefCell::new(deploys),
        ..FleetMemory::default()
    };
    (served, shared)
}

impl Services {
    /// Follows the fleet without end.
    pub(in crate::server) async fn follow_fleet(self: Rc<Self>, fleet: Rc<Fleet>) {
        let mut changes = fleet.changes();
        let (mut last, mut tidied) = (None, Instant::now());
        loop {
            // A handover reads the state itself; if it fails, it is made up for here.
            if fleet.has_seen() && !self.site.changes.is_handing_over() {
                let now = Some(fingerprint(&fleet.keys()));
                // Other keys change as well: bans, certificates.
                if now != last || !self.is_up_to_date(&fleet) {
                    self.adopt(&fleet).await;
                    self.check_proposals(&fleet);
                    last = now;
                }
            }
            let _ = timeout(AGAIN, changes.changed()).await;
            if tidied.elapsed() >= AGAIN && fleet.trouble().is_none() {
                tidied = Instant::now();
                self.remove_orphans(&fleet).await;
            }
        }
    }

    /// Whether nothing is left to try again.
    fn is_up_to_date(&self, fleet: &Fleet) -> bool {
        let known = self.shared.known.borrow();
        let has_it = match Head::of(&fleet.keys()) {
            Some(head) => head.writer.is_none() && head.fleet == known.fleet && head.version == known.version,
            // Otherwise the store has yet to get them.
            None => known.is_nothing() && self.book.borrow().iter().next().is_none(),
        };
        has_it && self.shared.failed.borrow().is_empty() && self.shared.is_saved.get()
    }

    /// Takes over the shared state, or gives the store what it has lost.
    async fn adopt(self: &Rc<Self>, fleet: &Rc<Fleet>) {
        let keys = fleet.keys().clone();
        let known = match self.shared.known.borrow().clone() {
            known if known.is_nothing() => SharedServices::of_host(self.book.borrow().iter()),
            known => known,
        };
        let place = self.shared.place.borrow().clone();
        let is_elsewhere = known.version > 0 && place != fleet.place();
        let stored = match SharedServices::of(&keys) {
            Some(stored) => stored,
            None if self.is_written_by_another(fleet, &keys).await => return,
            // A fleet begins with the services of the first host that has some.
            None if known.is_nothing() => return self.report(fleet),
            None => return self.give_back(fleet, &keys, &SharedServices::found(&keys), &known).await,
        };
        if stored == known
            && !is_elsewhere
            && self.shared.failed.borrow().is_empty()
            && self.shared.is_saved.get()
        {
            // Only a proposal has changed.
            return self.report(fleet);
        }
        if known.version == 0 || is_elsewhere {
            self.leave_behind(&stored).await;
        } else if !stored.follows(&known) {
            let (merged, _) = stored.merge(&known);
            if !merged.is_like(&stored) {
                return self.give_back(fleet, &keys, &stored, &known).await;
            }
        }
        let drains = self.serve(fleet, stored).await;
        self.settle(fleet, drains);
        self.report(fleet);
    }

    /// Whether another member writes services now, piece by piece.
    async fn is_written_by_another(&self, fleet: &Fleet, keys: &Keys) -> bool {
        let Some(writer) = Head::of(keys).and_then(|head| head.writer) else {
            self.shared.written_since.set(None);
            return false;
        };
        let item = Head::item_version(keys);
        let since = match self.shared.written_since.get() {
            Some((of, since)) if of == item => since,
            _ => Instant::now(),
        };
        self.shared.written_since.set(Some((item, since)));
        if writer == fleet.member || since.elapsed() > WRITES_MAX {
            return false;
        }
        fleet.members().await.is_ok_and(|members| members.0.contains_key(&writer))
    }

    /// Gives the store the services that this member knows: it has lost them, or has others.
    async fn give_back(&self, fleet: &Fleet, keys: &Keys, stored: &SharedServices, known: &SharedServices) {
        let (merged, dropped) = stored.merge(known);
        tracing::warn!(
            services = merged.records.len(),
            "the store lacks services that this member knows; it gets them"
        );
        if !dropped.is_empty() {
            let services = dropped.join(", ");
            tracing::warn!(services, "these services are left out: newer ones have their hosts and paths");
        }
        let id = new_id();
        let (head, announcement) = merged.announcement(keys, &fleet.member, &id);
        if !made(fleet.commit(&announcement).await) {
            return;
        }
        let until = Instant::now() + fleet.confirm_timeout();
        if fleet.sees(until, |head| head.has(&id)).await.is_none() {
            return;
        }
        let pieces: Vec<Commit> = merged.pieces(&fleet.keys(), head);
        for piece in pieces {
            if !made(fleet.commit(&piece).await) {
                return;
            }
        }
    }

    /// Services of a host, or of another fleet, that it does not serve from now on: their file is kept.
    async fn leave_behind(&self, stored: &SharedServices) {
        let is_other = |service: &&Service| {
            stored
                .records
                .get(&service.name)
                .is_none_or(|record| record.service.targets() != service.targets())
        };
        let gone: Vec<_> = self.book.borrow().iter().filter(is_other).map(|one| one.name.clone()).collect();
        if gone.is_empty() {
            return;
        }
        let services = gone.join(", ");
        tracing::warn!(services, "these services are not those of the fleet, and are no longer served");
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
    async fn serve(&self, fleet: &Fleet, stored: SharedServices) -> Vec<Drain> {
        let _turn = self.turn.lock().await;
        let version = stored.version;
        let mut plan = self.plan(&stored).await;
        let book: set::Services = std::mem::take(&mut plan.services).into_iter().collect();
        let gone: Vec<String> = self.book.borrow().iter().map(|one| one.name.clone()).collect();
        let gone: Vec<String> = gone.into_iter().filter(|name| book.get(name).is_err()).collect();
        // Nothing is replaced before all of it can be.
        if !plan.next.is_empty() || !gone.is_empty() {
            let attached = match self.attached(&book, &plan.next) {
                Ok(attached) => self.site.attach(attached).await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            if let Err(error) = attached {
                tracing::error!(error, "cannot serve what the fleet has deployed");
                self.shared.failed.replace([(ALL.to_owned(), error)].into());
                return Vec::new();
            }
        }
        let drains = self.install_all(std::mem::take(&mut plan.next), version);
        self.retire_all(&gone);
        self.shared.known.replace(stored);
        self.shared.place.replace(fleet.place());
        self.shared.deploys.replace(plan.deploys);
        self.shared.failed.replace(plan.failed);
        self.book.replace(book.clone());
        let saved = self.save(book).await;
        if let Err(error) = &saved
            && self.shared.is_saved.get()
        {
            // The store has it; only a restart while the store is away would miss it.
            tracing::error!(%error, "the services of the fleet are served, but not stored here");
        }
        self.shared.is_saved.set(saved.is_ok());
        drains
    }

    /// What is to be done to serve these services.
    async fn plan(&self, stored: &SharedServices) -> Plan {
        let mut plan = Plan::default();
        // Some settings of services follow from those of others.
        let all: set::Services = stored.records.values().map(|record| record.service.clone()).collect();
        for (name, record) in &stored.records {
            let mut record = record.clone();
            if let Ok(service) = all.get(name) {
                record.service.clone_from(service);
            }
            match self.prepare(record.clone()).await {
                Ok(next) => {
                    plan.services.push(record.service);
                    plan.deploys.insert(name.clone(), record.deploys);
                    plan.next.extend(next);
                }
                Err(error) => self.keep_as_it_is(&mut plan, name, error.to_string()),
            }
        }
        for name in stored.unreadable.keys() {
            self.keep_as_it_is(&mut plan, name, "this release cannot read what is stored".to_owned());
        }
        plan
    }

    /// What there is of a service is better than nothing, and it is tried again.
    fn keep_as_it_is(&self, plan: &mut Plan, name: &str, error: String) {
        if self.shared.failed.borrow().get(name) != Some(&error) {
            tracing::error!(service = name, error, "cannot serve what the fleet has deployed");
        }
        plan.failed.insert(name.to_owned(), error);
        if let Ok(before) = self.get(name) {
            plan.services.push(before);
            let deploys = self.shared.deploys.borrow().get(name).cloned().unwrap_or_default();
            plan.deploys.insert(name.to_owned(), deploys);
        }
    }

    /// What becomes of a service; `None` if nothing.
    async fn prepare(&self, record: Record) -> Result<Option<Next>, ServiceError> {
        let name = record.service.name.clone();
        check_against(&self.site.file(), &name, &record.service.options)?;
        super::deploy::check_options(&record.service.options)?;
        let before = self.get(&name).ok();
        let known = self.shared.deploys.borrow().get(&name).cloned().unwrap_or_default();
        let (is_running, has_rollout) = {
            let running = self.running.borrow();
            let running = running.get(&name);
            (running.is_some(), running.is_some_and(|running| running.rollout.is_some()))
        };
        let is_same = before.as_ref() == Some(&record.service) && known == record.deploys;
        if is_running && is_same && has_rollout == record.service.has_rollout() {
            return Ok(None);
        }
        let Deploys { active, rollout } = &record.deploys;
        let same_targets = before.as_ref().is_some_and(|before| has_same_targets(before, &record.service));
        let active = match is_running && *active == known.active && same_targets {
            true => None,
            false => Some(self.built(active, &record.service, Group::Active, Group::ActiveReaders).await?),
        };
        let is_new =
            record.service.has_rollout() && !(has_rollout && *rollout == known.rollout && same_targets);
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
        let checked = self.shared.checked.borrow_mut().get_mut(proposal).and_then(|checked| checked.take());
        if let Some(built) = checked {
            return Ok(built);
        }
        let service = service.clone();
        // The system's resolver blocks.
        let built = tokio::task::spawn_blocking(move || Built::new(&service, writers, readers)).await;
        built.map_err(std::io::Error::other)?
    }

    /// These services as they will be, with what is prepared.
    pub(super) fn attached(&self, book: &set::Services, next: &[Next]) -> Result<Attached, ServiceError> {
        let running = self.running.borrow();
        let mut attached = Attached::default();
        for service in book.iter() {
            let next = next.iter().find(|next| next.record.service.name == service.name);
            let before = running.get(&service.name);
            let slot_of = |built: &Built| Arc::clone(&built.slot);
            let slot = |slot: &ActiveSlot| Arc::clone(&slot.slot);
            let active = next.and_then(|next| next.active.as_ref()).map(slot_of);
            let Some(active) = active.or_else(|| before.map(|before| slot(&before.active))) else { continue };
            let rollout = next.and_then(|next| next.rollout.as_ref()).map(slot_of);
            let rollout = rollout.or_else(|| before.and_then(|before| before.rollout.as_ref()).map(slot));
            let rollout = rollout.filter(|_| service.has_rollout());
            let gate = next.map(|next| &next.gate).or_else(|| before.map(|before| &before.gate));
            let Some(gate) = gate else { continue };
            add(&mut attached, service, active, rollout, gate)?;
        }
        Ok(attached)
    }

    /// Replaces what has changed. Returns the drains of what it replaces.
    fn install_all(&self, next: Vec<Next>, version: u64) -> Vec<Drain> {
        let mut all = self.running.borrow_mut();
        let mut drains = Vec::new();
        for Next { record, gate, active, rollout, is_held } in next {
            let name = record.service.name.clone();
            let patience = record.drain_timeout;
            let mut drain = Drain { service: name.clone(), version, patience, ..Drain::default() };
            match all.get_mut(&name) {
                Some(running) => {
                    if let Some(built) = active {
                        drain.replaced.push(std::mem::replace(&mut running.active, built.keep()));
                    }
                    if let Some(built) = rollout {
                        drain.replaced.extend(running.rollout.replace(built.keep()));
                    } else if !record.service.has_rollout() {
                        drain.replaced.extend(running.rollout.take());
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
            targets::apply(&record.service, running);
            drains.push(drain);
        }
        // From here on, requests that still use the old snapshot are routed again.
        drains.iter().flat_map(|drain| &drain.replaced).for_each(ActiveSlot::replace);
        drains.retain(|drain| !drain.replaced.is_empty() || !drain.held.is_empty());
        drains
    }

    /// Ends services that are gone. Nobody waits for what is removed.
    pub(super) fn retire_all(&self, gone: &[String]) {
        let removed: Vec<_> = gone.iter().filter_map(|name| self.running.borrow_mut().remove(name)).collect();
        for Running { gate, active, rollout } in removed {
            // Paused requests are routed again, and find no route.
            gate.set(Pause::default());
            for slot in [Some(active), rollout].into_iter().flatten() {
                slot.replace();
                tokio::task::spawn_local(async move { slot.drain(DRAIN_TIMEOUT).await });
            }
        }
    }

    /// Says what this member serves.
    fn report(&self, fleet: &Fleet) {
        let known = self.shared.known.borrow();
        let draining = self.shared.draining.borrow();
        let first = draining.iter().filter_map(|(name, versions)| Some((name.clone(), *versions.first()?)));
        let (draining, failed) = (first.collect(), self.shared.failed.borrow().clone());
        let (applied, of) = (known.version, known.fleet.clone());
        fleet.say(|report| *report = Report { fleet: of, applied, draining, failed, ..report.clone() });
    }

    /// Says so once the requests of each drain have ended.
    fn settle(self: &Rc<Self>, fleet: &Rc<Fleet>, drains: Vec<Drain>) {
        for drain in drains {
            let (name, version) = (drain.service.clone(), drain.version);
            self.shared.draining.borrow_mut().entry(name.clone()).or_default().insert(version);
            let (services, fleet) = (Rc::clone(self), Rc::clone(fleet));
            tokio::task::spawn_local(async move {
                drain.run().await;
                let mut draining = services.shared.draining.borrow_mut();
                if let Some(versions) = draining.get_mut(&name) {
                    versions.remove(&version);
                }
                draining.retain(|_, versions| !versions.is_empty());
                drop(draining);
                services.report(&fleet);
            });
        }
    }
}

/// Whether two states of a service have the same targets, reached in the same way.
fn has_same_targets(before: &Service, next: &Service) -> bool {
    (&before.options, &before.target_options) == (&next.options, &next.target_options)
        && (&before.active_targets, &before.active_readers) == (&next.active_targets, &next.active_readers)
        && (&before.rollout_targets, &before.rollout_readers)
            == (&next.rollout_targets, &next.rollout_readers)
}

/// Whether a change is made; why not is logged.
fn made(outcome: Result<Outcome, crate::store::StoreError>) -> bool {
    match outcome {
        Ok(Outcome::Made) => true,
        // Another member was faster.
        Ok(Outcome::Conflict) => false,
        Err(error) => {
            tracing::warn!(%error, "the store did not take the services");
            false
        }
    }
}

/// What is replaced or paused, until its requests have ended.
#[derive(Default)]
pub(super) struct Drain {
    service: String,
    version: u64,
    patience: GoDuration,
    replaced: Vec<ActiveSlot>,
    held: Vec<Arc<Slot>>,
}

impl Drain {
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
