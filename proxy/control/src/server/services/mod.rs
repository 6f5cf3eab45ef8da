//! Carries out commands on services: each one checks, stores the new state in the file, applies it in one step, then
//! drains. A failure changes nothing.

mod adopt;
mod answer;
mod attached;
mod deploy;
mod proposals;
mod shared;
mod slots;
mod targets;

use crate::server::StartError;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use sluice_config::Config;
use sluice_core::service::api::{ListResponse, PauseRequest, RolloutSetRequest, StopRequest};
use sluice_core::service::compile::{self, Group};
use sluice_core::service::duration::GoDuration;
use sluice_core::service::entry::ServiceEntry;
use sluice_core::service::error::ServiceError;
use sluice_core::service::model::{Pause, PauseState, Service};
use sluice_core::service::pages::ServicePages;
use sluice_core::service::rollout::Rollout;
use sluice_core::service::set::{self, check_against};
use sluice_core::service::slot::{Gate, Slot};
use sluice_core::service::state::{Deploys, FleetMark, StateFile};
use sluice_core::service::tls::ServiceTls;
use tokio::sync::Mutex;

use super::site::Site;
use crate::fleet::state::{Keys, SharedServices};
use crate::fleet::{self, Fleet};
pub(crate) use attached::Attached;
use slots::{ActiveSlot, Built};

/// The deployed services, and the commands on them.
pub(super) struct Services {
    site: Rc<Site>,
    file: Option<StateFile>,
    /// The stored state.
    book: RefCell<set::Services>,
    running: RefCell<BTreeMap<String, Running>>,
    /// Held while a change is stored and applied.
    turn: Mutex<()>,
    /// The fleet that they are of; `None` is this host alone.
    fleet: Option<Rc<Fleet>>,
    shared: FleetMemory,
}

/// What is known of the services of a fleet.
#[derive(Default)]
struct FleetMemory {
    /// Everything that the fleet had when it was served last.
    known: RefCell<SharedServices>,
    /// Where that fleet has its store.
    place: RefCell<String>,
    /// The deploys that the served targets are of.
    deploys: RefCell<BTreeMap<String, Deploys>>,
    /// Whether the state file has all this.
    is_saved: Cell<bool>,
    /// Services that cannot be served as they are, and why.
    failed: RefCell<BTreeMap<String, String>>,
    /// Services with requests at targets that were replaced, and the versions that replaced them.
    draining: RefCell<BTreeMap<String, BTreeSet<u64>>>,
    /// When a head was first seen whose services are written piece by piece, by the version of its key.
    written_since: Cell<Option<(u64, tokio::time::Instant)>>,
    /// Proposed targets.
    checked: RefCell<BTreeMap<String, proposals::Candidate>>,
    /// Proposals of commands that this process carries out.
    own_proposals: RefCell<BTreeSet<String>>,
}

/// A running service.
struct Running {
    gate: Arc<Gate>,
    active: ActiveSlot,
    rollout: Option<ActiveSlot>,
}

/// The services of the state file, prepared before anything is served.
pub(super) struct RestoredServices {
    file: Option<StateFile>,
    book: set::Services,
    shared: FleetMemory,
    pub(super) fleet: Option<Rc<Fleet>>,
    built: BTreeMap<String, (Arc<Gate>, Built, Option<Built>)>,
    pub(super) attached: Attached,
}

/// Reads the state file that a configuration names. Blocks while names are looked up.
///
/// # Errors
/// A sentence about a service that conflicts with the configuration file. A damaged file is set aside and logged; no
/// services are deployed then.
pub(super) fn restore(config: &Config) -> Result<RestoredServices, StartError> {
    let file = state_file(config);
    let (book, mark) = match file.as_ref().map(StateFile::load) {
        Some(Ok(loaded)) => loaded,
        Some(Err(error)) => {
            tracing::error!(%error, "cannot restore the deployed services");
            Default::default()
        }
        None => Default::default(),
    };
    let keys = keys_at_start(config)?;
    let fleet = config.store.as_ref().map(|store| Fleet::new(store, keys)).transpose();
    let fleet = fleet.map_err(|error| format!("store: {error}"))?;
    let (mut book, shared) = match &fleet {
        Some(fleet) => adopt::at_start(fleet, book, mark.unwrap_or_default()),
        None => (book, FleetMemory::default()),
    };
    if let Some(fleet) = &fleet {
        leave_out_unusable(&mut book, config, &shared, fleet);
    }
    let (built, attached) = (BTreeMap::new(), Attached::default());
    let mut restored = RestoredServices { file, book, shared, fleet, built, attached };
    for service in restored.book.iter() {
        let name = &service.name;
        let made = |error: ServiceError| format!("the service {name:?} of the state file: {error}");
        let gate = Arc::new(Gate::new(service.pause_controller.clone()));
        let active = Built::new(service, Group::Active, Group::ActiveReaders).map_err(made)?;
        let rollout = service.has_rollout();
        let rollout = rollout.then(|| Built::new(service, Group::Rollout, Group::RolloutReaders));
        let rollout = rollout.transpose().map_err(made)?;
        let slots = (Arc::clone(&active.slot), rollout.as_ref().map(|built| Arc::clone(&built.slot)));
        add(&mut restored.attached, service, slots.0, slots.1, &gate).map_err(made)?;
        restored.built.insert(name.clone(), (gate, active, rollout));
    }
    restored.attached.check(config)?;
    Ok(restored)
}

/// Leaves out services of a fleet that this host cannot serve, so that it serves the others.
fn leave_out_unusable(book: &mut set::Services, config: &Config, shared: &FleetMemory, fleet: &Fleet) {
    let mut usable = Vec::new();
    for service in book.iter() {
        let name = &service.name;
        let made = check_against(config, name, &service.options)
            .and_then(|()| compile::compile(service).map(drop))
            .and_then(|()| ServicePages::load(&service.options.error_page_path).map(drop));
        match made {
            Ok(()) => usable.push(service.clone()),
            Err(error) => {
                tracing::error!(service = name, %error, "cannot serve what the fleet has deployed");
                shared.failed.borrow_mut().insert(name.clone(), error.to_string());
            }
        }
    }
    *book = usable.into_iter().collect();
    let failed = shared.failed.borrow().clone();
    fleet.say(|report| report.failed = failed);
}

impl FleetMemory {
    /// What the state file remembers.
    fn mark(&self) -> FleetMark {
        let place = self.place.borrow();
        self.known.borrow().mark(&place, self.deploys.borrow().clone())
    }
}

/// What the fleet shares now; `None` if there is none, or the store is away.
fn keys_at_start(config: &Config) -> Result<Option<Keys>, StartError> {
    let Some(store) = &config.store else { return Ok(None) };
    // On this thread: another one would keep privileges that this one drops later.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the store cannot be asked: {error}"))?;
    let keys = runtime.block_on(fleet::first(store));
    // A lookup of a name, which cannot be cancelled, may still run.
    runtime.shutdown_background();
    Ok(keys)
}

/// The file that the configuration names, otherwise one in systemd's state directory.
fn state_file(config: &Config) -> Option<StateFile> {
    let kamal = config.services.kamal_state_file.clone();
    let made = || std::env::var_os("STATE_DIRECTORY").filter(|folder| !folder.is_empty());
    let path = config
        .services
        .state_file
        .clone()
        .or_else(|| made().map(|folder| PathBuf::from(folder).join("services.json")))?;
    Some(StateFile { path, kamal })
}

fn add(
    attached: &mut Attached,
    service: &Service,
    active: Arc<Slot>,
    rollout: Option<Arc<Slot>>,
    gate: &Arc<Gate>,
) -> Result<(), ServiceError> {
    let entry = ServiceEntry::new(service, active, rollout, Arc::clone(gate))?;
    // A deploy is refused for this error, but a service from another release's state file must still be served.
    let tls = ServiceTls::of(service).unwrap_or_else(|error| {
        tracing::warn!(service = service.name, "the service is served without TLS: {error}");
        ServiceTls::Off
    });
    attached.add(entry, compile::compile(service)?.routes, tls);
    Ok(())
}

impl Services {
    /// Starts managing the restored services. Needs the control plane's runtime.
    pub(super) fn new(site: Rc<Site>, restored: RestoredServices) -> Self {
        let running = restored.built.into_iter().map(|(name, (gate, active, rollout))| {
            (name, Running { gate, active: active.keep(), rollout: rollout.map(Built::keep) })
        });
        Self {
            site,
            file: restored.file,
            book: RefCell::new(restored.book),
            running: RefCell::new(running.collect()),
            turn: Mutex::default(),
            fleet: restored.fleet,
            shared: restored.shared,
        }
    }

    /// The fleet that they are of.
    pub(in crate::server) fn fleet(&self) -> Option<&Rc<Fleet>> {
        self.fleet.as_ref()
    }

    fn list(&self) -> ListResponse {
        ListResponse { services: self.book.borrow().list() }
    }

    fn get(&self, name: &str) -> Result<Service, ServiceError> {
        self.book.borrow().get(name).cloned()
    }

    async fn pause(&self, name: &str, request: PauseRequest) -> Result<(), ServiceError> {
        self.hold(name, Pause::paused(request.pause_timeout), request.drain_timeout).await
    }

    async fn stop(&self, name: &str, request: StopRequest) -> Result<(), ServiceError> {
        self.hold(name, Pause::stopped(request.message), request.drain_timeout).await
    }

    async fn resume(&self, name: &str) -> Result<(), ServiceError> {
        match &self.fleet {
            Some(fleet) => {
                let what = (name, "resumption");
                self.hold_everywhere(fleet, what, None, Pause::default()).await
            }
            None => self.set_gate(name, Pause::default()).await,
        }
    }

    async fn hold(&self, name: &str, pause: Pause, drain: GoDuration) -> Result<(), ServiceError> {
        if let Some(fleet) = &self.fleet {
            let what = if pause.state == PauseState::Paused { "pause" } else { "stop" };
            return self.hold_everywhere(fleet, (name, what), Some(drain), pause).await;
        }
        self.set_gate(name, pause).await?;
        let slots: Vec<_> = {
            let running = self.running.borrow();
            let kept =
                running.get(name).into_iter().flat_map(|one| [Some(&one.active), one.rollout.as_ref()]);
            kept.flatten().map(|kept| Arc::clone(&kept.slot)).collect()
        };
        let drains = slots.iter().map(|slot| slot.drain(drain.to_std()));
        futures_util::future::join_all(drains).await;
        Ok(())
    }

    async fn set_gate(&self, name: &str, pause: Pause) -> Result<(), ServiceError> {
        let _turn = self.turn.lock().await;
        let service = Service { pause_controller: pause.clone(), ..self.get(name)? };
        let mut book = self.book.borrow().clone();
        book.set(service);
        self.save(book).await?;
        if let Some(running) = self.running.borrow().get(name) {
            running.gate.set(pause);
        }
        Ok(())
    }

    async fn remove(&self, name: &str) -> Result<(), ServiceError> {
        if let Some(fleet) = &self.fleet {
            return self.remove_everywhere(fleet, name).await;
        }
        let _turn = self.turn.lock().await;
        let mut book = self.book.borrow().clone();
        book.remove(name)?;
        self.save(book).await?;
        self.attach().await?;
        self.retire_all(&[name.to_owned()]);
        Ok(())
    }

    async fn rollout_set(&self, name: &str, request: RolloutSetRequest) -> Result<(), ServiceError> {
        let rollout = Rollout::new(request.percentage, request.allowlist);
        self.set_rollout(name, Some(rollout)).await
    }

    async fn rollout_stop(&self, name: &str) -> Result<(), ServiceError> {
        self.set_rollout(name, None).await
    }

    async fn set_rollout(&self, name: &str, rollout: Option<Rollout>) -> Result<(), ServiceError> {
        if let Some(fleet) = &self.fleet {
            let set = |service: &mut Service| set_rollout_of(service, rollout.clone());
            let what = (name, "rollout setting");
            return self.change_everywhere(fleet, what, None, set).await;
        }
        let _turn = self.turn.lock().await;
        let mut service = self.get(name)?;
        set_rollout_of(&mut service, rollout)?;
        let mut book = self.book.borrow().clone();
        book.set(service);
        self.save(book).await?;
        self.attach().await
    }

    /// Stores a new state in the file first: a state that cannot be stored is not applied.
    async fn save(&self, book: set::Services) -> Result<(), ServiceError> {
        if let Some(file) = self.file.clone() {
            let kept = book.clone();
            let mark = self.fleet.as_ref().map(|_| self.shared.mark());
            // A disk that stalls must not stall the control plane.
            let saved = tokio::task::spawn_blocking(move || file.save(&kept, mark.as_ref())).await;
            saved.map_err(std::io::Error::other)??;
        }
        self.book.replace(book);
        Ok(())
    }

    /// Applies the state in one step.
    async fn attach(&self) -> Result<(), ServiceError> {
        let book = self.book.borrow().clone();
        let attached = self.attached(&book, &[])?;
        self.site.attach(attached).await.map_err(|error| ServiceError::Invalid(error.to_string()))
    }
}

fn set_rollout_of(service: &mut Service, rollout: Option<Rollout>) -> Result<(), ServiceError> {
    if rollout.is_some() && !service.has_rollout() {
        return Err(ServiceError::RolloutTargetNotSet);
    }
    service.rollout_controller = rollout;
    Ok(())
}
