//! How many connections wait to be accepted at listening sockets of this network namespace, without privileges: what
//! `ss -lt` shows as Recv-Q.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// State of a listening socket in /proc/net/tcp: `TCP_LISTEN` of net/tcp_states.h.
const LISTEN: &str = "0A";
/// Lines that are read at most; a host has some tens of listening sockets, and they come first.
const LINES_MAX: usize = 4096;

/// Waiting connections by listening address.
#[derive(Debug, Default)]
pub(super) struct AcceptQueues(HashMap<SocketAddr, u64>);

impl AcceptQueues {
    /// Reads those of this moment; none where /proc is not readable.
    pub(super) fn read() -> Self {
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
            assert_eq!(AcceptQueues::read().at(address), Some(0), "{bound}");
            let waiting = [TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap()];
            assert_eq!(AcceptQueues::read().at(address), Some(2), "{bound}");
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
