//! Opens upstream sockets.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
#[cfg(test)]
use std::rc::Rc;

use sluice_core::cluster::EndpointAddress;
use sluice_core::error::Reason;
use sluice_net::stream::Stream;
use sluice_ring as ring;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// A function that simulates the network.
#[cfg(test)]
pub(crate) type Network = Rc<dyn Fn(&EndpointAddress) -> io::Result<Stream>>;

/// How connections are opened: by sockets, or to in-memory origins in tests.
#[derive(Clone)]
pub enum Connector {
    /// Real sockets.
    Sockets,
    /// In memory.
    #[cfg(test)]
    Memory(Network),
}

impl Connector {
    /// Connects to `address`; the caller limits the time. `prepare` is called with the socket before it connects.
    pub(crate) async fn connect(
        &self,
        address: &EndpointAddress,
        prepare: impl FnOnce(BorrowedFd<'_>),
    ) -> io::Result<Stream> {
        match self {
            Self::Sockets => connect(address, prepare).await,
            #[cfg(test)]
            Self::Memory(connect) => connect(address),
        }
    }
}

async fn connect(address: &EndpointAddress, prepare: impl FnOnce(BorrowedFd<'_>)) -> io::Result<Stream> {
    let (socket, address) = match address {
        EndpointAddress::Ip(address) => {
            let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
            // A request is sent in one piece; waiting for more data to fill a segment would only delay it.
            socket.set_tcp_nodelay(true)?;
            (socket, SockAddr::from(*address))
        }
        EndpointAddress::Unix(path) => {
            (Socket::new(Domain::UNIX, Type::STREAM, None)?, SockAddr::unix(path)?)
        }
    };
    prepare(socket.as_fd());
    let fd = ring::Fd::from(OwnedFd::from(socket));
    ring::connect(&fd, address).await?;
    Ok(Stream::Socket(fd))
}

/// The reason code of a failed connect.
pub(crate) fn reason(error: &io::Error) -> Reason {
    match error.raw_os_error() {
        Some(libc::ECONNREFUSED | libc::ENOENT) => Reason::ConnectRefused,
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Reason::LocalResource,
        Some(libc::ETIMEDOUT) => Reason::ConnectTimeout,
        _ => Reason::ConnectFailed,
    }
}
