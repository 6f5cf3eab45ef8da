//! The new process's side of a handover.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use sluice_config::{Address, Endpoint, parse_endpoints};
use sluice_core::bans::ListedBan;
use sluice_core::cluster::Experience;
use sluice_core::rate_limit::KnownClients;
use sluice_net::listener::ReadySockets;
use sluice_net::quic::QuicEstate;

use super::{FOUND_MAX, Packet, PassedQuic, PassedSockets, Role, VARIABLE, receive, send};

/// The old process, and what it passed.
#[derive(Debug)]
pub struct Predecessor {
    socket: OwnedFd,
    passed: Vec<(PassedSockets, Vec<OwnedFd>)>,
    unhealthy: Vec<Unhealthy>,
    experienced: Vec<EndpointExperience>,
    found: BTreeMap<String, Vec<Endpoint>>,
    bans: Vec<ListedBan>,
    clients: Vec<KnownClients>,
    quic: Option<QuicEstate>,
}

/// An endpoint that the old process found unhealthy.
#[derive(Debug)]
pub(crate) struct Unhealthy {
    pub(crate) cluster: String,
    pub(crate) endpoint: String,
    pub(crate) since_unix_s: u64,
}

/// An endpoint's record with joined connections, from the old process.
#[derive(Debug)]
pub(crate) struct EndpointExperience {
    pub(crate) cluster: String,
    pub(crate) endpoint: String,
    pub(crate) experience: Experience,
}

impl Predecessor {
    /// Receives what the old process passes, if this process was started by one.
    ///
    /// # Errors
    /// When the old process exits before the end.
    pub fn from_environment() -> io::Result<Option<Self>> {
        if std::env::var_os(VARIABLE).is_none() {
            return Ok(None);
        }
        let socket = io::stdin().as_fd().try_clone_to_owned()?;
        // Later readers of standard input must not find the socket there.
        rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
        let mut predecessor = Self {
            socket,
            passed: Vec::new(),
            unhealthy: Vec::new(),
            experienced: Vec::new(),
            found: BTreeMap::new(),
            bans: Vec::new(),
            clients: Vec::new(),
            quic: None,
        };
        loop {
            match receive(&predecessor.socket)? {
                Some((Packet::Sockets(passed), sockets)) => predecessor.passed.push((passed, sockets)),
                Some((Packet::Unhealthy { cluster, endpoint, since_unix_s }, _)) => {
                    predecessor.unhealthy.push(Unhealthy { cluster, endpoint, since_unix_s });
                }
                Some((Packet::Joinable { cluster, endpoint, experience }, _)) => {
                    predecessor.experienced.push(EndpointExperience { cluster, endpoint, experience });
                }
                Some((Packet::Found { cluster, endpoints }, _)) => {
                    let known = predecessor.found.entry(cluster).or_default();
                    // Another version may write what this one does not know.
                    known.extend(
                        parse_endpoints("the old process", &endpoints, FOUND_MAX).unwrap_or_default(),
                    );
                }
                Some((Packet::Ban(ban), _)) => predecessor.bans.push(ban),
                Some((Packet::Clients(clients), _)) => predecessor.clients.push(clients),
                Some((Packet::Quic(passed), sockets)) => {
                    let PassedQuic { secret, generation, generations } = passed;
                    let relays = generations.into_iter().zip(sockets).collect();
                    predecessor.quic = Some(QuicEstate { secret, generation, relays });
                }
                Some((Packet::Unknown, _)) => {}
                Some((Packet::End, _)) => return Ok(Some(predecessor)),
                Some((Packet::Ready | Packet::Failed(_), _)) | None => {
                    return Err(io::Error::other("the old process has exited"));
                }
            }
        }
    }

    /// Takes the sockets of a listener: those with its name and address, otherwise those with its address.
    pub(crate) fn take_listener(&mut self, name: &str, configured: &Address) -> ReadySockets {
        let configured = configured.to_string();
        let fits = |passed: &PassedSockets| passed.role == Role::Listener && passed.configured == configured;
        let of = self.passed.iter().find(|(passed, _)| fits(passed) && passed.name == name);
        let of = of.or_else(|| self.passed.iter().find(|(passed, _)| fits(passed)));
        let Some((named, are_own)) = of.map(|(passed, _)| (passed.name.clone(), passed.are_own)) else {
            return ReadySockets::default();
        };
        let sockets = self.take(|passed| fits(passed) && passed.name == named);
        let of_datagrams = |passed: &PassedSockets| {
            passed.role == Role::Datagrams && passed.configured == configured && passed.name == named
        };
        ReadySockets { sockets, datagrams: self.take(of_datagrams), are_own }
    }

    /// Takes what is needed of QUIC connections that the old process has.
    pub(crate) fn take_quic(&mut self) -> Option<QuicEstate> {
        self.quic.take()
    }

    /// Takes the socket of a role that has only one.
    pub(crate) fn take_only(&mut self, role: Role, configured: &str) -> Option<OwnedFd> {
        self.take(|passed| passed.role == role && passed.configured == configured).pop()
    }

    fn take(&mut self, wanted: impl Fn(&PassedSockets) -> bool) -> Vec<OwnedFd> {
        self.passed.extract_if(.., |(passed, _)| wanted(passed)).flat_map(|(_, sockets)| sockets).collect()
    }

    /// The endpoints that the old process found unhealthy.
    pub(crate) fn unhealthy(&self) -> &[Unhealthy] {
        &self.unhealthy
    }

    /// The records of endpoints with joined connections.
    pub(crate) fn experienced(&self) -> &[EndpointExperience] {
        &self.experienced
    }

    /// The endpoints of a cluster that were found.
    pub(crate) fn found(&self, cluster: &str) -> &[Endpoint] {
        self.found.get(cluster).map_or(&[], Vec::as_slice)
    }

    /// Banned addresses.
    pub(crate) fn bans(&self) -> &[ListedBan] {
        &self.bans
    }

    /// Clients of rate limits.
    pub(crate) fn clients(&self) -> &[KnownClients] {
        &self.clients
    }

    /// Tells the old process that this one serves. Sockets that were not taken are closed.
    ///
    /// # Errors
    /// When the old process has given up on this one.
    pub(crate) fn ready(self) -> io::Result<()> {
        send(&self.socket, &Packet::Ready, &[])
    }

    /// Tells the old process why this one exits.
    pub fn fail(&self, reason: &str) {
        // If the old process has gone, there is no one to notify.
        let _ = send(&self.socket, &Packet::Failed(reason.chars().take(4000).collect()), &[]);
    }
}
