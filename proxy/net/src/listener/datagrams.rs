//! UDP sockets, for HTTP/3: one for each worker, on the port of the listener.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use sluice_config::Address;
use socket2::{Domain, Protocol, Socket, Type};

use super::{DatagramSocket, Listening};
use crate::quic::{Origin, mailboxes};

/// Binds the sockets of a listener that speaks HTTP/3.
///
/// # Errors
/// The port is taken, or the process may not have it.
pub(super) fn bind(
    listening: &Listening,
    workers: usize,
) -> io::Result<impl Iterator<Item = DatagramSocket> + use<>> {
    let state = listening.current();
    let address = match (&state.config.http3, &state.config.address) {
        (Some(_), Address::Ip(address)) => Some(*address),
        _ => None,
    };
    let sockets = match address {
        Some(address) => bind_all(address, workers)?,
        None => Vec::new(),
    };
    let parts = sockets.into_iter().zip(mailboxes(workers)).enumerate();
    Ok(parts.map(|(worker, (socket, mailboxes))| {
        // There are at most 256 workers.
        let worker = u8::try_from(worker).unwrap_or(u8::MAX);
        DatagramSocket { socket, origin: Origin { generation: 0, worker }, mailboxes }
    }))
}

fn bind_all(address: SocketAddr, workers: usize) -> io::Result<Vec<OwnedFd>> {
    // Another process of the same user could share the port and take some of the packets. Binding once without
    // SO_REUSEPORT detects this.
    drop(udp(address, false)?);
    (0..workers).map(|_| udp(address, true).map(OwnedFd::from)).collect()
}

fn udp(address: SocketAddr, share_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(share_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}
