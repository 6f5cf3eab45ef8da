//! Carries out commands on services: each one checks, stores the new state in the file, applies it in one step, then
//! drains. A failure changes nothing.

mod answer;
mod attached;
mod deploy;
mod slots;
mod targets;

use crate::server::StartError;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use sluice_config::Config;
use sluice_core::service::api::{ListResponse, PauseRequest, RolloutSetRequest, StopRequest};
use sluice_core::service::compile::{self, Group};
use sluice_core::service::duration::GoDuration;
use sluice_core::service::entry::ServiceEntry;
use sluice_core::service::error::ServiceError;
use sluice_core::service::model::{Pause, Service};
use sluice_core::service::options::DRAIN_TIMEOUT;
use sluice_core::service::rollout::Rollout;
use sluice_core::service::set;
use sluice_core::service::slot::{Gate, Slot};
use sluice_core::service::state::StateFile;
use sluice_core::service::tls::ServiceTls;
use tokio::sync::Mutex;

use super::site::Site;
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
    let book = match file.as_ref().map(StateFile::load) {
        Some(Ok(book)) => book,
        Some(Err(error)) => {
            tracing::error!(%error, "cannot restore the deployed services");
            set::Services::default()
        }
        None => set::Services::default(),
    };
    let mut restored = RestoredServices { file, book, built: BTreeMap::new(), attached: Attached::default() };
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
        }
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
        self.set_gate(name, Pause::default()).await
    }

    async fn hold(&self, name: &str, pause: Pause, drain: GoDuration) -> Result<(), ServiceError> {
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
        let _turn = self.turn.lock().await;
        let mut book = self.book.borrow().clone();
        book.remove(name)?;
        self.save(book).await?;
        let removed = self.running.borrow_mut().remove(name);
        self.attach().await?;
        if let Some(Running { gate, active, rollout }) = removed {
            // Paused requests are routed again, and find no route.
            gate.set(Pause::default());
            for kept in [Some(active), rollout].into_iter().flatten() {
                kept.replace();
                tokio::task::spawn_local(async move { kept.drain(DRAIN_TIMEOUT).await });
            }
        }
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
        let _turn = self.turn.lock().await;
        let service = self.get(name)?;
        if rollout.is_some() && !service.has_rollout() {
            return Err(ServiceError::RolloutTargetNotSet);
        }
        let mut book = self.book.borrow().clone();
        book.set(Service { rollout_controller: rollout, ..service });
        self.save(book).await?;
        self.attach().await
    }

    /// Stores a new state in the file first: a state that cannot be stored is not applied.
    async fn save(&self, book: set::Services) -> Result<(), ServiceError> {
        if let Some(file) = self.file.clone() {
            let kept = book.clone();
            // A disk that stalls must not stall the control plane.
            let saved = tokio::task::spawn_blocking(move || file.save(&kept)).await;
            saved.map_err(std::io::Error::other)??;
        }
        self.book.replace(book);
        Ok(())
    }

    /// Applies the state in one step.
    async fn attach(&self) -> Result<(), ServiceError> {
        let attached = self.attached()?;
        self.site.attach(attached).await.map_err(|error| ServiceError::Invalid(error.to_string()))
    }

    fn attached(&self) -> Result<Attached, ServiceError> {
        let (book, running) = (self.book.borrow(), self.running.borrow());
        let mut attached = Attached::default();
        for service in book.iter() {
            let Some(Running { gate, active, rollout }) = running.get(&service.name) else { continue };
            let rollout = rollout.as_ref().map(|kept| Arc::clone(&kept.slot));
            add(&mut attached, service, Arc::clone(&active.slot), rollout, gate)?;
        }
        Ok(attached)
    }
}
