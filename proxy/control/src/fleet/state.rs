//! The deployed services as a fleet shares them: one key for each, and one that counts their changes. Whoever changes a
//! service compares that one, so that nobody overwrites what he has not seen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sluice_core::service::api::path;
use sluice_core::service::duration::GoDuration;
use sluice_core::service::model::Service;
use sluice_core::service::options::DeploymentOptions;
use sluice_core::service::state::{Deploys, FleetMark};

use crate::store::{Commit, Item};

/// The key that counts changes.
const HEAD: &str = "head";
/// Services are below this.
const SERVICES: &str = "services/";
/// Targets that all members check before a deploy are below this.
const PROPOSALS: &str = "proposals/";
/// How many changes the head names: enough to find one's own among those of others.
const RECENT_MAX: usize = 16;

/// The keys that all members watch, as last seen.
pub(crate) type Keys = BTreeMap<String, Item>;

/// Counts changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Head {
    /// Which fleet it is, so that nothing of another one is taken for older state.
    pub(crate) fleet: String,
    /// Grows with each change.
    pub(crate) version: u64,
    /// The last changes, newest first: each has a name of its own.
    recent: Vec<String>,
    /// The member that made the last one.
    pub(crate) by: String,
    /// What it was, such as `deploy of web`.
    pub(crate) what: String,
}

/// A service, and what members need to know to go on from the one before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    pub(crate) service: Service,
    /// The deploys that its targets are of.
    #[serde(flatten)]
    pub(crate) deploys: Deploys,
    /// How long requests at replaced targets, or at paused ones, may take to finish.
    pub(crate) drain_timeout: GoDuration,
}

/// Targets that all members check before a deploy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Proposal {
    /// The member that deploys.
    pub(crate) owner: String,
    /// The service as it would be.
    pub(crate) service: Service,
    /// Whether it is about the targets of the rollout.
    pub(crate) is_rollout: bool,
    pub(crate) options: DeploymentOptions,
}

/// All services at one version.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SharedServices {
    /// Which fleet they are of; empty if it has none yet.
    pub(crate) fleet: String,
    pub(crate) version: u64,
    pub(crate) records: BTreeMap<String, Record>,
}

impl Head {
    /// The one in these keys.
    pub(crate) fn of(keys: &Keys) -> Option<Self> {
        serde_json::from_slice(&keys.get(HEAD)?.value).ok()
    }

    /// Whether it knows a change.
    pub(crate) fn has(&self, change: &str) -> bool {
        self.recent.iter().any(|one| one == change)
    }
}

/// A change of services that is made if nothing else has changed meanwhile.
pub(crate) struct ServiceChange {
    /// Its own name.
    pub(crate) id: String,
    pub(crate) version: u64,
    pub(crate) commit: Commit,
}

impl ServiceChange {
    /// The next change after `keys`, without effect yet.
    pub(crate) fn after(keys: &Keys, by: &str, what: &str) -> Self {
        let head = Head::of(keys).unwrap_or_default();
        let fleet = if head.fleet.is_empty() { new_id() } else { head.fleet };
        Self::to_version(keys, (fleet, head.version + 1), (by, what))
    }

    /// A change to this version of a fleet.
    fn to_version(keys: &Keys, (fleet, version): (String, u64), (by, what): (&str, &str)) -> Self {
        let id = new_id();
        let mut recent = vec![id.clone()];
        recent.extend(Head::of(keys).unwrap_or_default().recent);
        recent.truncate(RECENT_MAX);
        let head = Head { fleet, version, recent, by: by.to_owned(), what: what.to_owned() };
        let is_at = keys.get(HEAD).map_or(0, |item| item.version);
        let commit = Commit {
            checks: vec![(HEAD.to_owned(), is_at)],
            puts: vec![(HEAD.to_owned(), json(&head))],
            deletes: Vec::new(),
        };
        Self { id, version, commit }
    }

    /// Stores a service.
    pub(crate) fn put(&mut self, record: &Record) {
        self.commit.puts.push((service_key(&record.service.name), json(record)));
    }

    /// Removes a service.
    pub(crate) fn remove(&mut self, name: &str) {
        self.commit.deletes.push(service_key(name));
    }

    /// Removes the proposal that it carries out.
    pub(crate) fn settle(&mut self, proposal: &str) {
        self.commit.deletes.push(format!("{PROPOSALS}{proposal}"));
    }
}

impl SharedServices {
    /// The services in these keys; `None` if there is no head. One that cannot be read is left out, and named.
    pub(crate) fn of(keys: &Keys) -> Option<(Self, Vec<String>)> {
        let head = Head::of(keys)?;
        let (mut records, mut damaged) = (BTreeMap::new(), Vec::new());
        for (key, item) in below(keys, SERVICES) {
            match serde_json::from_slice::<Record>(&item.value) {
                Ok(record) => drop(records.insert(record.service.name.clone(), record)),
                Err(error) => damaged.push(format!("{key}: {error}")),
            }
        }
        Some((Self { fleet: head.fleet, version: head.version, records }, damaged))
    }

    /// From what a member remembers.
    pub(crate) fn remembered<'s>(services: impl Iterator<Item = &'s Service>, mark: &FleetMark) -> Self {
        let record = |service: &Service| {
            let deploys = mark.deploys.get(&service.name).cloned().unwrap_or_default();
            (service.name.clone(), Record { service: service.clone(), deploys, ..Record::default() })
        };
        Self { fleet: mark.fleet.clone(), version: mark.version, records: services.map(record).collect() }
    }

    /// What a member remembers of them, besides the services.
    pub(crate) fn mark(&self) -> FleetMark {
        let deploys = self.records.iter().map(|(name, record)| (name.clone(), record.deploys.clone()));
        FleetMark { fleet: self.fleet.clone(), version: self.version, deploys: deploys.collect() }
    }

    /// Whether these are older than what a member remembers: the store has lost something.
    pub(crate) fn is_older_than(&self, mark: &FleetMark) -> bool {
        self.fleet == mark.fleet && self.version < mark.version
    }

    /// The changes, in pieces, after which the store has this.
    pub(crate) fn publish(&self, keys: &Keys, by: &str) -> Vec<Commit> {
        let fleet = if self.fleet.is_empty() { new_id() } else { self.fleet.clone() };
        let version = (fleet, self.version.max(1));
        let mut all = ServiceChange::to_version(keys, version, (by, "services that the store did not have"));
        let head = std::mem::take(&mut all.commit);
        self.records.values().for_each(|record| all.put(record));
        let known: Vec<_> = self.records.keys().map(|name| service_key(name)).collect();
        let gone = below(keys, SERVICES).map(|(key, _)| format!("{SERVICES}{key}"));
        let gone: Vec<_> = gone.filter(|key| !known.contains(key)).collect();
        let pieces = all.commit.puts.chunks(PIECE).map(|puts| (puts.to_vec(), Vec::new()));
        let pieces = pieces.chain(gone.chunks(PIECE).map(|keys| (Vec::new(), keys.to_vec())));
        let piece = |(puts, deletes)| Commit { checks: head.checks.clone(), puts, deletes };
        let mut commits: Vec<_> = pieces.map(piece).collect();
        // Last: others do not believe services without it.
        commits.push(head);
        commits
    }
}

/// Changes in one piece of a whole.
const PIECE: usize = crate::store::CHANGES_MAX;

impl Proposal {
    /// The change that makes it known.
    pub(crate) fn announcement(&self, id: &str) -> Commit {
        Commit { puts: vec![(format!("{PROPOSALS}{id}"), json(self))], ..Commit::default() }
    }

    /// The change after which it is forgotten.
    pub(crate) fn withdrawal(id: &str) -> Commit {
        Commit { deletes: vec![format!("{PROPOSALS}{id}")], ..Commit::default() }
    }

    /// All that can be read, by their names.
    pub(crate) fn all(keys: &Keys) -> BTreeMap<String, Self> {
        let read =
            |(id, item): (&str, &Item)| Some((id.to_owned(), serde_json::from_slice(&item.value).ok()?));
        below(keys, PROPOSALS).filter_map(read).collect()
    }
}

/// A name that nobody else has.
pub(crate) fn new_id() -> String {
    format!("{:016x}", fastrand::u64(..))
}

fn below<'k>(keys: &'k Keys, folder: &'static str) -> impl Iterator<Item = (&'k str, &'k Item)> {
    let of_folder = keys.range(folder.to_owned()..);
    of_folder.map_while(move |(key, item)| Some((key.strip_prefix(folder)?, item)))
}

fn service_key(name: &str) -> String {
    // Names may have any characters; some engines read keys as paths.
    let path = path(name, "");
    format!("{SERVICES}{}", path.rsplit('/').next().unwrap_or(name))
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
