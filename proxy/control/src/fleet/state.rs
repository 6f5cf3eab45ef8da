//! The deployed services as a fleet shares them: one key for each, and one that counts their changes. A change
//! of a service compares that one, so that no member overwrites what it has not seen.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sluice_core::clock::unix_ms;
use sluice_core::service::api::{parse_path, path};
use sluice_core::service::duration::GoDuration;
use sluice_core::service::model::Service;
use sluice_core::service::options::DeploymentOptions;
use sluice_core::service::set;
use sluice_core::service::state::{Deploys, FleetMark};

use crate::store::{CHANGES_MAX, Commit, Item};

/// The key that counts changes.
const HEAD: &str = "head";
/// Services are below this.
const SERVICES: &str = "services/";
/// Targets that all members check before a deploy are below this.
const PROPOSALS: &str = "proposals/";
/// How many changes the head names: enough to find one's own among those of others.
const RECENT_MAX: usize = 16;
/// A version that no fleet reaches.
const VERSION_MAX: u64 = 1 << 53;
/// Bytes of one piece of many services: Consul takes 512 KiB, with the values in base64.
const PIECE_BYTES_MAX: usize = 192 << 10;

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
    /// The member that writes services piece by piece; until it is done, they are not believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) writer: Option<String>,
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
    /// When it was changed, in milliseconds of Unix time: decides when a store has lost changes.
    pub(crate) changed_ms: u64,
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
    recent: Vec<String>,
    pub(crate) records: BTreeMap<String, Record>,
    /// Values that this release cannot read, by the names of their services.
    pub(crate) unreadable: BTreeMap<String, Value>,
}

/// A change of services that is made if nothing else has changed meanwhile.
pub(crate) struct ServiceChange {
    /// Its own name.
    pub(crate) id: String,
    pub(crate) fleet: String,
    pub(crate) version: u64,
    pub(crate) commit: Commit,
}

impl Head {
    /// The one in these keys. One that cannot be read is as good as none.
    pub(crate) fn of(keys: &Keys) -> Option<Self> {
        let head: Self = serde_json::from_slice(&keys.get(HEAD)?.value).ok()?;
        Some(head).filter(|head| head.version < VERSION_MAX)
    }

    /// The version of its key; 0 if there is none.
    pub(crate) fn item_version(keys: &Keys) -> u64 {
        keys.get(HEAD).map_or(0, |item| item.version)
    }

    /// Whether it knows a change.
    pub(crate) fn has(&self, change: &str) -> bool {
        self.recent.iter().any(|one| one == change)
    }

    fn next(self, id: &str, (by, what): (&str, &str)) -> Self {
        let mut recent = vec![id.to_owned()];
        recent.extend(self.recent);
        recent.truncate(RECENT_MAX);
        let (by, what) = (by.to_owned(), what.to_owned());
        Self { recent, by, what, version: self.version + 1, writer: None, fleet: self.fleet }
    }
}

/// Which state of the services the keys have: the same number for the same head and proposals. Reading all services
/// takes longer than this.
pub(crate) fn fingerprint(keys: &Keys) -> u64 {
    let mut hasher = DefaultHasher::new();
    Head::item_version(keys).hash(&mut hasher);
    below(keys, PROPOSALS).for_each(|proposal| proposal.hash(&mut hasher));
    hasher.finish()
}

impl ServiceChange {
    /// The next change after `keys`, without effect yet.
    pub(crate) fn after(keys: &Keys, by: &str, what: &str) -> Self {
        let mut head = Head::of(keys).unwrap_or_default();
        if head.fleet.is_empty() {
            head.fleet = new_id();
        }
        let id = new_id();
        let head = head.next(&id, (by, what));
        let commit = commit_head(keys, &head);
        Self { id, fleet: head.fleet, version: head.version, commit }
    }

    /// Stores a service.
    pub(crate) fn put(&mut self, record: &Record) {
        let record = Record { changed_ms: unix_ms(), ..record.clone() };
        self.commit.puts.push((service_key(&record.service.name), json(&record)));
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

/// A head in the place of the one in `keys`.
fn commit_head(keys: &Keys, head: &Head) -> Commit {
    let checks = vec![(HEAD.to_owned(), Head::item_version(keys))];
    Commit { checks, puts: vec![(HEAD.to_owned(), json(head))], deletes: Vec::new() }
}

impl SharedServices {
    /// The services in these keys; `None` if there is no head, or one whose services are not all there.
    pub(crate) fn of(keys: &Keys) -> Option<Self> {
        let head = Head::of(keys).filter(|head| head.writer.is_none())?;
        Some(Self { fleet: head.fleet, version: head.version, recent: head.recent, ..Self::found(keys) })
    }

    /// The services in these keys, whatever their head.
    pub(crate) fn found(keys: &Keys) -> Self {
        let mut found = Self::default();
        for (key, item) in below(keys, SERVICES) {
            let Some((name, _)) = parse_path(&format!("/v1/services/{key}")) else { continue };
            // What is not JSON at all was written by no release, so nothing of it is kept.
            found.add(name, serde_json::from_slice(&item.value).unwrap_or_default());
        }
        found
    }

    fn add(&mut self, name: String, value: Value) {
        match serde_json::from_value::<Record>(value.clone()) {
            Ok(record) if record.service.name == name => drop(self.records.insert(name, record)),
            _ => drop(self.unreadable.insert(name, value)),
        }
    }

    /// What a host without a fleet brings.
    pub(crate) fn of_host<'s>(services: impl Iterator<Item = &'s Service>) -> Self {
        let record = |service: &Service| {
            (service.name.clone(), Record { service: service.clone(), ..Record::default() })
        };
        Self { records: services.map(record).collect(), ..Self::default() }
    }

    /// What a member remembers.
    pub(crate) fn remembered(mark: &FleetMark) -> Self {
        let (fleet, version, recent) = (mark.fleet.clone(), mark.version, mark.recent.clone());
        let mut known = Self { fleet, version, recent, ..Self::default() };
        mark.records.iter().for_each(|(name, value)| known.add(name.clone(), value.clone()));
        known
    }

    /// What a member remembers of them, besides what it serves.
    pub(crate) fn mark(&self, place: &str, deploys: BTreeMap<String, Deploys>) -> FleetMark {
        let records = self.records.iter().map(|(name, record)| (name.clone(), value(record)));
        let unreadable = self.unreadable.iter().map(|(name, value)| (name.clone(), value.clone()));
        FleetMark {
            place: place.to_owned(),
            fleet: self.fleet.clone(),
            version: self.version,
            recent: self.recent.clone(),
            records: records.chain(unreadable).collect(),
            deploys,
        }
    }

    /// Whether there is nothing.
    pub(crate) fn is_nothing(&self) -> bool {
        self.version == 0 && self.records.is_empty()
    }

    /// Whether these are the same services.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (&self.records, &self.unreadable) == (&other.records, &other.unreadable)
    }

    /// Whether these came of others by changes, as far as can be seen: nothing of them was lost.
    pub(crate) fn follows(&self, before: &Self) -> bool {
        let is_known = match before.recent.first() {
            Some(change) => self.recent.contains(change),
            None => true,
        };
        let is_far = self.version.saturating_sub(before.version) >= RECENT_MAX as u64;
        self.fleet == before.fleet && self.version >= before.version && (is_known || is_far)
    }

    /// Both, after a store has lost changes: of each service what was changed last. One that takes the host and path of a
    /// newer one is left out, and named.
    pub(crate) fn merge(&self, known: &Self) -> (Self, Vec<String>) {
        let mut records = known.records.clone();
        for (name, record) in &self.records {
            let is_older = records.get(name).is_some_and(|other| other.changed_ms > record.changed_ms);
            if !is_older {
                records.insert(name.clone(), record.clone());
            }
        }
        let mut newest: Vec<_> = records.into_values().collect();
        newest.sort_by_key(|record| std::cmp::Reverse(record.changed_ms));
        let (mut taken, mut kept, mut dropped) = (set::Services::default(), BTreeMap::new(), Vec::new());
        for record in newest {
            let name = record.service.name.clone();
            if taken.check(&name, &record.service.options).is_err() {
                dropped.push(name);
                continue;
            }
            taken.set(record.service.clone());
            kept.insert(name, record);
        }
        let mut unreadable = known.unreadable.clone();
        unreadable.extend(self.unreadable.clone());
        unreadable.retain(|name, _| !kept.contains_key(name));
        let fleet = [&self.fleet, &known.fleet].into_iter().find(|fleet| !fleet.is_empty()).cloned();
        let newer = if self.version >= known.version { self } else { known };
        let merged = Self {
            fleet: fleet.unwrap_or_else(new_id),
            version: newer.version,
            recent: newer.recent.clone(),
            records: kept,
            unreadable,
        };
        (merged, dropped)
    }

    /// A head that says that a member writes these services, piece by piece.
    pub(crate) fn announcement(&self, keys: &Keys, writer: &str, id: &str) -> (Head, Commit) {
        let what = "services that the store had lost";
        let (fleet, version, recent) = (self.fleet.clone(), self.version, self.recent.clone());
        let head = Head { fleet, version, recent, ..Head::default() };
        let by = super::report::name_of(writer);
        let head = Head { writer: Some(writer.to_owned()), ..head.next(id, (by, what)) };
        let commit = commit_head(keys, &head);
        (head, commit)
    }

    /// The pieces, each as long as the head is that of the announcement, and the head at last.
    pub(crate) fn pieces(&self, keys: &Keys, head: Head) -> Vec<Commit> {
        let checks = vec![(HEAD.to_owned(), Head::item_version(keys))];
        let records = self.records.iter().map(|(name, record)| (service_key(name), json(record)));
        let unreadable = self.unreadable.iter().map(|(name, value)| (service_key(name), json(value)));
        let wanted: BTreeMap<String, Vec<u8>> = records.chain(unreadable).collect();
        let gone = below(keys, SERVICES).map(|(key, _)| format!("{SERVICES}{key}"));
        let gone: Vec<_> = gone.filter(|key| !wanted.contains_key(key)).collect();
        let is_there =
            |(key, value): &(String, Vec<u8>)| keys.get(key).is_some_and(|item| item.value == *value);
        let mut commits = Vec::new();
        let (mut puts, mut bytes) = (Vec::new(), 0);
        for put in wanted.into_iter().filter(|put| !is_there(put)) {
            if puts.len() >= CHANGES_MAX || (bytes + put.1.len() > PIECE_BYTES_MAX && !puts.is_empty()) {
                commits.push(Commit { puts: std::mem::take(&mut puts), ..Commit::default() });
                bytes = 0;
            }
            bytes += put.1.len();
            puts.push(put);
        }
        commits.push(Commit { puts, ..Commit::default() });
        let deletes = gone.chunks(CHANGES_MAX);
        commits.extend(deletes.map(|keys| Commit { deletes: keys.to_vec(), ..Commit::default() }));
        commits.retain(|commit| !commit.puts.is_empty() || !commit.deletes.is_empty());
        commits.iter_mut().for_each(|commit| commit.checks.clone_from(&checks));
        // Last: others do not believe services before it.
        commits.push(commit_head(keys, &Head { writer: None, ..head }));
        commits
    }
}

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

fn value(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn record(name: &str, host: &str, target: &str, changed_ms: u64) -> Record {
        let mut record = Record { changed_ms, ..Record::default() };
        name.clone_into(&mut record.service.name);
        record.service.options.hosts = vec![host.to_owned()];
        record.service.options.normalize();
        record.service.active_targets = vec![target.to_owned()];
        record
    }

    fn services(version: u64, recent: &[&str], records: &[Record]) -> SharedServices {
        SharedServices {
            fleet: "f".to_owned(),
            version,
            recent: recent.iter().map(|&one| one.to_owned()).collect(),
            records: records.iter().map(|one| (one.service.name.clone(), one.clone())).collect(),
            ..SharedServices::default()
        }
    }

    /// Applies commits as an engine does.
    fn apply(keys: &mut Keys, commits: &[Commit], next: &mut u64) -> bool {
        for commit in commits {
            let is_so =
                |(key, version): &(String, u64)| keys.get(key).map_or(0, |item| item.version) == *version;
            if !commit.checks.iter().all(is_so) {
                return false;
            }
            *next += 1;
            for (key, value) in &commit.puts {
                keys.insert(key.clone(), Item { value: value.clone(), version: *next });
            }
            commit.deletes.iter().for_each(|key| drop(keys.remove(key)));
        }
        true
    }

    #[test]
    fn what_follows_knows_the_change_before() {
        let one = services(3, &["c", "b", "a"], &[]);
        assert!(services(4, &["d", "c"], &[]).follows(&one));
        assert!(services(3, &["c", "b"], &[]).follows(&one));
        assert!(!services(3, &["x", "b"], &[]).follows(&one), "another third change");
        assert!(!services(4, &["y", "x", "b"], &[]).follows(&one), "ours is lost");
        assert!(!services(2, &["b"], &[]).follows(&one), "older");
        assert!(services(40, &["z"], &[]).follows(&one), "too far to see");
        assert!(!SharedServices { fleet: "g".to_owned(), ..services(9, &["c"], &[]) }.follows(&one));
    }

    #[test]
    fn of_each_service_the_last_change_is_kept_when_changes_were_lost() {
        let store = services(3, &["x"], &[record("api", "a", "new", 30), record("web", "w", "old", 10)]);
        let known = services(
            5,
            &["e"],
            &[record("api", "a", "old", 20), record("web", "w", "new", 25), record("only", "o", "t", 5)],
        );
        let (merged, dropped) = store.merge(&known);
        assert!(dropped.is_empty());
        let target = |name: &str| merged.records[name].service.active_targets[0].clone();
        assert_eq!([target("api"), target("web"), target("only")], ["new", "new", "t"]);
        assert_eq!((merged.version, merged.fleet.as_str()), (5, "f"));
        assert_eq!(known.merge(&store).0.records, merged.records);
        // The host of a newer one cannot be taken.
        let clash = services(1, &["c"], &[record("other", "a", "t", 7)]);
        let (merged, dropped) = clash.merge(&known);
        assert_eq!((dropped, merged.records.len()), (vec!["other".to_owned()], 3));
    }

    #[test]
    fn only_one_writer_at_a_time_gives_services_back() {
        let many = |target: &str, changed_ms| {
            (0..100)
                .map(|at| record(&format!("s{at}"), &format!("h{at}"), target, changed_ms))
                .collect::<Vec<_>>()
        };
        let (newer, older) = (services(9, &["i"], &many("new", 9)), services(8, &["h"], &many("old", 8)));
        let (mut keys, mut next) = (Keys::new(), 0);
        let (head_of_older, first) = older.announcement(&keys, "b/1", "one");
        assert!(apply(&mut keys, &[first], &mut next));
        assert!(SharedServices::of(&keys).is_none(), "nobody believes it yet");
        let mut of_older = older.pieces(&keys, head_of_older);
        let rest = of_older.split_off(2);
        assert!(apply(&mut keys, &of_older, &mut next));
        // The other one takes over.
        let (merged, _) = SharedServices::found(&keys).merge(&newer);
        let (head, second) = merged.announcement(&keys, "a/1", "two");
        assert!(apply(&mut keys, &[second], &mut next));
        assert!(!apply(&mut keys, &rest, &mut next), "the first one has lost its turn");
        let pieces = merged.pieces(&keys, head);
        assert!(apply(&mut keys, &pieces, &mut next));
        let stored = SharedServices::of(&keys).unwrap();
        assert!(stored.is_like(&newer) && stored.version > 9 && stored.follows(&newer));
        assert_eq!(SharedServices::remembered(&stored.mark("here", BTreeMap::new())), stored);
    }

    #[test]
    fn values_that_cannot_be_read_are_named_and_kept() {
        let (mut keys, mut next) = (Keys::new(), 0);
        let mut change = ServiceChange::after(&keys, "a", "x");
        change.put(&record("web", "w", "t", 1));
        assert!(apply(&mut keys, &[change.commit], &mut next));
        let later = serde_json::json!({"service": {"name": "api", "pause_controller": {"state": 9}}});
        for (key, value) in [("services/api", later.to_string()), ("services/other", "{".to_owned())] {
            keys.insert(key.to_owned(), Item { value: value.into_bytes(), version: 7 });
        }
        let shared = SharedServices::of(&keys).unwrap();
        assert_eq!(shared.records.keys().collect::<Vec<_>>(), ["web"]);
        assert_eq!(shared.unreadable.keys().collect::<Vec<_>>(), ["api", "other"]);
        assert_eq!(shared.unreadable["api"], later);
        // A version that cannot grow is as good as none.
        let head = format!("{{\"fleet\": \"f\", \"version\": {}}}", u64::MAX);
        keys.insert("head".to_owned(), Item { value: head.into_bytes(), version: 8 });
        assert!(SharedServices::of(&keys).is_none());
    }
}
