//! The old process's side of a handover.

use crate::handover::UpgradeError;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, setsockopt, socketpair, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use sluice_config::{Endpoint, write_endpoints};
use sluice_core::bans::ListedBan;
use sluice_core::rate_limit::KnownClients;
use sluice_net::quic::QuicEstate;

use super::predecessor::{EndpointExperience, Unhealthy};
use super::{DESCRIPTORS_MAX, FOUND_MAX, Packet, PassedQuic, PassedSockets, VARIABLE, receive, send};

const ENDED: &str = "the new process exited before it was ready";
/// How long to wait for the exit of a process that has closed its end of the pair.
const END_CHECKS: (u32, Duration) = (100, Duration::from_millis(10));

/// How this process was started, and how to start the next one.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    binary: PathBuf,
    arguments: Vec<OsString>,
}

impl Program {
    /// Must be called at startup: after the binary was replaced, its path can no longer be determined.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        Ok(Self { binary: std::env::current_exe()?, arguments: std::env::args_os().skip(1).collect() })
    }

    /// Whether it starts an application, as `sluice run … -- COMMAND` does.
    pub(crate) fn starts_application(&self) -> bool {
        self.arguments.iter().any(|argument| argument == "--")
    }

    /// The same with another binary.
    pub(crate) fn with_binary(self, binary: Option<PathBuf>) -> Self {
        Self { binary: binary.unwrap_or(self.binary), ..self }
    }
}

/// A new process that has received everything and serves.
#[derive(Debug)]
pub(crate) struct Successor {
    pub(crate) pid: u32,
}

/// Everything that a new process needs.
#[derive(Debug, Default)]
pub(crate) struct Estate {
    pub(crate) sockets: Vec<(PassedSockets, Vec<OwnedFd>)>,
    pub(crate) unhealthy: Vec<Unhealthy>,
    pub(crate) experienced: Vec<EndpointExperience>,
    /// Endpoints that were found, by cluster.
    pub(crate) found: BTreeMap<String, Vec<Endpoint>>,
    pub(crate) bans: Vec<ListedBan>,
    pub(crate) clients: Vec<KnownClients>,
    pub(crate) quic: Option<QuicEstate>,
}

impl Successor {
    /// Starts a new process, passes everything to it, and waits until it serves. Blocks.
    ///
    /// # Errors
    /// A sentence about why it does not; the new process has exited then.
    pub(crate) fn start(
        program: &Program,
        estate: &Estate,
        patience: Duration,
    ) -> Result<Self, UpgradeError> {
        let binary = program.binary.display();
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (ours, theirs) = pair.map_err(|error| format!("socketpair: {error}"))?;
        let mut child = Command::new(&program.binary)
            .args(&program.arguments)
            .env(VARIABLE, "1")
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|error| format!("{binary} cannot be started: {error}"))?;
        match hand_over(&ours, estate, patience) {
            Ok(()) => Ok(Self { pid: child.id() }),
            Err(reason) => {
                drop(ours);
                Err(format!("{reason}{}", end(&mut child)).into())
            }
        }
    }
}

fn hand_over(socket: &OwnedFd, estate: &Estate, patience: Duration) -> Result<(), UpgradeError> {
    let limit = TimeVal::milliseconds(i64::try_from(patience.as_millis()).unwrap_or(i64::MAX));
    setsockopt(socket, sockopt::ReceiveTimeout, &limit).map_err(|error| format!("setsockopt: {error}"))?;
    // If sending fails, the packet received next explains why.
    let sent = pass(socket, estate);
    match receive(socket) {
        Ok(Some((Packet::Ready, _))) => sent.map_err(|error| format!("cannot pass sockets: {error}").into()),
        Ok(Some((Packet::Failed(reason), _))) => Err(format!("the new process failed: {reason}").into()),
        Ok(Some(_)) => Err("the new process sent an unexpected message".into()),
        Ok(None) => Err(ENDED.to_owned().into()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(ENDED.to_owned().into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(format!("the new process was not ready after {} ms", patience.as_millis()).into())
        }
        Err(error) => Err(format!("cannot read from the new process: {error}").into()),
    }
}

fn pass(socket: &OwnedFd, estate: &Estate) -> io::Result<()> {
    for (passed, sockets) in &estate.sockets {
        let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        for sockets in sockets.chunks(DESCRIPTORS_MAX) {
            send(socket, &Packet::Sockets(passed.clone()), sockets)?;
        }
    }
    for Unhealthy { cluster, endpoint, since_unix_s } in &estate.unhealthy {
        let (cluster, endpoint) = (cluster.clone(), endpoint.clone());
        send(socket, &Packet::Unhealthy { cluster, endpoint, since_unix_s: *since_unix_s }, &[])?;
    }
    for EndpointExperience { cluster, endpoint, experience } in &estate.experienced {
        let (cluster, endpoint) = (cluster.clone(), endpoint.clone());
        send(socket, &Packet::Joinable { cluster, endpoint, experience: *experience }, &[])?;
    }
    for (cluster, found) in &estate.found {
        for part in found.chunks(FOUND_MAX) {
            let endpoints = write_endpoints(part);
            send(socket, &Packet::Found { cluster: cluster.clone(), endpoints }, &[])?;
        }
    }
    for ban in &estate.bans {
        send(socket, &Packet::Ban(ban.clone()), &[])?;
    }
    for clients in &estate.clients {
        send(socket, &Packet::Clients(clients.clone()), &[])?;
    }
    if let Some(QuicEstate { secret, generation, relays }) = &estate.quic {
        let generations = relays.iter().map(|(generation, _)| *generation).collect();
        let passed = PassedQuic { secret: *secret, generation: *generation, generations };
        let sockets: Vec<_> = relays.iter().map(|(_, socket)| socket.as_fd()).collect();
        send(socket, &Packet::Quic(passed), &sockets)?;
    }
    send(socket, &Packet::End, &[])
}

/// Ends an unwanted process; returns how it exited, if it did so by itself.
fn end(child: &mut Child) -> String {
    let (checks, pause) = END_CHECKS;
    let ended = (0..checks).find_map(|_| {
        let ended = child.try_wait().ok().flatten();
        if ended.is_none() {
            std::thread::sleep(pause);
        }
        ended
    });
    let _ = child.kill();
    match (ended, child.wait()) {
        (Some(status), _) => format!(" ({status})"),
        (None, _) => String::new(),
    }
}
