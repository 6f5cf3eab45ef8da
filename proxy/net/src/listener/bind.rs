//! Creates the listening sockets, or takes those that systemd created.

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use listenfd::ListenFd;
use sluice_config::{self as config, Address};
use sluice_core::tls;
use sluice_kernel::socket::choose_by_address;
use sluice_kernel::tcp::cookie;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::{Bound, Listening, datagrams};

/// Connections that may wait to be accepted, per socket. The kernel reduces it to net.core.somaxconn.
pub const BACKLOG: i32 = 4096;

/// A listener could not be created.
#[derive(Debug, thiserror::Error)]
#[error("listener {name} cannot listen on {address}: {source}")]
pub struct BindError {
    name: String,
    address: Address,
    source: io::Error,
}

/// Sockets that already exist.
#[derive(Default)]
pub struct ReadySockets {
    /// Bound; one per worker, or fewer.
    pub sockets: Vec<OwnedFd>,
    /// UDP sockets on the same port.
    pub datagrams: Vec<OwnedFd>,
    /// Whether only sluice holds them.
    pub are_own: bool,
}

/// Returns the existing sockets for a listener, if there are any.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&config::Listener) -> ReadySockets;

/// Binds every listener for `workers` workers. The outer list is by worker. New sockets do not listen before
/// [`listen_all`].
///
/// Sockets that `take` returns are used in place of new ones. `ours` are ports on which this process already has
/// sockets; new sockets may share them. `terminators` terminate TLS on the listeners that use it.
///
/// # Errors
/// The first listener that cannot be bound.
pub fn bind_all(
    listeners: &[config::Listener],
    workers: usize,
    take: Take<'_>,
    ours: &HashSet<u16>,
    terminators: &tls::Planned,
) -> Result<Vec<Vec<Bound>>, BindError> {
    let mut by_worker: Vec<Vec<Bound>> = (0..workers).map(|_| Vec::new()).collect();
    for listener in listeners {
        let ReadySockets { mut sockets, datagrams, are_own } = take(listener);
        // Another process may have had the kernel turn clients away here, or choose by the connections of its workers.
        for socket in &sockets {
            Listening::let_everybody_in(socket.as_fd());
            choose_by_address(socket.as_fd());
        }
        // One with more workers had duplicates of them.
        sockets.retain(is_first());
        let is_own = are_own || sockets.is_empty();
        let failed =
            |source| BindError { name: listener.name.clone(), address: listener.address.clone(), source };
        let listens = !sockets.is_empty();
        let (address, sockets) = match &sockets[..] {
            [] => bind(&listener.address, workers, ours),
            [first, ..] => share(&sockets, workers).map(|shared| (bound_address(listener, first), shared)),
        }
        .map_err(failed)?;
        let terminator = terminators.of(&listener.name);
        let config = config::Listener { address, ..listener.clone() };
        let shares_port = matches!(&config.address, Address::Ip(ip) if ours.contains(&ip.port()));
        let listening = Arc::new(Listening::new(config, terminator, is_own).sharing_port(shares_port));
        let bound = &listening.current().config.address;
        let datagrams = match listener.http3 {
            Some(_) => datagrams::bind(bound, &listener.address, workers, datagrams).map_err(failed)?,
            None => Vec::new(),
        };
        let mut datagrams = datagrams.into_iter();
        for (index, socket) in sockets.into_iter().enumerate() {
            // The first socket of each worker.
            let datagrams = datagrams.next().flatten();
            let bound = Bound { listening: Arc::clone(&listening), socket, datagrams, listens };
            by_worker[index % workers].push(bound);
        }
    }
    Ok(by_worker)
}

/// Makes all sockets listen that do not yet. From here on, clients can connect.
///
/// # Errors
/// The first socket that cannot listen, because another process has started to listen on its address since the bind.
pub fn listen_all(bound: &[Vec<Bound>]) -> Result<(), BindError> {
    let mut seen: Vec<*const Listening> = Vec::new();
    for Bound { listening, socket, .. } in bound.iter().flatten().filter(|bound| !bound.listens) {
        let is_first = !seen.contains(&Arc::as_ptr(listening));
        seen.push(Arc::as_ptr(listening));
        let current = listening.current();
        let alone = match &current.config.address {
            // Sockets that are bound but do not listen do not block this bind, so it fails only if another socket
            // listens.
            Address::Ip(ip) if is_first && !listening.shares_port => tcp(*ip, false).map(drop),
            _ => Ok(()),
        };
        alone.and_then(|()| SockRef::from(socket).listen(BACKLOG)).map_err(|source| BindError {
            name: current.config.name.clone(),
            address: current.config.address.clone(),
            source,
        })?;
    }
    Ok(())
}

fn bind(address: &Address, workers: usize, ours: &HashSet<u16>) -> io::Result<(Address, Vec<OwnedFd>)> {
    let ip = match address {
        Address::Unix(path) => return Ok((address.clone(), share(&[unix(path)?], workers)?)),
        Address::Ip(ip) => *ip,
        Address::Name(name, port) => (name.as_str(), *port)
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrNotAvailable, "the name has no address"))?,
    };
    // With SO_REUSEPORT, a second process of the same user could bind the address too and silently take half of the
    // connections. Binding once without it detects this.
    let bound = match ours.contains(&ip.port()) {
        true => ip,
        false => tcp(ip, false)?.local_addr()?.as_socket().unwrap_or(ip),
    };
    let sockets = (0..workers).map(|_| tcp(bound, true).map(OwnedFd::from));
    Ok((Address::Ip(bound), sockets.collect::<io::Result<_>>()?))
}

/// The address of an existing socket. A port of 0 has become a real one.
fn bound_address(listener: &config::Listener, socket: &OwnedFd) -> Address {
    let bound = SockRef::from(socket).local_addr().ok().and_then(|address| address.as_socket());
    bound.map_or_else(|| listener.address.clone(), Address::Ip)
}

fn tcp(address: SocketAddr, share_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(share_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    // Accepted sockets inherit it, which saves a system call for each.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Binds a unix socket, and replaces a dead one: one that accepts no connection.
fn unix(path: &Path) -> io::Result<OwnedFd> {
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        if UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    Ok(socket.into())
}

/// Whether a descriptor is the first of its socket among those that the result is called with.
pub(super) fn is_first() -> impl FnMut(&OwnedFd) -> bool {
    let mut seen = HashSet::new();
    // Without the number, nothing is known to be a duplicate.
    move |socket| cookie(socket.as_fd()).map_or(true, |cookie| seen.insert(cookie))
}

/// At least one socket per worker. The given sockets are duplicated as often as necessary.
fn share(sockets: &[OwnedFd], workers: usize) -> io::Result<Vec<OwnedFd>> {
    for socket in sockets {
        // The ring waits by itself; a non-blocking socket would return EAGAIN.
        SockRef::from(socket).set_nonblocking(false)?;
    }
    let count = workers.max(sockets.len());
    sockets.iter().cycle().take(count).map(OwnedFd::try_clone).collect()
}

/// Sockets from a service manager that no listener has taken yet.
#[derive(Default)]
pub struct Inherited(Vec<(Address, OwnedFd)>);

impl Inherited {
    /// The sockets named in the environment (LISTEN_FDS of systemd): one per address, for all workers.
    pub fn from_environment() -> Self {
        let mut passed = ListenFd::from_env();
        let mut sockets = Vec::new();
        for index in 0..passed.len() {
            if let Ok(Some(listener)) = passed.take_tcp_listener(index) {
                sockets.extend(tcp_address(&listener).map(|address| (address, listener.into())));
            } else if let Ok(Some(listener)) = passed.take_unix_listener(index) {
                let address = listener.local_addr().ok();
                let path = address.and_then(|address| address.as_pathname().map(Path::to_path_buf));
                sockets.extend(path.map(|path| (Address::Unix(path), listener.into())));
            }
        }
        Self(sockets)
    }

    /// Takes the socket for an address.
    pub fn take(&mut self, wanted: &Address) -> Option<OwnedFd> {
        let index = self.0.iter().position(|(address, _)| address == wanted)?;
        Some(self.0.swap_remove(index).1)
    }

    /// Logs the sockets that were not taken.
    pub fn warn_of_rest(&self) {
        for (address, _) in &self.0 {
            tracing::warn!(%address, "socket from LISTEN_FDS matches no listener; closing it");
        }
    }
}

fn tcp_address(listener: &TcpListener) -> Option<Address> {
    let socket = SockRef::from(listener);
    // Best effort, as for our own sockets: the connection works without it.
    let _ = socket.set_tcp_nodelay(true);
    listener.local_addr().ok().map(Address::Ip)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::hold;
    use super::*;

    fn numbers(sockets: &[OwnedFd]) -> Vec<u64> {
        sockets.iter().map(|socket| cookie(socket.as_fd()).unwrap()).collect()
    }

    /// Binds a listener for workers with the sockets of another process, and holds it.
    fn passed_on(sockets: &[OwnedFd], workers: usize) -> Vec<OwnedFd> {
        let text = config::short_form("127.0.0.1:1", &["127.0.0.1:2".to_owned()]);
        let config = config::parse("c.yaml", &text, &[]).unwrap();
        let terminators = tls::Terminators::default().plan(&config.listeners).unwrap();
        let mut take = |_: &config::Listener| ReadySockets {
            sockets: sockets.iter().map(|socket| socket.try_clone().unwrap()).collect(),
            ..ReadySockets::default()
        };
        let ours = HashSet::new();
        let bound = bind_all(&config.listeners, workers, &mut take, &ours, &terminators).unwrap();
        assert!(bound.iter().all(|of_worker| !of_worker.is_empty()), "each worker has one");
        hold(&bound).unwrap().pop().unwrap().sockets
    }

    #[test]
    fn sockets_keep_their_order_through_processes_with_other_workers() {
        let first = tcp(SocketAddr::from(([127, 0, 0, 1], 0)), true).unwrap();
        let address = first.local_addr().unwrap().as_socket().unwrap();
        let rest = (1..4).map(|_| tcp(address, true).unwrap());
        let at_first: Vec<OwnedFd> = std::iter::once(first).chain(rest).map(OwnedFd::from).collect();
        let mut sockets = passed_on(&at_first, 4);
        for workers in [2, 7, 3, 4] {
            sockets = passed_on(&sockets, workers);
            let mut is_new = is_first();
            let first = sockets.iter().filter(|socket| is_new(socket));
            let first: Vec<u64> = first.map(|socket| cookie(socket.as_fd()).unwrap()).collect();
            assert_eq!(first, numbers(&at_first), "{workers} workers");
        }
        assert_eq!(sockets.len(), 4, "without duplicates");
    }
}
