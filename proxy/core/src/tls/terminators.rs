//! The terminators of all listeners of the process: created at the start, changed by a reload, and updated when files
//! change. Used by the control thread; workers reach theirs through the listener.

use crate::tls::TlsConfigError;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use sluice_config::{self as config, Http2, Listener, Protocol};
use tokio::sync::Notify;

use super::certificate::Certificate;
use super::set::{Look, Remark, Set};
use super::store::CHALLENGE_PROTOCOL;
use super::terminator::Terminator;
use super::upstream;

/// How often to check whether a listener's files are due.
const TICK: Duration = Duration::from_secs(1);

/// Logged for a file that cannot be used, while the old certificate is kept.
const KEPT: &str = "cannot use a certificate; the previous one stays in use";
/// Logged for a certificate that is served in spite of a problem.
const FLAWED: &str = "a certificate has a problem";

/// By the listener's name.
pub type ByName = BTreeMap<String, Arc<Terminator>>;

/// The terminators of all listeners.
#[derive(Default)]
pub struct Terminators {
    in_force: ArcSwap<ByName>,
    watched: Mutex<BTreeMap<String, Watched>>,
    changed: Notify,
}

/// The terminators of a configuration that is not in use yet.
pub struct Planned {
    terminators: ByName,
    sets: BTreeMap<String, Arc<Set>>,
}

/// The observed state of one listener's files.
struct Watched {
    looked: Instant,
    last: Look,
    in_force: Look,
}

/// A finding about the certificates of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The key, such as `listeners[0].tls.certificates[1]`.
    pub path: String,
    /// The finding, with the name of the file.
    pub message: String,
    /// Whether it prevents sluice from starting.
    pub is_mistake: bool,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Checks the certificates and authorities that a configuration names, on both sides. Returns mistakes and warnings.
pub fn check(config: &config::Config) -> Vec<Finding> {
    let mut findings = plan(&config.listeners, &ByName::new()).1;
    findings.extend(upstream::check(config));
    findings
}

impl Terminators {
    /// Reads everything that these listeners need. It takes effect only with [`Self::switch`]. Warnings are logged.
    ///
    /// # Errors
    /// All mistakes, one per line.
    pub fn plan(&self, listeners: &[Listener]) -> Result<Planned, TlsConfigError> {
        let (planned, findings) = plan(listeners, &self.in_force.load());
        let (mistakes, warnings): (Vec<_>, Vec<_>) =
            findings.into_iter().partition(|finding| finding.is_mistake);
        for Finding { path, message: problem, .. } in &warnings {
            tracing::warn!(key = path, problem, "{FLAWED}");
        }
        if mistakes.is_empty() {
            return Ok(planned);
        }
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        Err(lines.join("\n").into())
    }

    /// As [`Self::plan`], for listeners that stay: what cannot be read now is logged, and its old state is kept.
    pub fn plan_again(&self, listeners: &[Listener]) -> Planned {
        let in_force = self.in_force.load();
        let (mut planned, findings) = plan(listeners, &in_force);
        for Finding { path, message: problem, is_mistake } in &findings {
            tracing::warn!(key = path, problem, "{}", if *is_mistake { KEPT } else { FLAWED });
        }
        for (name, terminator) in in_force.iter() {
            planned.terminators.entry(name.clone()).or_insert_with(|| Arc::clone(terminator));
        }
        planned
    }

    /// Puts a plan into effect. New connections use it once their listener has it as well.
    pub fn switch(&self, planned: &Planned) {
        let now = now_unix_s();
        for (name, set) in &planned.sets {
            if let Some(terminator) = planned.terminators.get(name) {
                terminator.store().replace(Arc::clone(set), now);
            }
        }
        self.in_force.store(Arc::new(planned.terminators.clone()));
        self.watched().clear();
        self.changed.notify_one();
    }

    /// The terminators in effect, by the listener's name.
    pub fn in_force(&self) -> Arc<ByName> {
        self.in_force.load_full()
    }

    /// Waits until the terminators have changed since the last wait. For a single task.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Logs which keys were readable at the start, but are not after privileges were dropped.
    pub fn warn_of_unreadable(&self) {
        for (name, terminator) in self.in_force.load().iter() {
            for key in terminator.store().set().keys() {
                if let Err(error) = std::fs::File::open(key) {
                    let file = key.display();
                    tracing::warn!(
                        listener = name, %file, %error,
                        "the account that sluice runs as cannot read this key; after a renewal, restart sluice to read it"
                    );
                }
            }
        }
    }

    /// Every certificate, with the listener's name.
    pub fn certificates(&self) -> Vec<(String, Arc<Certificate>)> {
        let in_force = self.in_force.load();
        let of_one = |(name, terminator): (&String, &Arc<Terminator>)| {
            let certificates = terminator.store().certificates();
            certificates.into_iter().map(|one| (name.clone(), one)).collect::<Vec<_>>()
        };
        in_force.iter().flat_map(of_one).collect()
    }

    /// Serves changed files of any listener; never returns. A certificate that is malformed now stays as it was.
    pub async fn watch(self: Arc<Self>) {
        loop {
            let least = self.in_force.load().values().filter_map(interval).min();
            tokio::time::sleep(least.map_or(TICK, |least| least.min(TICK))).await;
            if least.is_some() {
                let terminators = Arc::clone(&self);
                // A file may be on a disk that stalls. A panic would be in the log.
                let _ = tokio::task::spawn_blocking(move || terminators.look(Instant::now())).await;
            }
        }
    }

    /// Checks the files that are due.
    pub(super) fn look(&self, now: Instant) {
        for (name, terminator) in self.in_force.load().iter() {
            let Some(interval) = interval(terminator) else { continue };
            let is_due = |watched: &Watched| now.saturating_duration_since(watched.looked) >= interval;
            if self.watched().get(name).is_none_or(is_due) {
                self.look_at(name, terminator, now);
            }
        }
    }

    fn look_at(&self, name: &str, terminator: &Terminator, now: Instant) {
        let files = &terminator.config().certificates;
        let look = Look::at(files);
        let mut watched = self.watched();
        let Some(known) = watched.get_mut(name) else {
            let in_force = terminator.store().set().look();
            watched.insert(name.to_owned(), Watched { looked: now, last: look, in_force });
            return;
        };
        known.looked = now;
        // The same state twice: the writer of the files has most likely finished writing all of them.
        let settled = known.last == look;
        known.last.clone_from(&look);
        if !settled || known.in_force == look {
            return;
        }
        known.in_force = look;
        drop(watched);
        let (now, before) = (now_unix_s(), terminator.store().set());
        let (set, remarks) = Set::read(files, &before, now);
        for Remark { message: problem, is_mistake, .. } in remarks {
            match is_mistake {
                true => tracing::warn!(listener = name, problem, "{KEPT}"),
                false => tracing::warn!(listener = name, problem, "{FLAWED}"),
            }
        }
        if set.certificates().next().is_none() {
            tracing::warn!(listener = name, "no certificate is left; the previous ones stay in use");
            return;
        }
        terminator.store().replace(Arc::new(set), now);
        tracing::info!(listener = name, "certificates have been reloaded");
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<String, Watched>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Planned {
    /// The terminators by listener.
    pub fn by_name(&self) -> &ByName {
        &self.terminators
    }

    /// The terminator of the listener of this name.
    pub fn of(&self, listener: &str) -> Option<Arc<Terminator>> {
        self.terminators.get(listener).cloned()
    }
}

fn plan(listeners: &[Listener], before: &ByName) -> (Planned, Vec<Finding>) {
    let mut planned = Planned { terminators: ByName::new(), sets: BTreeMap::new() };
    let mut findings = Vec::new();
    let now = now_unix_s();
    for (index, listener) in listeners.iter().enumerate() {
        let Some(tls) = &listener.tls else { continue };
        let path = format!("listeners[{index}].tls");
        let before = before.get(&listener.name);
        let known = before.map(|before| before.store().set()).unwrap_or_default();
        let (set, remarks) = Set::read(&tls.certificates, &known, now);
        findings.extend(remarks.into_iter().map(|Remark { index, message, is_mistake }| Finding {
            path: format!("{path}.certificates[{index}]"),
            message,
            is_mistake,
        }));
        let is_empty = set.certificates().next().is_none();
        let is_said = |finding: &Finding| finding.is_mistake && finding.path.starts_with(&path);
        if is_empty && tls.acme.is_none() && !tls.services && !findings.iter().any(is_said) {
            let message = "there is no certificate to serve".to_owned();
            findings.push(Finding { path: format!("{path}.certificates"), message, is_mistake: true });
        }
        match Terminator::new(tls, protocols(listener), listener.http3.as_ref(), before.map(Arc::as_ref)) {
            Ok(terminator) => {
                planned.terminators.insert(listener.name.clone(), Arc::new(terminator));
                planned.sets.insert(listener.name.clone(), Arc::new(set));
            }
            Err(message) => {
                findings.push(Finding {
                    path: format!("{path}.client_auth"),
                    message: message.to_string(),
                    is_mistake: true,
                });
            }
        }
    }
    (planned, findings)
}

/// The protocols offered by ALPN.
fn protocols(listener: &Listener) -> Vec<Vec<u8>> {
    let mut protocols: Vec<&[u8]> = match listener.protocol {
        Protocol::Http if listener.http2 == Http2::Off => vec![b"http/1.1"],
        Protocol::Http => vec![b"h2", b"http/1.1"],
        // The endpoints choose the protocol inside a tunnel.
        Protocol::Tcp | Protocol::TlsPassthrough => Vec::new(),
    };
    if !protocols.is_empty() && issues(listener) {
        // A certificate authority that validates a name offers only this protocol (RFC 8737).
        protocols.push(CHALLENGE_PROTOCOL);
    }
    protocols.into_iter().map(<[u8]>::to_vec).collect()
}

fn issues(listener: &Listener) -> bool {
    listener.tls.as_ref().is_some_and(|tls| tls.acme.is_some() || tls.services)
}

fn interval(terminator: &Arc<Terminator>) -> Option<Duration> {
    match terminator.config().watch_interval_ms {
        0 => None,
        ms => Some(Duration::from_millis(ms)),
    }
}

/// Seconds of Unix time.
pub fn now_unix_s() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
