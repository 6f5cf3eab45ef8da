//! The new process's side.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use sluice_config::Address;
use sluice_core::cluster::Experience;
use sluice_net::listener::ReadySockets;

use super::{Packet, PassedSockets, Role, VARIABLE, receive, send};

/// The process that this one takes over from, and what it has passed.
#[derive(Debug)]
pub struct Predecessor {
    socket: OwnedFd,
    passed: Vec<(PassedSockets, Vec<OwnedFd>)>,
    unhealthy: Vec<Unhealthy>,
    experienced: Vec<EndpointExperience>,
}

/// An endpoint that the old process had found unhealthy.
#[derive(Debug)]
pub(crate) struct Unhealthy {
    pub(crate) cluster: String,
    pub(crate) endpoint: String,
    pub(crate) since_unix_s: u64,
}

/// An endpoint that the old process has found something out about.
#[derive(Debug)]
pub(crate) struct EndpointExperience {
    pub(crate) cluster: String,
    pub(crate) endpoint: String,
    pub(crate) experience: Experience,
}

impl Predecessor {
    /// Receives what the old process passes, if this one was started by one.
    ///
    /// # Errors
    /// When the old process went away in the middle of it.
    pub fn from_environment() -> io::Result<Option<Self>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        // Whoever reads standard input later must not meet the other process there.
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        let mut predecessor =
            Self { socket, passed: Vec::new(), unhealthy: Vec::new(), experienced: Vec::new() };
        loop {
            match receive(&predecessor.socket)? {
                Some((Packet::Sockets(passed), sockets)) => predecessor.passed.push((passed, sockets)),
                Some((Packet::Unhealthy { cluster, endpoint, since_unix_s }, _)) => {
                    predecessor.unhealthy.push(Unhealthy { cluster, endpoint, since_unix_s });
                }
                Some((Packet::Joinable { cluster, endpoint, experience }, _)) => {
                    predecessor.experienced.push(EndpointExperience { cluster, endpoint, experience });
                }
                Some((Packet::Unknown, _)) => {}
                Some((Packet::End, _)) => return Ok(Some(predecessor)),
                Some((Packet::Ready | Packet::Failed(_), _)) | None => {
                    return Err(io::Error::other("the process to take over from has ended"));
                }
            }
        }
    }

    /// Takes the sockets of a listener: those of its name and address, else those of its address.
    pub(crate) fn take_listener(&mut self, name: &str, configured: &Address) -> ReadySockets {
        let configured = configured.to_string();
        let fits = |passed: &PassedSockets| passed.role == Role::Listener && passed.configured == configured;
        let of = self.passed.iter().find(|(passed, _)| fits(passed) && passed.name == name);
        let of = of.or_else(|| self.passed.iter().find(|(passed, _)| fits(passed)));
        let Some((named, are_own)) = of.map(|(passed, _)| (passed.name.clone(), passed.are_own)) else {
            return ReadySockets::default();
        };
        ReadySockets { sockets: self.take(|passed| fits(passed) && passed.name == named), are_own }
    }

    /// Takes the socket of a role of which there is one.
    pub(crate) fn take_only(&mut self, role: Role, configured: &str) -> Option<OwnedFd> {
        self.take(|passed| passed.role == role && passed.configured == configured).pop()
    }

    fn take(&mut self, wanted: impl Fn(&PassedSockets) -> bool) -> Vec<OwnedFd> {
        self.passed.extract_if(.., |(passed, _)| wanted(passed)).flat_map(|(_, sockets)| sockets).collect()
    }

    /// What the old process knew of endpoints.
    pub(crate) fn unhealthy(&self) -> &[Unhealthy] {
        &self.unhealthy
    }

    /// What it knew of their use of joined connections.
    pub(crate) fn experienced(&self) -> &[EndpointExperience] {
        &self.experienced
    }

    /// Tells the old process that requests are being served. Sockets that were not taken are closed.
    ///
    /// # Errors
    /// When the old process has given this one up.
    pub(crate) fn ready(self) -> io::Result<()> {
        send(&self.socket, &Packet::Ready, &[])
    }

    /// Tells the old process why this one ends.
    pub fn fail(&self, reason: &str) {
        // If nobody listens any more there is nobody to tell.
        let _ = send(&self.socket, &Packet::Failed(reason.chars().take(4000).collect()), &[]);
    }
}
