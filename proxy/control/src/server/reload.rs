//! Re-reads the configuration on SIGHUP, on `sluice reload`, or when the file changes.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sd_notify::NotifyState;
use sluice_config::{Config, ConfigError};
use sluice_core::access_log::ShowLine;

use super::changes::UpgradeUnderWay;
use super::control::notify;
use super::error::ReloadError;
use super::site::{Applied, Site};

/// How often a watched file is checked.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// The source of the configuration.
#[derive(Clone)]
pub struct Source {
    /// Reads it.
    pub read: Arc<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
    /// The file to watch for changes; `None` disables watching.
    pub watched: Option<PathBuf>,
    /// How lines of the access log are shown on a terminal; `None` writes them as they are.
    pub show_line: Option<ShowLine>,
}

/// Why a configuration was not applied; nothing has changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// All its mistakes.
    #[error("{0}")]
    Mistakes(ConfigError),
    /// The failed step.
    #[error("{0}")]
    Failed(ReloadError),
    /// Another process has already read the configuration.
    #[error(transparent)]
    UpgradeUnderWay(#[from] UpgradeUnderWay),
}

/// Applies what the source returns.
pub(super) struct Reloader {
    pub(super) site: Rc<Site>,
    pub(super) source: Source,
}

impl Reloader {
    /// Reads the configuration and applies it. Logs the outcome.
    ///
    /// # Errors
    /// Why it was refused.
    pub(super) async fn reload(&self) -> Result<Applied, Refused> {
        let change = self.site.changes.begin("a reload".to_owned());
        let _change = change.inspect_err(|error| tracing::error!(%error, "reload refused"))?;
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            notify(&[NotifyState::Reloading, now]);
        }
        let outcome = self.try_reload().await;
        notify(&[NotifyState::Ready]);
        match &outcome {
            Ok(applied) => {
                tracing::info!("configuration applied");
                applied.notes.iter().for_each(|note| tracing::warn!("{note}"));
            }
            Err(refused) => tracing::error!(%refused, "configuration refused; nothing has changed"),
        }
        outcome
    }

    async fn try_reload(&self) -> Result<Applied, Refused> {
        let read = Arc::clone(&self.source.read);
        // A file may be on a disk that stalls.
        let config = tokio::task::spawn_blocking(move || read()).await;
        let config = config
            .map_err(|error| Refused::Failed(format!("reading the configuration failed: {error}").into()))?;
        self.site.apply(config.map_err(Refused::Mistakes)?).await.map_err(Refused::Failed)
    }

    /// Reloads whenever the watched file changes; returns at once if there is none.
    pub(super) async fn watch(&self) {
        let Some(file) = &self.source.watched else {
            return;
        };
        let look = || FileStamp::of(file);
        let (mut in_force, mut last) = (look(), look());
        loop {
            tokio::time::sleep(WATCH_PERIOD).await;
            let now = look();
            // Two equal stamps in a row: the writer has most likely finished.
            let settled = now == last;
            last = now;
            // During an upgrade the new process reads the file; if the upgrade fails, this process reads it then.
            let ours = !self.site.changes.is_handing_over();
            if ours && settled && last.is_some() && last != in_force {
                in_force.clone_from(&last);
                // Mistakes are in the log; the next change is another attempt.
                let _ = self.reload().await;
            }
        }
    }
}

/// Distinguishes states of a file.
#[derive(Clone, PartialEq, Eq)]
struct FileStamp {
    modified: Option<SystemTime>,
    bytes: u64,
    inode: u64,
}

impl FileStamp {
    fn of(file: &std::path::Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let metadata = std::fs::metadata(file).ok()?;
        Some(Self { modified: metadata.modified().ok(), bytes: metadata.len(), inode: metadata.ino() })
    }
}
