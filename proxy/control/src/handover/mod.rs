//! One process takes over from another of the same configuration: the listening sockets go across by SCM_RIGHTS
//! (unix(7)), the new process says when it serves, and then the old one drains.
//!
//! They talk by packets over a pair of sockets, the new process's end of which is its standard input. A process
//! that ends closes its end, so each sees the other's failure.

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
use sluice_core::cluster::Experience;

pub(crate) use error::UpgradeError;
pub use predecessor::Predecessor;
pub(crate) use predecessor::{EndpointExperience, Unhealthy};
pub(crate) use successor::{Estate, Program, Successor};

/// Set in the environment of a process whose standard input is the other end.
const VARIABLE: &str = "SLUICE_HANDOVER";
/// Descriptors in one packet; the kernel takes 253 (SCM_MAX_FD).
const DESCRIPTORS_MAX: usize = 128;
/// Bytes of one packet.
const PACKET_BYTES_MAX: usize = 64 << 10;

/// What one process tells the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Packet {
    /// To the new one: sockets, which come with it.
    Sockets(PassedSockets),
    /// To the new one: an endpoint that active checks have found unhealthy.
    Unhealthy { cluster: String, endpoint: String, since_unix_s: u64 },
    /// To the new one: what is known of an endpoint's use of joined connections.
    Joinable { cluster: String, endpoint: String, experience: Experience },
    /// To the new one: that was all.
    End,
    /// To the old one: requests are being served.
    Ready,
    /// To the old one: why not.
    Failed(String),
    /// Something that this version does not know, and so does not need.
    #[serde(skip)]
    Unknown,
}

/// What sockets are for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PassedSockets {
    pub(crate) role: Role,
    /// Name of the listener.
    pub(crate) name: String,
    /// The address as the configuration has it.
    pub(crate) configured: String,
    /// Whether nobody but sluice has them; what an older version passes may be a service manager's.
    #[serde(default)]
    pub(crate) are_own: bool,
}

/// Who listens on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Listener,
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

/// The next packet, and the sockets that came with it; `None` when the other process has closed its end.
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

/// Later versions may say more than this one understands.
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
    fn what_only_a_later_version_says_is_passed_over() {
        assert_eq!(packet(br#"{"Future":{"a":[1,2]}}"#).unwrap(), Packet::Unknown);
        assert_eq!(packet(br#""Later""#).unwrap(), Packet::Unknown);
        assert_eq!(packet(br#""Ready""#).unwrap(), Packet::Ready);
        assert!(packet(br#"{"Sockets":{"role":1}}"#).is_err());
        assert!(packet(b"{").is_err());
    }

    #[test]
    fn packets_bring_their_sockets() {
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
