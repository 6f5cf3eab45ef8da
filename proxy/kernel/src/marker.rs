//! A worker's interface to the programs: marks sockets to be joined, and checks the result.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::{HashMap, Map, MapData, MapError, SkStorage, SockHash};
use sluice_ebpf::{End, Known, Tuple, UNREAD_OFFSET, Wish, names};

use super::bpf;
use super::failed::{Result, failed};
use super::tcp::{self, UnsentMax};

/// Descriptors that every marker duplicates.
pub(super) struct Descriptors {
    pub(super) storage: OwnedFd,
    pub(super) known: OwnedFd,
    pub(super) clients: OwnedFd,
    pub(super) unread: OwnedFd,
}

impl Descriptors {
    /// A marker with its own descriptors.
    pub(super) fn marker(&self) -> Result<Marker> {
        let data = |fd: &OwnedFd| {
            let fd = fd.try_clone().map_err(failed("dup the map"))?;
            MapData::from_fd(fd).map_err(failed("bpf(BPF_OBJ_GET_INFO_BY_FD)"))
        };
        Ok(Marker {
            storage: Map::SkStorage(data(&self.storage)?).try_into().map_err(failed(names::STATE))?,
            known: Map::HashMap(data(&self.known)?).try_into().map_err(failed(names::KNOWN))?,
            clients: Map::SockHash(data(&self.clients)?).try_into().map_err(failed(names::CLIENTS))?,
            unread: self.unread.try_clone().map_err(failed("dup the program"))?,
        })
    }
}

/// Requests that connections are joined.
pub struct Marker {
    storage: SkStorage<MapData, End>,
    known: HashMap<MapData, Tuple, Known>,
    clients: SockHash<MapData, u64>,
    unread: OwnedFd,
}

/// A client to which the kernel can send responses without sluice.
#[derive(Clone, Copy, Debug)]
pub struct ClientSocket {
    /// Its key in the map.
    pub cookie: u64,
    /// Address of its `tcp_sock`, through which the programs read.
    pub address: u64,
    /// Sequence number of the first byte sent to it.
    pub sent_next: u32,
    /// See [`Slot::slack`](sluice_ebpf::slot::Slot::slack): its value after the last exchange.
    pub slack: u64,
}

impl Marker {
    /// Marks `socket`, which is not connected yet, to be joined with its other end once it is connected. `slot` is the
    /// index of its slot, or 0.
    ///
    /// # Errors
    /// The kernel has no room for it.
    pub fn mark(&mut self, socket: BorrowedFd<'_>, wish: Wish, slot: u32) -> Result<()> {
        let end = End::wishing(wish, slot);
        self.storage.insert(&socket.as_raw_fd(), end, 0).map_err(failed("bpf(BPF_MAP_UPDATE_ELEM)"))
    }

    /// Whether both ends of a connection are in the map. Check before the first byte: afterwards, some bytes may have
    /// gone through TCP.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn is_joined(&self, socket: BorrowedFd<'_>) -> Result<bool> {
        let Some(end) = self.end(socket)? else {
            return Ok(false);
        };
        match self.known.get(&end.tuple.mirrored(), 0) {
            Ok(_) => Ok(true),
            Err(MapError::KeyNotFound) => Ok(false),
            Err(error) => Err(failed("bpf(BPF_MAP_LOOKUP_ELEM)")(error)),
        }
    }

    /// Whether an end is in the map, regardless of its other end.
    ///
    /// # Errors
    /// A map cannot be read.
    pub fn holds(&self, socket: BorrowedFd<'_>) -> Result<bool> {
        Ok(self.end(socket)?.is_some())
    }

    /// Bytes that the other end of a joined connection has received and not read; 0 as long as that end has not been
    /// accepted.
    ///
    /// # Errors
    /// A map cannot be read, or the program cannot be run.
    pub fn unread(&self, socket: BorrowedFd<'_>) -> Result<u32> {
        let Some(end) = self.end(socket)? else {
            return Ok(0);
        };
        let mut frame = [0; UNREAD_OFFSET + size_of::<Tuple>()];
        frame[UNREAD_OFFSET..].copy_from_slice(&end.tuple.mirrored().to_bytes());
        bpf::run_program(self.unread.as_fd(), &frame).map_err(failed("run the classifier"))
    }

    /// Registers an accepted connection as a client to which responses can be sent. `None` if its listener was not
    /// marked for that, or if the connection has begun to close. Other reads and writes on it are unaffected.
    ///
    /// # Errors
    /// The map has no room.
    pub fn add_client(&mut self, socket: BorrowedFd<'_>) -> Result<Option<ClientSocket>> {
        let noted = match self.storage.get(&socket.as_raw_fd(), 0) {
            Ok(end) => (end.wish == Wish::Direct as u32 && end.own != 0).then_some(end),
            Err(MapError::KeyNotFound) => None,
            Err(error) => return Err(failed("bpf(BPF_MAP_LOOKUP_ELEM)")(error)),
        };
        let Some(end) = noted else {
            return Ok(None);
        };
        let cookie = tcp::cookie(socket).map_err(failed("getsockopt(SO_COOKIE)"))?;
        // With a low limit the kernel would take only part of a response, and nothing would tell the application when
        // to continue.
        tcp::set_unsent_max(socket, UnsentMax::Room).map_err(failed("setsockopt(TCP_NOTSENT_LOWAT)"))?;
        match self.clients.insert(cookie, socket.as_raw_fd(), 0) {
            Ok(()) => Ok(Some(ClientSocket { cookie, address: end.own, sent_next: end.sent_next, slack: 0 })),
            // No longer established.
            Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                Ok(None)
            }
            Err(error) => Err(failed("bpf(BPF_MAP_UPDATE_ELEM)")(error)),
        }
    }

    /// Turns the client back into an ordinary connection, if it is registered. No response may be in flight to it.
    pub fn remove_client(&mut self, cookie: u64) {
        // A missing entry means that the socket was closed.
        let _ = self.clients.remove(&cookie);
    }

    /// The state that the programs keep for a socket, if it is in the map.
    fn end(&self, socket: BorrowedFd<'_>) -> Result<Option<End>> {
        match self.storage.get(&socket.as_raw_fd(), 0) {
            Ok(end) => Ok((end.role != 0).then_some(end)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(failed("bpf(BPF_MAP_LOOKUP_ELEM)")(error)),
        }
    }
}
