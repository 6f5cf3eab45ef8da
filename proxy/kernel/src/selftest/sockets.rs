//! Real connections over a loopback address, with the loaded programs.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::PollFlags;
use sluice_ebpf::Wish;
use socket2::{Domain, Protocol, Socket, Type};

use super::flow::is_later;
use super::pairs::{Counts, Pair, Pairs};
use super::trial::{Found, refused};
use super::wait::{Deadline, ready};
use crate::program::{Bypass, Limits, Marker, ProgramError};

/// Connections to our own listener.
pub(super) struct Sockets<'a> {
    listener: TcpListener,
    address: SocketAddr,
    bypass: &'a Bypass,
    marker: &'a mut Marker,
}

impl<'a> Sockets<'a> {
    /// Listens at `address`, on any port. `None` if this host does not have the address.
    pub(super) fn on(
        address: IpAddr,
        bypass: &'a Bypass,
        marker: &'a mut Marker,
    ) -> Result<Option<Self>, Found> {
        let listener = match TcpListener::bind((address, 0)) {
            Ok(listener) => listener,
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(refused("listen")(error)),
        };
        listener.set_nonblocking(true).map_err(refused("listen"))?;
        let address = listener.local_addr().map_err(refused("getsockname"))?;
        Ok(Some(Self { listener, address, bypass, marker }))
    }

    /// Sets how the programs treat connections accepted from now on.
    pub(super) fn mark_listener(&mut self, wish: Wish) -> Result<(), Found> {
        self.marker.mark(self.listener.as_fd(), wish, 0).map_err(unknown)
    }

    /// Opens a connection. `mark` gets the socket before it is connected.
    pub(super) fn open(
        &mut self,
        mark: impl FnOnce(&mut Marker, BorrowedFd<'_>) -> Result<(), Found>,
        deadline: Deadline,
    ) -> Result<Pair, Found> {
        let kind = Type::STREAM.nonblocking();
        let socket = Socket::new(Domain::for_address(self.address), kind, Some(Protocol::TCP));
        let socket = socket.map_err(refused("socket"))?;
        mark(self.marker, socket.as_fd())?;
        match socket.connect(&self.address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(refused("connect")(error)),
        }
        let active = TcpStream::from(socket);
        ready(&[(&active, PollFlags::POLLOUT)], deadline, "our own connection")?;
        if let Some(error) = active.take_error().map_err(refused("getsockopt"))? {
            return Err(refused("connect")(error));
        }
        let passive = self.accept(&active, deadline)?;
        Pair::of(active, passive)
    }

    /// The other end of `active`. Any process may connect to the listener; other connections are closed.
    fn accept(&self, active: &TcpStream, deadline: Deadline) -> Result<TcpStream, Found> {
        let ours = active.local_addr().map_err(refused("getsockname"))?;
        loop {
            // Check the deadline each time, so that no process can keep this loop running by connecting repeatedly.
            ready(&[(&self.listener, PollFlags::POLLIN)], deadline, "our own connection")?;
            match self.listener.accept() {
                Ok((passive, peer)) if peer == ours => return Ok(passive),
                Ok(_) => {}
                Err(error) if is_later(&error) || error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(refused("accept")(error)),
            }
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT))
}

/// An error of the programs' maps.
pub(super) fn unknown(error: ProgramError) -> Found {
    Found::new(error.to_string())
}

impl Pairs for Sockets<'_> {
    fn connect(&mut self, asked: bool, deadline: Deadline) -> Result<Pair, Found> {
        let mark = |marker: &mut Marker, socket: BorrowedFd<'_>| match asked {
            true => marker.mark(socket, Wish::SameNamespace, 0).map_err(unknown),
            false => Ok(()),
        };
        self.open(mark, deadline)
    }

    fn is_joined(&self, pair: &Pair) -> Result<bool, Found> {
        let joined = |end: &TcpStream| self.bypass.is_joined(end.as_fd()).map_err(unknown);
        Ok(joined(&pair.active)? && joined(&pair.passive)?)
    }

    fn counts(&self) -> Result<Option<Counts>, Found> {
        self.bypass.counters().map(|counters| Some(Counts(counters))).map_err(unknown)
    }

    fn limits(&self) -> Limits {
        self.bypass.limits()
    }
}
