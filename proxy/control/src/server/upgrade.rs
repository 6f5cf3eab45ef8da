//! Handing over to a new process, of another binary or the same: `sluice upgrade`.

use crate::handover::UpgradeError;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::Notify;

use super::control::notify;
use super::site::Site;
use crate::commands::SecondName;
use crate::handover::{PassedSockets, Program, Role, Successor};

/// How long the new process may take to serve, unless the command says otherwise: its self-tests take a quarter of a
/// second, name lookups some seconds.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the process that takes over.
pub(super) struct Upgrader {
    site: Rc<Site>,
    program: Program,
    /// Sockets beside the listeners'.
    others: Vec<(PassedSockets, OwnedFd)>,
    /// Where the control socket is.
    control: Option<PathBuf>,
    done: Notify,
}

/// A socket of the control plane's own that goes to the new process as well.
pub(super) fn other(
    role: Role,
    configured: &str,
    socket: io::Result<OwnedFd>,
) -> Option<(PassedSockets, OwnedFd)> {
    let passed =
        PassedSockets { role, name: String::new(), configured: configured.to_owned(), are_own: true };
    // Without it the new process binds the address itself once this one has gone, or says that it cannot.
    socket.ok().map(|socket| (passed, socket))
}

impl Upgrader {
    pub(super) fn new(
        site: Rc<Site>,
        program: Program,
        others: Vec<(PassedSockets, OwnedFd)>,
        control: Option<PathBuf>,
    ) -> Self {
        Self { site, program, others, control, done: Notify::new() }
    }

    /// Starts a new process with the same arguments and hands everything over; it serves when this returns its pid.
    /// Nothing is changed in this one from the start.
    ///
    /// # Errors
    /// Why it does not, such as a change that is under way; then it is gone, and this process serves on.
    pub(super) async fn upgrade(
        &self,
        binary: Option<PathBuf>,
        patience: Duration,
    ) -> Result<u32, UpgradeError> {
        let handing_over = self.site.changes.hand_over()?;
        // Without it the upgrade is as good, and only a failure late in the start of the new process would be felt.
        let control = self.control.as_deref().and_then(|path| SecondName::of(path).ok());
        let outcome = self.try_upgrade(binary, patience).await;
        match &outcome {
            Ok(pid) => {
                tracing::info!(pid, "another process has taken over");
                notify(&[NotifyState::MainPid(*pid)]);
                handing_over.keep();
                self.done.notify_one();
            }
            Err(reason) => {
                if let Some(Err(error)) = control.as_ref().map(SecondName::restore) {
                    tracing::error!(%error, "the control socket cannot be put back; commands do not find this process");
                }
                tracing::error!(%reason, "the upgrade has failed; this process serves on");
            }
        }
        outcome
    }

    async fn try_upgrade(&self, binary: Option<PathBuf>, patience: Duration) -> Result<u32, UpgradeError> {
        if std::process::id() == 1 {
            return Err("this process is the first of its container, which would end with it"
                .to_owned()
                .into());
        }
        let few = |error: io::Error| format!("sockets cannot be passed: {error}");
        let mut estate = self.site.estate().map_err(few)?;
        for (passed, socket) in &self.others {
            estate.sockets.push((passed.clone(), vec![socket.try_clone().map_err(few)?]));
        }
        let program = self.program.clone().with_binary(binary);
        let started =
            tokio::task::spawn_blocking(move || Successor::start(&program, &estate, patience)).await;
        started.map_err(|error| format!("the upgrade broke off: {error}"))?.map(|successor| successor.pid)
    }

    /// Resolves once another process has taken over.
    pub(super) async fn handed_over(&self) {
        self.done.notified().await;
    }
}
