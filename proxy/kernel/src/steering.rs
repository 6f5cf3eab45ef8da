//! Gives QUIC packets to the socket of the worker that has their connection, whatever address they come from.
//!
//! A classic BPF program on the group of sockets that share a port (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5) returns the index
//! of a socket, in the order in which they were bound. An eBPF program with a map of sockets (`sk_reuseport`) could do the
//! same, but only with CAP_BPF, and not across an upgrade: a socket is in one map at most, and the old process keeps its
//! own. This one needs no privilege, stays on the sockets when they are passed on, and knows no map.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::KernelError;

/// What a program must know of the identifiers that sluice issues.
#[derive(Clone, Copy, Debug)]
pub struct IdentifierLayout {
    /// The bytes of an identifier.
    pub length: u8,
    /// Which of them is the index of the socket.
    pub index_at: u8,
}

/// No socket has this index, so the kernel chooses by the addresses.
const BY_ADDRESS: u32 = u32::MAX;

/// Classes and modes of instructions, as `linux/bpf_common.h` names them.
const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_LENGTH: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_SET: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const RETURN_LOADED: u16 = (libc::BPF_RET | libc::BPF_A) as u16;

/// The program. Packets with a short header and Handshake packets have an identifier that sluice has issued; in those
/// before, clients choose it, so that they could choose the worker.
fn program(layout: IdentifierLayout) -> [libc::sock_filter; 13] {
    let step = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let branch = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let (length, index_at) = (u32::from(layout.length), u32::from(layout.index_at));
    [
        step(LOAD_LENGTH, 0),
        // RFC 9000 section 17.2: first byte, version, length of the identifier, the identifier.
        branch(IF_AT_LEAST, 6 + length, 0, 10),
        step(LOAD_BYTE, 0),
        branch(IF_SET, 0x80, 0, 6),
        // A long header; of these, Handshake is type 2.
        step(AND, 0x30),
        branch(IF_EQUAL, 0x20, 0, 6),
        step(LOAD_BYTE, 5),
        branch(IF_EQUAL, length, 0, 4),
        step(LOAD_BYTE, 6 + index_at),
        step(RETURN_LOADED, 0),
        // A short header: first byte, the identifier.
        step(LOAD_BYTE, 1 + index_at),
        step(RETURN_LOADED, 0),
        step(RETURN, BY_ADDRESS),
    ]
}

/// Steers the packets of the group of sockets that this one belongs to.
///
/// # Errors
/// The kernel refuses the program.
pub fn steer(socket: BorrowedFd<'_>, layout: IdentifierLayout) -> Result<(), KernelError> {
    let mut steps = program(layout);
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the descriptor is borrowed for the call. The kernel copies the program and its steps, which live until the
    // call returns, and keeps no pointer to them.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(KernelError::last("setsockopt(SO_ATTACH_REUSEPORT_CBPF)")) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::socket;

    const LAYOUT: IdentifierLayout = IdentifierLayout { length: 12, index_at: 1 };

    fn group(count: usize) -> Vec<UdpSocket> {
        let mut sockets: Vec<UdpSocket> = Vec::new();
        for _ in 0..count {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            socket.set_reuse_port(true).unwrap();
            let port = sockets.first().map_or(0, |first| first.local_addr().unwrap().port());
            socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
            let socket = UdpSocket::from(socket);
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            sockets.push(socket);
        }
        sockets
    }

    fn short(worker: u8) -> Vec<u8> {
        let mut packet = vec![0x40; 40];
        packet[2] = worker;
        packet
    }

    fn long(kind: u8, length: u8, worker: u8) -> Vec<u8> {
        let mut packet = vec![0xc0 | kind << 4; 1200];
        packet[5] = length;
        packet[7] = worker;
        packet
    }

    #[test]
    fn packets_reach_the_socket_that_their_identifier_names() {
        let sockets = group(3);
        steer(sockets[0].as_fd(), LAYOUT).unwrap();
        let server = sockets[0].local_addr().unwrap();
        for _ in 0..20 {
            // Each from another port.
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            for (index, socket) in (0..).zip(&sockets) {
                for packet in [short(index), long(2, 12, index)] {
                    client.send_to(&packet, server).unwrap();
                    let mut got = [0; 2000];
                    let count = socket.recv(&mut got).unwrap();
                    assert_eq!(got[..count], packet);
                }
            }
        }
    }

    #[test]
    fn other_packets_are_spread_by_their_addresses() {
        let sockets = group(2);
        steer(sockets[0].as_fd(), LAYOUT).unwrap();
        let server = sockets[0].local_addr().unwrap();
        // Initial, 0-RTT, an identifier of another length, a worker that there is not, less than a packet.
        let packets = [long(0, 12, 0), long(1, 12, 0), long(2, 8, 0), short(200), vec![0x40; 17], vec![0xe0]];
        for packet in packets {
            let clients: Vec<UdpSocket> = (0..40).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
            clients.iter().for_each(|client| _ = client.send_to(&packet, server).unwrap());
            for socket in &sockets {
                assert_eq!(socket.recv(&mut [0; 2000]).unwrap(), packet.len(), "each gets some");
                socket.set_nonblocking(true).unwrap();
                while socket.recv(&mut [0; 2000]).is_ok() {}
                socket.set_nonblocking(false).unwrap();
            }
        }
    }

    #[test]
    fn steering_can_be_stopped() {
        let sockets = group(2);
        steer(sockets[0].as_fd(), LAYOUT).unwrap();
        socket::choose_by_address(sockets[1].as_fd());
        let server = sockets[0].local_addr().unwrap();
        let clients: Vec<UdpSocket> = (0..40).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        clients.iter().for_each(|client| _ = client.send_to(&short(0), server).unwrap());
        assert!(sockets[1].recv(&mut [0; 2000]).is_ok(), "some by their address");
    }
}
