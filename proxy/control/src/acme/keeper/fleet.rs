//! What the keeper does for a fleet: it serves certificates that other members have obtained, gives them its own, and
//! shows answers to authorities that others have asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use sluice_config::is_issuable;
use sluice_core::tls::Certificate;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Keeper;
use crate::acme::account::{Authority, blocking};
use crate::acme::attempt::take_over;
use crate::acme::entry::Entry;
use crate::acme::folder::file_stem;
use crate::acme::shared::{SharedAcme, SharedChallenge, is_orphan, name_of_stem};
use crate::acme::{made, schedule};

/// What is known of the fleet.
pub(super) struct FleetSide {
    pub(super) shared: Rc<SharedAcme>,
    changes: watch::Receiver<u64>,
    is_new: bool,
    /// The versions of certificates that were looked at, by authority and name of the file.
    seen: BTreeMap<(String, String), u64>,
    /// Answers that are shown, and since when.
    shown: BTreeMap<String, (SharedChallenge, Instant)>,
}

impl FleetSide {
    pub(super) fn new(shared: Rc<SharedAcme>) -> Self {
        let changes = shared.changes();
        Self { shared, changes, is_new: true, seen: BTreeMap::new(), shown: BTreeMap::new() }
    }

    /// Resolves when something may have changed; never without a fleet.
    pub(super) async fn changed(side: &mut Option<Self>) {
        match side {
            Some(side) => match side.changes.changed().await {
                Ok(()) => side.is_new = true,
                Err(_) => std::future::pending().await,
            },
            None => std::future::pending().await,
        }
    }
}

impl Keeper {
    pub(super) fn shared(&self) -> Option<Rc<SharedAcme>> {
        self.fleet.as_ref().map(|fleet| Rc::clone(&fleet.shared))
    }

    /// Takes over what has changed.
    pub(super) async fn follow_fleet(&mut self) {
        let Some(fleet) = &mut self.fleet else { return };
        if !std::mem::take(&mut fleet.is_new) {
            return;
        }
        let shared = Rc::clone(&fleet.shared);
        self.show_challenges(&shared).await;
        let authorities = self.authority.iter().chain(self.others.values()).cloned().collect::<Vec<_>>();
        let mut done = BTreeSet::new();
        for authority in authorities {
            if done.insert(authority.folder.authority.clone()) {
                self.exchange(&shared, &authority).await;
            }
        }
    }

    /// Takes over newer certificates of an authority, and gives the others those that they lack.
    async fn exchange(&mut self, shared: &SharedAcme, authority: &Rc<Authority>) {
        let word = &authority.folder.authority;
        let certificates = shared.certificates(word);
        for (stem, version) in &certificates {
            let key = (word.clone(), stem.clone());
            let is_seen = self.fleet.as_ref().is_some_and(|fleet| fleet.seen.get(&key) == Some(version));
            if is_seen {
                continue;
            }
            let name = name_of_stem(stem);
            if !is_issuable(&name) {
                continue;
            }
            match take_over(authority, &name).await {
                Ok(Some(certificate)) => self.adopt(authority, &name, &certificate),
                Ok(None) => {}
                Err(failure) => {
                    tracing::warn!(name, "a certificate of the fleet cannot be used: {}", failure.text);
                }
            }
            if let Some(fleet) = &mut self.fleet {
                fleet.seen.insert(key, *version);
            }
        }
        if !shared.is_there() {
            return;
        }
        let is_lacking = |name: &&String| !certificates.contains_key(&file_stem(name));
        let own: Vec<String> = self.entries.keys().filter(is_lacking).cloned().collect();
        for name in own {
            let is_of = self.authority_of(&name).is_some_and(|of| of.folder == authority.folder);
            if !is_of || self.issued(&name).is_none() {
                continue;
            }
            let (folder, of) = (authority.folder.clone(), name.clone());
            let Ok(Some(pem)) = blocking(move || folder.pem(&of)).await else { continue };
            if let Err(failure) = shared.put_certificate(word, &name, &pem).await {
                return tracing::debug!(
                    name,
                    "the fleet does not have the certificate yet: {}",
                    failure.text
                );
            }
        }
    }

    /// Serves a certificate that another member has obtained.
    fn adopt(&mut self, authority: &Rc<Authority>, name: &str, certificate: &Arc<Certificate>) {
        let is_current = self.authority_of(name).is_some_and(|now| now.folder == authority.folder);
        let is_wanted = self.entries.get(name).is_some_and(|entry| entry.is_listed) || self.is_on_demand();
        if !is_current || !is_wanted {
            return;
        }
        let now = (schedule::now_ms(), fastrand::f64());
        let known = self.entries.get(name);
        let (is_listed, is_running) =
            known.map_or((false, false), |entry| (entry.is_listed, entry.is_running));
        let mut entry = Entry::new(Some(certificate), is_listed, &authority.config, now);
        entry.is_running = is_running;
        self.entries.insert(name.to_owned(), entry);
        self.serve(name, certificate);
        self.shown.is_current = false;
        tracing::info!(name, "another member of the fleet has obtained the certificate");
    }

    fn is_on_demand(&self) -> bool {
        let in_force = self.terminators.in_force();
        in_force.values().any(|terminator| terminator.on_demand().is_some())
    }

    /// Shows the answers that members have asked for, and no others.
    async fn show_challenges(&mut self, shared: &SharedAcme) {
        let wanted = shared.challenges();
        let Some(fleet) = &mut self.fleet else { return };
        let gone: Vec<_> = fleet.shown.keys().filter(|id| !wanted.contains_key(*id)).cloned().collect();
        let gone: Vec<_> = gone.iter().filter_map(|id| fleet.shown.remove(id)).collect();
        let new: Vec<_> = wanted.into_iter().filter(|(id, _)| !fleet.shown.contains_key(id)).collect();
        let now = Instant::now();
        fleet.shown.extend(new.iter().map(|(id, challenge)| (id.clone(), (challenge.clone(), now))));
        let shown = fleet.shown.keys().cloned().collect();
        let old = fleet.shown.iter().filter(|(_, (_, since))| is_orphan(*since));
        let old: Vec<_> = old.map(|(id, _)| id.clone()).collect();
        gone.iter().for_each(|(challenge, _)| self.hide(challenge));
        new.iter().for_each(|(_, challenge)| self.show(challenge));
        shared.say_shown(shown);
        for id in old {
            shared.remove_orphan(&id).await;
        }
    }

    fn show(&self, challenge: &SharedChallenge) {
        match challenge {
            SharedChallenge::Http { token, authorization } => self.acme.challenges.add(token, authorization),
            SharedChallenge::Tls { name, digest } => {
                let digest = SharedChallenge::digest(digest).unwrap_or_default();
                match made::challenge(name, &digest) {
                    Ok(certified) => {
                        for terminator in self.terminators.in_force().values() {
                            terminator.store().begin_challenge(name, &certified);
                        }
                    }
                    Err(error) => tracing::warn!(name, "cannot answer the authority: {error}"),
                }
            }
        }
    }

    fn hide(&self, challenge: &SharedChallenge) {
        match challenge {
            SharedChallenge::Http { token, .. } => self.acme.challenges.remove(token),
            SharedChallenge::Tls { name, .. } => {
                for terminator in self.terminators.in_force().values() {
                    terminator.store().end_challenge(name);
                }
            }
        }
    }
}
