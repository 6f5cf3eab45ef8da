//! Handover from one process to another with the same configuration: the listening sockets are passed with SCM_RIGHTS
//! (unix(7)), the new process reports that it serves, and the old one drains.
//!
//! The processes exchange packets over a socket pair; the new process's end is its standard input. A process that exits
//! closes its end, so each notices the other's failure.

mod error;
mod predecessor;
mod successor;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use sluice_core::bans::ListedBan;
use sluice_core::cluster::Experience;
use sluice_core::rate_limit::KnownClients;

pub(crate) use error::UpgradeError;
pub use predecessor::Predecessor;
pub(crate) use predecessor::{EndpointExperience, Unhealthy};
pub(crate) use successor::{Estate, Program, Successor};

/// Set in the environment of a new process whose standard input is the socket.
const VARIABLE: &str = "SLUICE_HANDOVER";
/// Maximum endpoints of one packet.
const FOUND_MAX: usize = 50;
/// Maximum descriptors of one packet; the kernel accepts 253 (SCM_MAX_FD).
const DESCRIPTORS_MAX: usize = 128;
/// Maximum bytes of one packet.
const PACKET_BYTES_MAX: usize = 64 << 10;

/// A message between the processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Packet {
    /// To the new one: sockets, which are attached.
    Sockets(PassedSockets),
    /// To the new one: an endpoint that active checks found unhealthy.
    Unhealthy { cluster: String, endpoint: String, since_unix_s: u64 },
    /// To the new one: an endpoint's record with joined connections.
    Joinable { cluster: String, endpoint: String, experience: Experience },
    /// To the new one: endpoints that were found, as a cluster's `endpoints`. Several for many.
    Found { cluster: String, endpoints: String },
    /// To the new one: a banned address.
    Ban(ListedBan),
    /// To the new one: clients of a rate limit.
    Clients(KnownClients),
    /// To the new one: how to reach QUIC connections that stay where they are. The sockets that lead to their processes
    /// are attached.
    Quic(PassedQuic),
    /// To the new one: the end of the list.
    End,
    /// To the old one: the new process serves requests.
    Ready,
    /// To the old one: why it does not.
    Failed(String),
    /// A message that this version does not know, and does not need.
    #[serde(skip)]
    Unknown,
}

/// The purpose of passed sockets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PassedSockets {
    pub(crate) role: Role,
    /// Name of the listener.
    pub(crate) name: String,
    /// The configured address.
    pub(crate) configured: String,
    /// Whether only sluice uses the sockets; sockets passed by an older version may belong to a service manager.
    #[serde(default)]
    pub(crate) are_own: bool,
}

/// What the new process needs to know of QUIC connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PassedQuic {
    secret: [u8; 32],
    /// Of the old process.
    generation: u8,
    /// Of the processes that the sockets lead to.
    generations: Vec<u8>,
}

/// The owner of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Listener,
    /// The UDP sockets of a listener.
    Datagrams,
    Admin,
    DemoOrigin,
}

fn send(socket: &OwnedFd, packet: &Packet, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(packet)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::Error::other("too many sockets for one packet"));
    }
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the next packet and its sockets; `None` when the other process has closed its end.
fn receive(socket: &OwnedFd) -> io::Result<Option<(Packet, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let length = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            sockets.extend(passed);
        }
    }
    if length == 0 {
        return Ok(None);
    }
    Ok(Some((packet(&bytes[..length])?, sockets)))
}

/// Later versions may send messages that this one does not know.
fn packet(bytes: &[u8]) -> io::Result<Packet> {
    match serde_json::from_slice(bytes) {
        Ok(packet) => Ok(packet),
        Err(error) if error.to_string().starts_with("unknown variant") => Ok(Packet::Unknown),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

    use super::*;

    #[test]
    fn messages_of_later_versions_are_ignored() {
        assert_eq!(packet(br#"{"Future":{"a":[1,2]}}"#).unwrap(), Packet::Unknown);
        assert_eq!(packet(br#""Later""#).unwrap(), Packet::Unknown);
        assert_eq!(packet(br#""Ready""#).unwrap(), Packet::Ready);
        assert!(packet(br#"{"Sockets":{"role":1}}"#).is_err());
        assert!(packet(b"{").is_err());
    }

    #[test]
    fn packets_carry_their_sockets() {
        let pair = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (ours, theirs) = pair.unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (role, name, configured) = (Role::Listener, "main".to_owned(), "127.0.0.1:0".to_owned());
        let packet = Packet::Sockets(PassedSockets { role, name, configured, are_own: true });
        let many = vec![listener.as_fd(); DESCRIPTORS_MAX];
        send(&ours, &packet, &many).unwrap();
        send(&ours, &Packet::End, &[]).unwrap();
        let (got, sockets) = receive(&theirs).unwrap().unwrap();
        assert_eq!((got, sockets.len()), (packet, DESCRIPTORS_MAX));
        let passed = std::net::TcpListener::from(sockets.into_iter().next().unwrap());
        assert_eq!(passed.local_addr().unwrap(), listener.local_addr().unwrap());
        assert_eq!(receive(&theirs).unwrap().unwrap().0, Packet::End);
        drop(ours);
        assert!(receive(&theirs).unwrap().is_none());
    }
}
