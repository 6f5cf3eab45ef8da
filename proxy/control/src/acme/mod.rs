//! Certificates by themselves (ACME, RFC 8555): asked for, shown to be ours, fetched, kept, served and renewed.
//!
//! Of the control thread. What workers see of it is `HttpChallenges`, one load an exchange, and the listeners' stores of
//! certificates, which `tls` has. `Acme` is what the process has of it; `Keeper` looks after the names, one
//! certificate each, by the times that `schedule` gives; `order` is the way to one certificate. `folder` is all that
//! outlives the process: what was under way when it ended is simply begun again.

mod account;
mod attempt;
mod challenge;
mod client;
mod demand;
mod entry;
mod error;
mod failure;
mod folder;
mod hook;
mod keeper;
mod made;
mod order;
mod prepare;
mod schedule;
mod window;
#[cfg(test)]
mod tests;

use sluice_core::http_challenges::HttpChallenges;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

pub use error::AcmeError;
pub(crate) use keeper::Keeper;

use sluice_config::Config;
use sluice_core::metrics::Board;
use sluice_core::tls::{ByName, Wanted};

/// Names that clients have asked for and nobody has looked at yet; further ones are asked for again by the next client.
const WANTED_MAX: usize = 256;

/// Whether a certificate whose source is called so is looked after here.
pub(crate) fn is_source(source: &str) -> bool {
    source == made::SOURCE || source.starts_with(folder::SOURCE)
}

/// ACME as the process has it.
pub(crate) struct Acme {
    /// What http listeners answer.
    pub(crate) challenges: Arc<HttpChallenges>,
    /// What is shown of it.
    pub(crate) board: Arc<Board>,
    wants: mpsc::Sender<Wanted>,
    /// Until it is run.
    wanted: Mutex<Option<mpsc::Receiver<Wanted>>>,
}

impl Acme {
    /// ACME, and what it has served at once; to be made by the account that is to write to its folder. Blocks.
    ///
    /// # Errors
    /// When there is no place for account and certificates.
    pub(crate) fn for_start(config: &Config, terminators: &ByName) -> Result<Arc<Self>, AcmeError> {
        let acme = Self::new();
        acme.prepare(config, terminators)?;
        Ok(acme)
    }

    fn new() -> Arc<Self> {
        let (wants, wanted) = mpsc::channel(WANTED_MAX);
        let wanted = Mutex::new(Some(wanted));
        Arc::new(Self { challenges: Arc::default(), board: Arc::default(), wants, wanted })
    }

    /// Names that clients ask for, to be taken once.
    fn take_wanted(&self) -> Option<mpsc::Receiver<Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
