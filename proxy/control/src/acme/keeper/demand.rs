//! On-demand names: approval, and its withdrawal.

use crate::acme::AcmeError;
use sluice_config::OnDemand;
use sluice_core::metrics::AskOutcome;
use sluice_core::tls::Wanted;

use super::Keeper;
use crate::acme::account::Authority;
use crate::acme::demand::ask;
use crate::acme::entry::Entry;
use crate::acme::failure::Failure;
use crate::acme::schedule;

impl Keeper {
    /// A client requested a name.
    pub(super) fn want(&mut self, wanted: &Wanted) {
        let in_force = self.terminators.in_force();
        let on_demand = in_force.get(&wanted.listener).and_then(|terminator| terminator.on_demand());
        let is_known = self.entries.contains_key(&wanted.name);
        let Some(on_demand) = on_demand.filter(|_| !is_known && self.authority.is_some()) else { return };
        let now_ms = schedule::now_ms();
        let is_running = self.tasks.running.values().any(|name| *name == wanted.name);
        if is_running || !self.denied.may_ask(&wanted.name, now_ms) {
            return;
        }
        self.denied.note(wanted.name.clone(), now_ms + on_demand.ask_again_ms, now_ms);
        if self.has_room(&wanted.name, on_demand) {
            self.begin_to_ask(wanted.name.clone(), on_demand.clone());
        }
    }

    /// Whether another on-demand name fits; a full table is logged once, however many names scanners request.
    fn has_room(&mut self, name: &str, on_demand: &OnDemand) -> bool {
        let got = self.entries.values().filter(|entry| !entry.is_listed).count();
        let is_full = got >= on_demand.names_max;
        if is_full {
            self.acme.board.count_ask(AskOutcome::Dropped);
            if !self.shown.is_full {
                tracing::warn!(
                    name,
                    names_max = on_demand.names_max,
                    "names_max is reached; further names get no certificate on demand"
                );
            }
        }
        self.shown.is_full = is_full;
        !is_full
    }

    pub(super) fn begin_to_ask(&mut self, name: String, on_demand: OnDemand) {
        let about = name.clone();
        let task = self.tasks.asks.spawn_local(async move {
            let answer = ask(&on_demand, &name).await;
            (name, on_demand, answer)
        });
        self.tasks.running.insert(task.id(), about);
    }

    pub(super) fn hear(&mut self, name: String, on_demand: &OnDemand, answer: Result<bool, AcmeError>) {
        let Some(authority) = self.authority.clone() else { return };
        let now = (schedule::now_ms(), fastrand::f64());
        let outcome = match &answer {
            Ok(true) => AskOutcome::Allowed,
            Ok(false) => AskOutcome::Denied,
            Err(_) => AskOutcome::Failed,
        };
        self.acme.board.count_ask(outcome);
        self.say(&name, on_demand, answer.err());
        match self.entries.get_mut(&name) {
            // The name was added to the configuration meanwhile.
            Some(entry) if entry.is_listed => {}
            Some(entry) => match outcome {
                AskOutcome::Allowed => {
                    (entry.is_running, entry.is_allowed, entry.next_ms) = (false, true, now.0)
                }
                AskOutcome::Failed => {
                    entry.fail(&Failure::new("the request for approval failed"), &authority.config, now);
                }
                AskOutcome::Denied | AskOutcome::Dropped => self.give_up(&name, &authority),
            },
            None if outcome != AskOutcome::Allowed => {
                self.denied.note(name, now.0 + on_demand.ask_again_ms, now.0);
            }
            // Other names may have taken the remaining room.
            None => {
                if self.has_room(&name, on_demand) {
                    let mut entry = Entry::new(None, false, &authority.config, now);
                    entry.is_allowed = true;
                    self.entries.insert(name, entry);
                }
            }
        }
    }

    /// Logs why approval cannot be requested, when the reason changes.
    fn say(&mut self, name: &str, on_demand: &OnDemand, trouble: Option<AcmeError>) {
        if let Some(trouble) = trouble.as_ref().filter(|trouble| self.shown.trouble.as_ref() != Some(trouble))
        {
            let url = on_demand.ask_url.to_string();
            tracing::warn!(name, url, "cannot ask whether the name may have a certificate: {trouble}");
        }
        self.shown.trouble = trouble;
    }

    /// Removes the certificate of a name that is no longer approved.
    fn give_up(&mut self, name: &str, authority: &Authority) {
        self.entries.remove(name);
        authority.folder.forget(name);
        if let Some(shared) = authority.shared.clone() {
            let (authority, name) = (authority.folder.authority.clone(), name.to_owned());
            tokio::task::spawn_local(async move { shared.remove_certificate(&authority, &name).await });
        }
        for terminator in self.terminators.in_force().values() {
            terminator.store().keep_issued(|certificate| certificate.first_name() != name);
        }
        tracing::info!(name, "removed the certificate of a name that is no longer approved");
    }
}
