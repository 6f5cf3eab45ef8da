//! Accept a connection together with its peer's address.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use io_uring::{cqueue, opcode};
use socket2::{SockAddr, SockAddrStorage};

use super::{Fd, Finished, raw, result, submit};

struct Peer {
    storage: SockAddrStorage,
    length: libc::socklen_t,
}

struct AcceptData {
    _fd: Fd,
    /// Boxed: the kernel writes the address here when a connection comes.
    peer: Box<Peer>,
}

impl Finished for AcceptData {
    type Output = io::Result<(OwnedFd, SockAddr)>;

    fn finish(self, cqe: cqueue::Entry) -> Self::Output {
        result(&cqe)?;
        // SAFETY: a non-negative result of accept is a new descriptor that nobody else knows of.
        let socket = unsafe { OwnedFd::from_raw_fd(cqe.result()) };
        let Peer { storage, length } = *self.peer;
        // SAFETY: the kernel filled `storage` with an address of `length` bytes; the operation is over,
        // so nothing writes to it any more.
        let address = unsafe { SockAddr::new(storage, length) };
        Ok((socket, address))
    }
}

/// Accepts one connection from the listening socket `fd`.
pub(crate) async fn accept(fd: &Fd) -> io::Result<(OwnedFd, SockAddr)> {
    let storage = SockAddrStorage::zeroed();
    let mut peer = Box::new(Peer { length: storage.size_of(), storage });
    let address: *mut SockAddrStorage = &raw mut peer.storage;
    let length = &raw mut peer.length;
    let entry = opcode::Accept::new(raw(fd), address.cast(), length).flags(libc::SOCK_CLOEXEC).build();
    submit(AcceptData { _fd: Fd::clone(fd), peer }, entry).await
}
