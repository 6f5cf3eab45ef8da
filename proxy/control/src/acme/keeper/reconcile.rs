//! Derives the managed names from the current configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use sluice_config::Config;
use sluice_core::tls::Certificate;

use super::Keeper;
use crate::acme::account::Authority;
use crate::acme::entry::Entry;
use crate::acme::folder::Folder;
use crate::acme::schedule;

impl Keeper {
    /// Adopts the current configuration.
    pub(super) fn reconcile(&mut self) {
        self.shown.is_current = false;
        let snapshot = self.live.load_full();
        let acme = snapshot.config.acme.as_ref();
        let placed = acme.and_then(|acme| Some((acme, Folder::of(&snapshot.config, acme).ok()?)));
        let Some((acme, folder)) = placed else {
            self.authority = None;
            self.others.clear();
            self.entries.clear();
            return self.sweep(&BTreeSet::new());
        };
        let is_other = |authority: &Rc<Authority>| authority.folder != folder;
        if self.authority.as_ref().is_none_or(is_other) {
            // Results of another authority do not apply to this one.
            self.entries.clear();
        }
        if self.authority.as_ref().is_none_or(|known| known.config != *acme || is_other(known)) {
            self.authority = Some(Rc::new(Authority::new(acme.clone(), folder, self.shared())));
        }
        let config = snapshot.config.clone();
        self.find_others(&config);
        let (listed, on_demand) = self.wishes();
        self.look_after(&listed, on_demand);
        self.sweep(&listed);
    }

    /// Which names use another authority. What is known of a name is dropped when its authority changes.
    fn find_others(&mut self, config: &Config) {
        let Some(known) = self.authority.clone() else { return };
        let mut authorities: BTreeMap<String, Rc<Authority>> = BTreeMap::new();
        for authority in self.others.values() {
            authorities.insert(authority.config.directory.url().to_owned(), Rc::clone(authority));
        }
        let in_force = self.terminators.in_force();
        let acmes = in_force.values().filter_map(|terminator| terminator.config().acme.as_ref());
        let mut others = BTreeMap::new();
        for (name, directory) in acmes.flat_map(|acme| &acme.directories) {
            let wanted = known.config.with_directory(directory.clone());
            if wanted == known.config {
                continue;
            }
            let Ok(folder) = Folder::of(config, &wanted) else { continue };
            let authority = authorities
                .entry(directory.url().to_owned())
                .or_insert_with(|| Rc::new(Authority::new(wanted.clone(), folder.clone(), self.shared())));
            if authority.config != wanted || authority.folder != folder {
                *authority = Rc::new(Authority::new(wanted, folder, self.shared()));
            }
            others.insert(name.clone(), Rc::clone(authority));
        }
        let before = std::mem::replace(&mut self.others, others);
        let folder = |others: &BTreeMap<String, Rc<Authority>>, name: &String| {
            others.get(name).unwrap_or(&known).folder.clone()
        };
        self.entries.retain(|name, _| folder(&before, name) == folder(&self.others, name));
    }

    /// The listed names, and whether on-demand names are enabled.
    fn wishes(&self) -> (BTreeSet<String>, bool) {
        let in_force = self.terminators.in_force();
        let wishes = in_force.values().filter_map(|terminator| terminator.config().acme.as_ref());
        let listed = wishes.clone().flat_map(|acme| acme.names.iter().cloned()).collect();
        (listed, wishes.clone().any(|acme| acme.on_demand.is_some()))
    }

    fn look_after(&mut self, listed: &BTreeSet<String>, on_demand: bool) {
        let Some(authority) = self.authority.clone() else { return };
        let served = self.served();
        let others = served.keys().filter(|name| on_demand && !listed.contains(*name));
        for name in listed.iter().chain(others) {
            let is_listed = listed.contains(name);
            let authority = self.others.get(name).unwrap_or(&authority);
            let known = self.entries.entry(name.clone()).or_insert_with(|| {
                let certificate = served.get(name).map(Arc::as_ref);
                Entry::new(certificate, is_listed, &authority.config, (schedule::now_ms(), fastrand::f64()))
            });
            known.is_listed = is_listed;
        }
        self.entries.retain(|name, entry| listed.contains(name) || (on_demand && !entry.is_listed));
    }

    /// The certificates that listeners serve from the authority of each name, by name.
    fn served(&self) -> BTreeMap<String, Arc<Certificate>> {
        let in_force = self.terminators.in_force();
        let all = in_force.values().flat_map(|terminator| terminator.store().certificates());
        let ours = all.filter(|certificate| {
            let authority = self.authority_of(certificate.first_name());
            authority.is_some_and(|authority| certificate.source == authority.folder.source())
        });
        ours.map(|certificate| (certificate.first_name().to_owned(), certificate)).collect()
    }

    /// Removes certificates of names that are no longer managed.
    fn sweep(&self, listed: &BTreeSet<String>) {
        for terminator in self.terminators.in_force().values() {
            let acme = terminator.config().acme.as_ref();
            let has = |name: &str| {
                let is_own = acme.is_some_and(|acme| acme.names.iter().any(|one| one == name));
                let is_other = acme.is_some_and(|acme| acme.on_demand.is_some()) && !listed.contains(name);
                is_own || (is_other && self.entries.contains_key(name))
            };
            terminator.store().keep_issued(|certificate| has(certificate.first_name()));
        }
    }
}
