//! Asks authorities when to renew certificates, and applies their advice.

use std::sync::Arc;

use sluice_core::tls::Certificate;
use tokio::task::JoinError;

use super::{Advised, Keeper};
use crate::acme::{schedule, window};

/// Maximum number of concurrent requests for advice.
const ASKS_MAX: usize = 2;

impl Keeper {
    /// Asks about certificates whose advice is due.
    pub(super) fn begin_to_look(&mut self) {
        let now_ms = schedule::now_ms();
        let is_due = |look_ms: Option<u64>| look_ms.is_some_and(|look_ms| look_ms <= now_ms);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry.look_ms) && !entry.is_running);
        let room = ASKS_MAX.saturating_sub(self.tasks.advice.len());
        let names: Vec<String> = due.take(room).map(|(name, _)| name.clone()).collect();
        for name in names {
            let asked = self.authority_of(&name).zip(self.issued(&name));
            // Asked once; the response says when to ask again.
            if let Some(entry) = self.entries.get_mut(&name) {
                entry.look_ms = None;
            }
            let Some((authority, certificate)) = asked else { continue };
            self.tasks.advice.spawn_local(async move {
                let said = window::ask(&authority, &certificate).await;
                (name, said)
            });
        }
    }

    pub(super) fn heed(&mut self, advised: Result<Advised, JoinError>) {
        let Ok((name, advice)) = advised else { return };
        let Some(entry) = self.entries.get_mut(&name) else { return };
        if let Err(failure) = &advice {
            tracing::debug!(name, "no renewal information from the authority: {}", failure.text);
        }
        let before_ms = entry.next_ms;
        entry.advise(advice.unwrap_or_default(), (schedule::now_ms(), fastrand::f64()));
        if entry.next_ms < before_ms {
            let in_s = entry.next_ms.saturating_sub(schedule::now_ms()) / 1000;
            tracing::info!(name, in_s, "the authority advises an earlier renewal");
        }
        self.shown.is_current &= entry.next_ms == before_ms;
    }

    /// The certificate served for a name, if its authority issued it.
    pub(super) fn issued(&self, name: &str) -> Option<Arc<Certificate>> {
        let source = self.authority_of(name)?.folder.source();
        let in_force = self.terminators.in_force();
        let mut issued = in_force.values().filter_map(|terminator| terminator.store().issued(name));
        issued.find(|certificate| certificate.source == source)
    }
}
