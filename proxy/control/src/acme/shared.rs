//! What the members of a fleet share of ACME: certificates and the account, encrypted; the turn to order; and what every
//! member answers while an authority validates a name.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use data_encoding::BASE64;
use serde::{Deserialize, Serialize};
use sluice_config::{Config, is_issuable};
use tokio::time::Instant;

use super::failure::Failure;
use super::folder::{Folder, file_stem};
use crate::fleet::{Fleet, Shortfall};
use crate::store::{Commit, Item, Outcome};

/// Everything here is below this.
const FOLDER: &str = "acme/";
/// How long the others have to show an answer.
const SHOWN_MAX: Duration = Duration::from_secs(10);
/// An answer that is older belongs to an order that nobody ended.
const ORPHANED_AFTER: Duration = Duration::from_secs(900);

/// The shared part, for the orders and the keeper of this process.
pub(crate) struct SharedAcme {
    fleet: Rc<Fleet>,
}

/// What every member answers while an authority validates a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SharedChallenge {
    /// For `http-01`.
    Http { token: String, authorization: String },
    /// For `tls-alpn-01`.
    Tls { name: String, digest: String },
}

/// Whose something is.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct LockOwner {
    owner: String,
}

/// Keeps the other members from ordering certificates of an authority until it is dropped.
pub(super) struct FleetLock {
    fleet: Rc<Fleet>,
    key: String,
    /// Of the key, so that the lock of a member that has taken it over is left alone.
    version: u64,
}

/// An answer that every member shows until this is dropped.
pub(super) struct SharedAnswer {
    fleet: Rc<Fleet>,
    key: String,
}

impl SharedAcme {
    pub(crate) fn new(fleet: Rc<Fleet>) -> Rc<Self> {
        Rc::new(Self { fleet })
    }

    /// Resolves when something may have changed.
    pub(super) fn changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.fleet.changes()
    }

    /// Whether the store can be reached.
    pub(super) fn is_there(&self) -> bool {
        self.fleet.trouble().is_none()
    }

    /// The certificates of an authority, by the names of their files, with the version of each.
    pub(super) fn certificates(&self, authority: &str) -> BTreeMap<String, u64> {
        let folder = certificate_key(authority, "");
        let keys = self.fleet.keys();
        let of_folder = keys.range(folder.clone()..);
        let of_folder =
            of_folder.map_while(|(key, item)| Some((key.strip_prefix(&folder)?.to_owned(), item.version)));
        of_folder.collect()
    }

    /// A certificate with its key, in PEM, by the name of its file. One that cannot be read is logged.
    pub(super) fn certificate(&self, authority: &str, stem: &str) -> Option<String> {
        let key = certificate_key(authority, stem);
        let item = self.fleet.keys().get(&key).cloned()?;
        let pem = self.open(&key, &item)?;
        String::from_utf8(pem).ok()
    }

    /// The account with an authority.
    pub(super) fn account(&self, authority: &str) -> Option<Vec<u8>> {
        let key = account_key(authority);
        let item = self.fleet.keys().get(&key).cloned()?;
        self.open(&key, &item)
    }

    fn open(&self, key: &str, item: &Item) -> Option<Vec<u8>> {
        let opened = self.fleet.sealer()?.open(key, &item.value);
        opened.inspect_err(|error| tracing::warn!(key, "a shared value cannot be used: {error}")).ok()
    }

    /// Gives the others a certificate.
    ///
    /// # Errors
    /// The store does not take it.
    pub(super) async fn put_certificate(
        &self,
        authority: &str,
        name: &str,
        pem: &str,
    ) -> Result<(), Failure> {
        self.put(&certificate_key(authority, &file_stem(name)), pem.as_bytes()).await
    }

    /// Gives the others the account.
    ///
    /// # Errors
    /// The store does not take it.
    pub(super) async fn put_account(&self, authority: &str, bytes: &[u8]) -> Result<(), Failure> {
        self.put(&account_key(authority), bytes).await
    }

    async fn put(&self, key: &str, plain: &[u8]) -> Result<(), Failure> {
        let Some(sealer) = self.fleet.sealer() else { return Ok(()) };
        let sealed = sealer.seal(key, plain).map_err(|error| Failure::new(error.to_string()))?;
        let commit = Commit { puts: vec![(key.to_owned(), sealed)], ..Commit::default() };
        self.fleet.commit(&commit).await.map_err(|error| away(&error.to_string()))?;
        Ok(())
    }

    /// Removes a certificate that nobody may have any more.
    pub(super) async fn remove_certificate(&self, authority: &str, name: &str) {
        let key = certificate_key(authority, &file_stem(name));
        let _ = self.fleet.try_commit(&Commit { deletes: vec![key], ..Commit::default() }).await;
    }

    /// Removes an account that the authority does not know.
    pub(super) async fn remove_account(&self, authority: &str) {
        let commit = Commit { deletes: vec![account_key(authority)], ..Commit::default() };
        let _ = self.fleet.try_commit(&commit).await;
    }

    /// Keeps the other members from ordering certificates of an authority. What they have stored before is known then.
    ///
    /// # Errors
    /// Another member orders, or the store is away.
    pub(super) async fn lock(&self, authority: &str) -> Result<FleetLock, Failure> {
        if let Some(trouble) = self.fleet.trouble() {
            return Err(away(&trouble));
        }
        let key = format!("{FOLDER}{authority}/lock");
        let held = self.fleet.keys().get(&key).cloned();
        if let Some(item) = &held {
            let LockOwner { owner } = serde_json::from_slice(&item.value).unwrap_or_default();
            let is_there = owner != self.fleet.member && {
                let members = self.fleet.members().await.map_err(|error| away(&error.to_string()))?;
                members.0.contains_key(&owner)
            };
            if is_there {
                return Err(Failure::busy());
            }
        }
        let owned = LockOwner { owner: self.fleet.member.clone() };
        let commit = Commit {
            checks: vec![(key.clone(), held.map_or(0, |item| item.version))],
            puts: vec![(key.clone(), serde_json::to_vec(&owned).unwrap_or_default())],
            deletes: Vec::new(),
        };
        match self.fleet.try_commit(&commit).await {
            Ok(Outcome::Made) => {}
            Ok(Outcome::Conflict) => return Err(Failure::busy()),
            Err(error) => return Err(away(&error.to_string())),
        }
        let until = Instant::now() + SHOWN_MAX;
        let own = |item: &Item| {
            let owned = serde_json::from_slice(&item.value);
            owned.is_ok_and(|owned: LockOwner| owned.owner == self.fleet.member).then_some(item.version)
        };
        // The member that had the lock before has stored its certificate before it gave the lock back.
        match self.fleet.until_keys(until, |keys| keys.get(&key).and_then(own)).await {
            Some(version) => Ok(FleetLock { fleet: Rc::clone(&self.fleet), key, version }),
            // If it is ours, the next attempt gets it again.
            None => Err(away("it does not say what has changed")),
        }
    }

    /// Has every member show an answer, and waits until they do.
    ///
    /// # Errors
    /// The store does not take it.
    pub(super) async fn show(&self, challenge: SharedChallenge) -> Result<SharedAnswer, Failure> {
        let id = crate::fleet::state::new_id();
        let key = format!("{FOLDER}challenges/{id}");
        let shown = SharedAnswer { fleet: Rc::clone(&self.fleet), key: key.clone() };
        // Sealed: write access to the store alone must not get names validated.
        self.put(&key, &serde_json::to_vec(&challenge).unwrap_or_default()).await?;
        let missing = self.fleet.until_nothing_is_missing(SHOWN_MAX, |members| {
            let lacks = |shown: &BTreeSet<String>| !shown.contains(&id);
            let without = members.0.iter().filter(|(_, report)| report.shown.as_ref().is_some_and(lacks));
            let silent = without.map(|(key, _)| crate::fleet::name_of(key).to_owned()).collect();
            Shortfall { silent, ..Shortfall::default() }
        });
        let missing = missing.await;
        if !missing.is_nothing() {
            let members = missing.silent.into_iter().collect::<Vec<_>>().join(", ");
            tracing::warn!(members, "these members may not answer the authority");
        }
        Ok(shown)
    }

    /// What this member has to answer, by the names of the answers.
    pub(super) fn challenges(&self) -> BTreeMap<String, SharedChallenge> {
        let folder = format!("{FOLDER}challenges/");
        let keys = self.fleet.keys();
        let published = keys.range(folder.clone()..).map_while(|(key, item)| {
            let id = key.strip_prefix(&folder)?.to_owned();
            // Looked at with every change, so that a complaint would be repeated; the member that orders complains.
            let plain = self.fleet.sealer().and_then(|sealer| sealer.open(key, &item.value).ok());
            Some((id, plain.and_then(|plain| serde_json::from_slice(&plain).ok())))
        });
        published.filter_map(|(id, challenge)| Some((id, challenge?))).collect()
    }

    /// Says which answers this member shows.
    pub(super) fn say_shown(&self, shown: BTreeSet<String>) {
        self.fleet.say(|report| report.shown = Some(shown));
    }

    /// Removes an answer that nobody has removed.
    pub(super) async fn remove_orphan(&self, id: &str) {
        let commit = Commit { deletes: vec![format!("{FOLDER}challenges/{id}")], ..Commit::default() };
        let _ = self.fleet.try_commit(&commit).await;
    }
}

/// Stores the certificates that the fleet has, before the first client comes. Blocks.
pub(crate) fn take_over(config: &Config, fleet: &Rc<Fleet>) {
    let Some(acme) = config.acme.as_ref().filter(|_| fleet.sealer().is_some()) else { return };
    let shared = SharedAcme { fleet: Rc::clone(fleet) };
    let listeners = config.listeners.iter().filter_map(|one| one.tls.as_ref()?.acme.as_ref());
    let others = listeners.flat_map(|acme| acme.directories.values());
    let authorities = others.map(|other| acme.with_directory(other.clone())).chain([acme.clone()]);
    for authority in authorities {
        let Ok(folder) = Folder::of(config, &authority) else { continue };
        if folder.make().is_err() {
            // The start says so itself.
            continue;
        }
        for stem in shared.certificates(&folder.authority).into_keys() {
            let name = name_of_stem(&stem);
            let Some(pem) = shared.certificate(&folder.authority, &stem) else { continue };
            if !is_issuable(&name) {
                continue;
            }
            if let Err(error) = folder.keep_newer(&name, &pem) {
                tracing::warn!(name, "a certificate of the fleet cannot be used: {error}");
            }
        }
    }
}

/// The name of a certificate by that of its file.
pub(super) fn name_of_stem(stem: &str) -> String {
    stem.replacen('_', "*", 1)
}

/// Whether an answer that was first seen then may be removed by anybody.
pub(super) fn is_orphan(since: Instant) -> bool {
    since.elapsed() > ORPHANED_AFTER
}

impl SharedChallenge {
    /// For `tls-alpn-01`.
    pub(super) fn tls(name: &str, digest: &[u8]) -> Self {
        Self::Tls { name: name.to_owned(), digest: BASE64.encode(digest) }
    }

    /// The digest of an answer for `tls-alpn-01`.
    pub(super) fn digest(text: &str) -> Option<Vec<u8>> {
        BASE64.decode(text.as_bytes()).ok()
    }
}

impl Drop for FleetLock {
    fn drop(&mut self) {
        let checks = vec![(self.key.clone(), self.version)];
        give_back(&self.fleet, Commit { checks, deletes: vec![self.key.clone()], ..Commit::default() });
    }
}

impl Drop for SharedAnswer {
    fn drop(&mut self) {
        give_back(&self.fleet, Commit { deletes: vec![self.key.clone()], ..Commit::default() });
    }
}

/// Removes a key in the background. If that fails, or the process ends, a lock is taken over because its owner is gone, and
/// an answer is removed because it is old.
fn give_back(fleet: &Rc<Fleet>, commit: Commit) {
    let fleet = Rc::clone(fleet);
    tokio::task::spawn_local(async move { fleet.commit(&commit).await });
}

fn account_key(authority: &str) -> String {
    format!("{FOLDER}{authority}/account")
}

fn certificate_key(authority: &str, stem: &str) -> String {
    format!("{FOLDER}{authority}/certificates/{stem}")
}

fn away(why: &str) -> Failure {
    Failure::new(format!("the store of the fleet cannot be reached: {why}"))
}
