//! UDP sockets, for HTTP/3: one for each worker, on the port of the listener.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use sluice_config::{Address, AssistMode};
use sluice_kernel::socket::choose_by_address;
use sluice_kernel::steering;
use socket2::{Domain, Protocol, Socket, Type};

use super::DatagramSockets;
use crate::quic::{LAYOUT, Origin, QuicProcess, mailboxes};

/// Binds the sockets of a listener that speaks HTTP/3 on a bound address, for each worker. `ready` are sockets that exist
/// already; new ones join them if the process may bind them. `configured` is the address as another process with the
/// same configuration knows it.
///
/// # Errors
/// The port is taken, or the process may not have it.
pub fn bind(
    bound: &Address,
    configured: &Address,
    workers: usize,
    ready: Vec<OwnedFd>,
) -> io::Result<Vec<Option<DatagramSockets>>> {
    let Address::Ip(address) = bound else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut by_worker: Vec<Vec<OwnedFd>> = (0..workers).map(|_| Vec::new()).collect();
    let sockets = complete(*address, workers, ready)?;
    if let [first, _, ..] = &sockets[..] {
        steer(*address, first)?;
    }
    for (index, socket) in sockets.into_iter().enumerate() {
        by_worker[index % workers].push(socket);
    }
    let generation = QuicProcess::this().generation();
    let parts = by_worker.into_iter().zip(mailboxes(&configured.to_string(), workers)).enumerate();
    Ok(parts
        .map(|(worker, (sockets, mailboxes))| {
            // There are at most 256 workers.
            let worker = u8::try_from(worker).unwrap_or(u8::MAX);
            let origin = Origin { generation, worker };
            (!sockets.is_empty()).then_some(DatagramSockets { sockets, origin, mailboxes })
        })
        .collect())
}

/// At least one socket for each worker, if possible.
fn complete(address: SocketAddr, workers: usize, mut sockets: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    if sockets.is_empty() {
        // Another process of the same user could share the port and take some of the packets. Binding once without
        // SO_REUSEPORT detects this.
        drop(udp(address, false)?);
    }
    while sockets.len() < workers {
        match udp(address, true) {
            Ok(socket) => sockets.push(socket.into()),
            // The process may have given up the privilege. The workers without a socket serve TCP.
            Err(error) if !sockets.is_empty() => {
                tracing::info!(%address, %error, "HTTP/3 on fewer workers");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

/// Makes the kernel give packets to the socket of the worker that has their connection, if it may. A worker reads the socket
/// with its number, whatever others it reads.
fn steer(address: SocketAddr, socket: &OwnedFd) -> io::Result<()> {
    let mode = QuicProcess::this().steering();
    if mode == AssistMode::Off {
        choose_by_address(socket.as_fd());
        return Ok(());
    }
    match steering::steer(socket.as_fd(), LAYOUT) {
        Ok(()) => {
            tracing::info!(%address, "the kernel gives packets of HTTP/3 to the worker that has their connection");
            Ok(())
        }
        Err(error) if mode == AssistMode::Required => Err(io::Error::other(format!(
            "kernel.quic_steering: required, but {error}; auto runs without it"
        ))),
        Err(error) => {
            tracing::info!(%address, %error, "workers pass packets of HTTP/3 to each other, not the kernel");
            Ok(())
        }
    }
}

/// Duplicates the sockets of a listener in the order in which they were bound. `parts` are in the order of the workers.
///
/// # Errors
/// No descriptors are left.
pub fn hold<'a>(parts: impl Iterator<Item = &'a DatagramSockets>) -> io::Result<Vec<OwnedFd>> {
    let mut sockets: Vec<_> = parts.flat_map(|part| part.sockets.iter().enumerate()).collect();
    sockets.sort_by_key(|(round, _)| *round);
    sockets.into_iter().map(|(_, socket)| socket.try_clone()).collect()
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
