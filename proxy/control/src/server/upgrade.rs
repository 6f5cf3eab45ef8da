//! Handover to a new process, with the same binary or another one: `sluice upgrade`.

use crate::handover::UpgradeError;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use sluice_net::quic::{QuicProcess, receive_from_next};
use tokio::sync::Notify;

use super::control::notify;
use super::site::Site;
use crate::commands::SecondName;
use crate::handover::{PassedSockets, Program, Role, Successor};

/// Default time limit until the new process serves: its self-tests take a quarter of a second, name lookups some
/// seconds.
pub(crate) const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts the process that takes over.
pub(super) struct Upgrader {
    site: Rc<Site>,
    program: Program,
    /// Sockets other than the listeners'.
    others: Vec<(PassedSockets, OwnedFd)>,
    /// The path of the control socket.
    control: Option<PathBuf>,
    done: Notify,
}

/// A socket of the control plane that is passed to the new process too.
pub(super) fn other(
    role: Role,
    configured: &str,
    socket: io::Result<OwnedFd>,
) -> Option<(PassedSockets, OwnedFd)> {
    let passed =
        PassedSockets { role, name: String::new(), configured: configured.to_owned(), are_own: true };
    // Without it, the new process binds the address itself once this one has exited, or reports that it cannot.
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

    /// Starts a new process with the same arguments and hands everything over; returns its pid once it serves. From the
    /// start, this process accepts no changes.
    ///
    /// # Errors
    /// Why it failed, such as a running change; the new process has exited then, and this one continues to serve.
    pub(super) async fn upgrade(
        &self,
        binary: Option<PathBuf>,
        patience: Duration,
    ) -> Result<u32, UpgradeError> {
        let handing_over = self.site.changes.hand_over()?;
        // The upgrade works without it; it only matters if the new process fails late in its startup.
        let control = self.control.as_deref().and_then(|path| SecondName::of(path).ok());
        let outcome = self.try_upgrade(binary, patience).await;
        match &outcome {
            Ok(pid) => {
                tracing::info!(pid, "the new process has taken over");
                notify(&[NotifyState::MainPid(*pid)]);
                handing_over.keep();
                self.done.notify_one();
            }
            Err(reason) => {
                if let Some(Err(error)) = control.as_ref().map(SecondName::restore) {
                    tracing::error!(%error, "cannot restore the control socket; commands fail");
                }
                tracing::error!(%reason, "the upgrade failed; this process continues to serve");
            }
        }
        outcome
    }

    async fn try_upgrade(&self, binary: Option<PathBuf>, patience: Duration) -> Result<u32, UpgradeError> {
        if std::process::id() == 1 {
            return Err("cannot upgrade PID 1: the container stops when this process exits; replace the container instead".to_owned().into());
        }
        if self.program.starts_application() {
            return Err("cannot upgrade a sluice that has started its application: the new process would start another one; restart both instead".to_owned().into());
        }
        let bans = Arc::clone(&self.site.live.load().bans);
        bans.pause_barrier(true);
        // The successor serves before this process hears of it.
        self.site.live.load().drain_caches(true);
        let successor = self.start_successor(binary, patience).await;
        if successor.is_err() {
            bans.pause_barrier(false);
            self.site.listeners.choose_again();
            self.site.live.load().drain_caches(false);
        }
        successor
    }

    async fn start_successor(
        &self,
        binary: Option<PathBuf>,
        patience: Duration,
    ) -> Result<u32, UpgradeError> {
        let few = |error: io::Error| format!("cannot pass sockets: {error}");
        let mut estate = self.site.estate().map_err(few)?;
        for (passed, socket) in &self.others {
            estate.sockets.push((passed.clone(), vec![socket.try_clone().map_err(few)?]));
        }
        let has_datagrams = estate.sockets.iter().any(|(passed, _)| passed.role == Role::Datagrams);
        let mut relayed = None;
        if has_datagrams {
            let (quic, receiver) = QuicProcess::this().bequeath().map_err(few)?;
            estate.quic = Some(quic);
            relayed = Some(tokio::spawn(receive_from_next(receiver)));
        }
        let program = self.program.clone().with_binary(binary);
        let started =
            tokio::task::spawn_blocking(move || Successor::start(&program, &estate, patience)).await;
        if let (Some(relayed), false) = (relayed, matches!(started, Ok(Ok(_)))) {
            QuicProcess::this().recall();
            relayed.abort();
        }
        started.map_err(|error| format!("the upgrade task failed: {error}"))?.map(|successor| successor.pid)
    }

    /// Resolves once another process has taken over.
    pub(super) async fn handed_over(&self) {
        self.done.notified().await;
    }
}
