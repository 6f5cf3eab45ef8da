//! Manages the names: orders and renews certificates in time, and asks for approval of on-demand names.
//!
//! One task of the control thread. Slow work runs in separate tasks, a few at a time, and returns through a join set.

mod demand;
mod advice;
mod fleet;
mod reconcile;

use crate::acme::AcmeError;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::OnDemand;
use sluice_core::metrics::AttemptOutcome;
use sluice_core::tls::{Certificate, Terminators, Wanted};
use sluice_engine::snapshot::Live;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};

use super::account::Authority;
use super::attempt::{IssuedCertificate, attempt};
use super::challenge::ChallengeMethods;
use super::demand::Denied;
use super::entry::Entry;
use super::failure::{Failure, Kind};
use super::window::Advice;
use super::{Acme, SharedAcme, schedule};
use fleet::FleetSide;

/// Maximum number of concurrent orders; authorities limit concurrent requests.
const ORDERS_MAX: usize = 4;
/// Maximum number of concurrent approval requests.
const ASKS_MAX: usize = 8;
/// Maximum time between two checks, because the clock may be set.
const SLEEP_MAX: Duration = Duration::from_secs(600);

/// After an authority limited the rate, how long other names wait, in milliseconds: the limit may apply to all of them.
const QUIET_MS: u64 = 60_000;

/// A finished attempt: authority, name and result.
type Ended = (Rc<Authority>, String, Result<IssuedCertificate, Failure>);
/// A finished approval request: name, settings and result.
type Asked = (String, OnDemand, Result<bool, AcmeError>);

/// Manages the names.
pub(crate) struct Keeper {
    live: Live,
    terminators: Arc<Terminators>,
    acme: Arc<Acme>,
    wanted: mpsc::Receiver<Wanted>,
    authority: Option<Rc<Authority>>,
    /// Authorities of names that do not use the configured one.
    others: BTreeMap<String, Rc<Authority>>,
    entries: BTreeMap<String, Entry>,
    denied: Denied,
    tasks: Tasks,
    /// No attempt starts before this time, in milliseconds of Unix time, because the authority limits the rate.
    quiet_until_ms: u64,
    shown: Shown,
    fleet: Option<FleetSide>,
}

/// An authority's advice about a name's certificate.
type Advised = (String, Result<Option<Advice>, Failure>);

/// The running tasks.
#[derive(Default)]
struct Tasks {
    orders: JoinSet<Ended>,
    asks: JoinSet<Asked>,
    advice: JoinSet<Advised>,
    /// The name of each task, for tasks that panic.
    running: HashMap<Id, String>,
}

/// Conditions that were logged, so that they are logged again only when they change.
#[derive(Default)]
struct Shown {
    /// Whether the limit of on-demand names is reached.
    is_full: bool,
    /// Why approval cannot be requested.
    trouble: Option<AcmeError>,
    /// Whether the status page is up to date.
    is_current: bool,
}

impl Keeper {
    /// `None` if there is a keeper already.
    pub(crate) fn new(
        live: Live,
        terminators: Arc<Terminators>,
        acme: Arc<Acme>,
        shared: Option<Rc<SharedAcme>>,
    ) -> Option<Self> {
        let wanted = acme.take_wanted()?;
        Some(Self {
            live,
            terminators,
            acme,
            wanted,
            authority: None,
            others: BTreeMap::new(),
            entries: BTreeMap::new(),
            denied: Denied::default(),
            tasks: Tasks::default(),
            quiet_until_ms: 0,
            shown: Shown::default(),
            fleet: shared.map(FleetSide::new),
        })
    }

    /// Manages the names without end. Dropping it drops the running tasks.
    pub(crate) async fn run(mut self) {
        self.reconcile();
        loop {
            self.begin_due();
            self.begin_to_look();
            self.publish();
            self.follow_fleet().await;
            let pause = self.pause();
            tokio::select! {
                () = FleetSide::changed(&mut self.fleet) => {}
                () = self.terminators.changed() => self.reconcile(),
                Some(ended) = self.tasks.orders.join_next_with_id(), if !self.tasks.orders.is_empty() => {
                    if let Some((authority, name, ended)) = self.returned(ended) {
                        self.settle(&authority, &name, ended);
                    }
                }
                Some(asked) = self.tasks.asks.join_next_with_id(), if !self.tasks.asks.is_empty() => {
                    if let Some((name, on_demand, answer)) = self.returned(asked) {
                        self.hear(name, &on_demand, answer);
                    }
                }
                Some(advised) = self.tasks.advice.join_next(), if !self.tasks.advice.is_empty() => {
                    self.heed(advised);
                }
                Some(wanted) = self.wanted.recv(), if self.tasks.asks.len() < ASKS_MAX => self.want(&wanted),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// The authority of a name.
    fn authority_of(&self, name: &str) -> Option<Rc<Authority>> {
        self.others.get(name).or(self.authority.as_ref()).cloned()
    }

    fn begin_due(&mut self) {
        let now_ms = schedule::now_ms();
        let due = self.entries.iter().filter(|(_, entry)| entry.is_due(now_ms));
        let mut due: Vec<_> = due.map(|(name, entry)| (entry.next_ms, name.clone())).collect();
        due.sort_unstable();
        for (_, name) in due {
            let Some(authority) = self.authority_of(&name) else { continue };
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            if !entry.is_listed && !entry.is_allowed {
                // An earlier approval may have been withdrawn.
                let asked = self.terminators.in_force().values().find_map(|one| one.on_demand().cloned());
                if let Some(on_demand) = asked.filter(|_| self.tasks.asks.len() < ASKS_MAX) {
                    entry.is_running = true;
                    self.begin_to_ask(name, on_demand);
                }
            } else if self.tasks.orders.len() < ORDERS_MAX && self.quiet_until_ms <= now_ms {
                entry.is_running = true;
                let (is_early, ways) = (entry.window.is_some(), self.ways(&authority));
                let replaced = if is_early { self.issued(&name) } else { None };
                let about = name.clone();
                let task = self.tasks.orders.spawn_local(async move {
                    let ended = attempt(&authority, &name, &ways, replaced).await;
                    (authority, name, ended)
                });
                self.tasks.running.insert(task.id(), about);
            }
        }
    }

    fn ways(&self, authority: &Authority) -> ChallengeMethods {
        ChallengeMethods {
            kind: authority.config.challenge,
            hook: authority.config.dns_hook.clone(),
            challenges: Arc::clone(&self.acme.challenges),
            terminators: Arc::clone(&self.terminators),
            shared: self.fleet.as_ref().map(|fleet| Rc::clone(&fleet.shared)),
        }
    }

    fn pause(&self) -> Duration {
        let now_ms = schedule::now_ms();
        let idle = self.entries.values().filter(|entry| !entry.is_running);
        let waiting = idle.clone().map(|entry| entry.next_ms).chain(idle.filter_map(|entry| entry.look_ms));
        // A due entry that has not started waits for a running task.
        let waiting = waiting.chain([self.quiet_until_ms]);
        let next = waiting.filter(|next_ms| *next_ms > now_ms).min();
        next.map_or(SLEEP_MAX, |next_ms| Duration::from_millis(next_ms - now_ms).min(SLEEP_MAX))
    }

    /// The result of a task; `None` for one that panicked, which counts as a failure.
    fn returned<T>(&mut self, ended: Result<(Id, T), JoinError>) -> Option<T> {
        self.shown.is_current = false;
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let name = self.tasks.running.remove(&id);
        if let (Err(_), Some(name)) = (&ended, name)
            && let Some(authority) = self.authority_of(&name)
        {
            self.settle(&authority, &name, Err(Failure::new("the task failed")));
        }
        ended.ok().map(|(_, value)| value)
    }

    fn settle(&mut self, authority: &Rc<Authority>, name: &str, ended: Result<IssuedCertificate, Failure>) {
        let is_current = self.authority_of(name).is_some_and(|now| now.folder == authority.folder);
        let now = (schedule::now_ms(), fastrand::f64());
        let Some(entry) = self.entries.get_mut(name).filter(|_| is_current) else { return };
        match ended {
            Ok(IssuedCertificate { certificate, is_new }) => {
                entry.succeed(&certificate, &authority.config, now);
                if is_new {
                    self.acme.board.count_attempt(AttemptOutcome::Issued);
                    let until = httpdate::fmt_http_date(certificate.until());
                    tracing::info!(name, authority = authority.folder.authority, until, "certificate issued");
                }
                self.serve(name, &certificate);
            }
            Err(failure) => {
                if let Kind::RateLimited(_) = failure.kind {
                    self.quiet_until_ms = now.0 + QUIET_MS.min(authority.config.retry_first_ms);
                }
                let is_news = entry.fail(&failure, &authority.config, now);
                let next_s = (entry.next_ms - now.0) / 1000;
                self.note(name, &failure, is_news, next_s);
            }
        }
    }

    fn note(&self, name: &str, failure: &Failure, is_news: bool, next_s: u64) {
        match failure.kind {
            Kind::Busy => return,
            Kind::RateLimited(_) => self.acme.board.count_attempt(AttemptOutcome::RateLimited),
            Kind::Failed | Kind::NoAccount | Kind::StaleNonce => {
                self.acme.board.count_attempt(AttemptOutcome::Failed)
            }
        }
        // A repeated failure is logged at debug level only.
        match is_news {
            true => tracing::warn!(name, next_s, "cannot obtain a certificate: {}", failure.text),
            false => tracing::debug!(name, next_s, "cannot obtain a certificate: {}", failure.text),
        }
    }

    /// Installs the certificate in all listeners that want it.
    fn serve(&self, name: &str, certificate: &Certificate) {
        let is_listed = self.entries.get(name).is_some_and(|entry| entry.is_listed);
        for terminator in self.terminators.in_force().values() {
            let Some(acme) = &terminator.config().acme else { continue };
            let wants = match is_listed {
                true => acme.names.iter().any(|one| one == name),
                false => acme.on_demand.is_some(),
            };
            if wants {
                let certified = Arc::clone(&certificate.certified);
                let put = terminator.store().put(&[name.to_owned()], certified, &certificate.source);
                let _ =
                    put.inspect_err(|error| tracing::warn!(name, "cannot serve the certificate: {error}"));
            }
        }
    }

    fn publish(&mut self) {
        if std::mem::replace(&mut self.shown.is_current, true) {
            return;
        }
        self.acme.board.show(self.entries.iter().map(|(name, entry)| (name.clone(), entry.row())).collect());
    }
}
