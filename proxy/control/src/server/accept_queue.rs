//! How many connections wait to be accepted at listening sockets of this network namespace, without privileges: what
//! `ss -lt` shows as Recv-Q. The kernel is asked by netlink (sock_diag(7)), which takes microseconds; where that is denied,
//! /proc/net/tcp has the same in milliseconds.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

/// State of a listening socket in /proc/net/tcp: `TCP_LISTEN` of net/tcp_states.h.
const LISTEN: &str = "0A";
/// Lines that are read at most; a host has some tens of listening sockets, and they come first.
const LINES_MAX: usize = 4096;
/// Bytes of one netlink datagram: the kernel fills up to 32 KiB (netlink(7)).
const DATAGRAM_BYTES: usize = 32 * 1024;
/// Datagrams that are read at most.
const DATAGRAMS_MAX: usize = 256;

/// Waiting connections by listening address.
#[derive(Debug, Default)]
pub(super) struct AcceptQueues(HashMap<SocketAddr, u64>);

impl AcceptQueues {
    /// Reads those of this moment; none where neither netlink nor /proc is readable.
    pub(super) fn read() -> Self {
        Self::ask().unwrap_or_else(|_| Self::look_up())
    }

    /// By netlink.
    fn ask() -> io::Result<Self> {
        let mut queues = Self::default();
        for (family, any) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
            let socket = Socket::new(NETLINK_SOCK_DIAG)?;
            socket.connect(&netlink_sys::SocketAddr::new(0, 0))?;
            socket.send(&request(family, any), 0)?;
            queues.receive(&socket)?;
        }
        Ok(queues)
    }

    /// Adds the answer to one request.
    fn receive(&mut self, socket: &Socket) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(DATAGRAM_BYTES);
        for _ in 0..DATAGRAMS_MAX {
            buffer.clear();
            // The kernel has completed the first part by now, and each following one when the one before is read.
            socket.recv(&mut buffer, libc::MSG_DONTWAIT)?;
            let mut rest = buffer.as_slice();
            while !rest.is_empty() {
                let message =
                    NetlinkMessage::<SockDiagMessage>::deserialize(rest).map_err(io::Error::other)?;
                let length = (message.header.length as usize).next_multiple_of(4);
                match message.payload {
                    NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) => {
                        let id = &found.header.socket_id;
                        let address = SocketAddr::new(id.source_address, id.source_port);
                        // Sockets of one reuseport group have one address.
                        *self.0.entry(address).or_default() += u64::from(found.header.recv_queue);
                    }
                    NetlinkPayload::Done(_) => return Ok(()),
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                }
                rest = rest.get(length..).unwrap_or_default();
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }

    /// In /proc.
    fn look_up() -> Self {
        let mut queues = Self::default();
        for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
            if let Ok(file) = File::open(file) {
                queues.add(BufReader::new(file));
            }
        }
        queues
    }

    fn add(&mut self, lines: impl BufRead) {
        // The kernel lists listening sockets first, so the first other one ends the reading: there may be many of those.
        for line in lines.lines().skip(1).take(LINES_MAX).map_while(Result::ok) {
            let Some((address, depth)) = parse(&line) else { break };
            // Sockets of one reuseport group have one address.
            *self.0.entry(address).or_default() += depth;
        }
    }

    /// Connections that wait at the socket that a connection to `address` would reach: that of the address, or on loopback
    /// one of all addresses. `None` if that is not here.
    pub(super) fn at(&self, address: SocketAddr) -> Option<u64> {
        let at = |ip: IpAddr| self.0.get(&SocketAddr::new(ip, address.port()));
        if !address.ip().is_loopback() {
            return at(address.ip()).copied();
        }
        let any_v4 = address.is_ipv4().then(|| at(Ipv4Addr::UNSPECIFIED.into())).flatten();
        at(address.ip()).or(any_v4).or_else(|| at(Ipv6Addr::UNSPECIFIED.into())).copied()
    }
}

/// A request for every listening socket of a family.
fn request(family: u8, any: SocketId) -> Vec<u8> {
    let inner = SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::LISTEN,
        socket_id: any,
    });
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut message = NetlinkMessage::new(header, inner.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Address and waiting connections of a listening socket; `None` for any other.
fn parse(line: &str) -> Option<(SocketAddr, u64)> {
    let mut words = line.split_whitespace().skip(1);
    let local = words.next()?;
    let state = words.nth(1)?;
    let queues = words.next()?;
    if state != LISTEN {
        return None;
    }
    let (ip, port) = local.split_once(':')?;
    let depth = u64::from_str_radix(queues.split_once(':')?.1, 16).ok()?;
    Some((SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?), depth))
}

/// Words of 32 bits in the byte order of this host, in hexadecimal.
fn address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(text.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut octets = [0; 16];
            for (index, four) in octets.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(index * 8)?);
            }
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn waiting_connections_are_counted() {
        for bound in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(bound).unwrap();
            let port = listener.local_addr().unwrap().port();
            let address: SocketAddr = if bound == "127.0.0.1:0" {
                ([127, 0, 0, 1], port).into()
            } else {
                (Ipv6Addr::LOCALHOST, port).into()
            };
            let by_each = || [AcceptQueues::ask().unwrap().at(address), AcceptQueues::look_up().at(address)];
            assert_eq!(by_each(), [Some(0), Some(0)], "{bound}");
            let waiting = [TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap()];
            assert_eq!(by_each(), [Some(2), Some(2)], "{bound}");
            drop(waiting);
        }
    }

    #[test]
    fn reading_ends_at_the_first_socket_that_does_not_listen() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue\n\
             0: 0100007F:0050 00000000:0000 0A 00000000:00000003 00:00000000 00000000 0 0 1\n\
             1: 0100007F:0051 0100007F:0050 01 00000000:00000007 00:00000000 00000000 0 0 2\n\
             2: 0100007F:0052 00000000:0000 0A 00000000:00000009 00:00000000 00000000 0 0 3\n";
        let mut queues = AcceptQueues::default();
        queues.add(text.as_bytes());
        assert_eq!(queues.at(([127, 0, 0, 1], 80).into()), Some(3));
        assert_eq!(queues.at(([127, 0, 0, 1], 82).into()), None);
    }
}
