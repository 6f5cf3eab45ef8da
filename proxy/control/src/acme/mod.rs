//! Automatic certificates (ACME, RFC 8555): ordered, validated, stored, served and renewed.
//!
//! Runs on the control thread. Workers see `HttpChallenges`, one load per exchange, and the listeners' certificate
//! stores in `tls`. `Acme` is the process's handle; `Keeper` manages the names, one certificate each, at the times that
//! `schedule` computes; `order` obtains one certificate. Only the files of `folder` outlive the process: an interrupted
//! order is started again.

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
mod shared;
mod window;
#[cfg(test)]
mod tests;

use sluice_core::http_challenges::HttpChallenges;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

pub use error::AcmeError;
pub(crate) use keeper::Keeper;
pub(crate) use shared::{SharedAcme, take_over};

use sluice_config::Config;
use sluice_core::metrics::Board;
use sluice_core::tls::{ByName, Wanted};

/// Names requested by clients that the keeper has not processed yet; further ones are requested again by the next
/// client.
const WANTED_MAX: usize = 256;

/// Whether a certificate with this source is managed here.
pub(crate) fn is_source(source: &str) -> bool {
    source == made::SOURCE || source.starts_with(folder::SOURCE)
}

/// The process's ACME state.
pub(crate) struct Acme {
    /// Challenge responses of http listeners.
    pub(crate) challenges: Arc<HttpChallenges>,
    /// State for metrics and the status page.
    pub(crate) board: Arc<Board>,
    wants: mpsc::Sender<Wanted>,
    /// Taken by the keeper when it starts.
    wanted: Mutex<Option<mpsc::Receiver<Wanted>>>,
}

impl Acme {
    /// Creates the ACME state and installs the stored certificates. Must run as the user that writes to the folder.
    /// Blocks.
    ///
    /// # Errors
    /// When there is no folder for account and certificates.
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

    /// The names requested by clients; can be taken once.
    fn take_wanted(&self) -> Option<mpsc::Receiver<Wanted>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
