//! What the kernel says of a socket that no library asks for.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use sluice_ebpf::Service;
use socket2::SockRef;

use super::KernelError;

/// Linux 5.14; not in the libc crate.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// An index that the kernel gives no interface: it counts from 1.
const NO_INTERFACE: libc::c_int = libc::c_int::MAX;

/// The address that a listening socket has, as the programs look it up.
pub(super) fn service(listener: BorrowedFd<'_>) -> io::Result<Service> {
    let address = SockRef::from(&listener).local_addr()?.as_socket();
    let address = address.ok_or_else(|| io::Error::other("not an IP address"))?;
    let octets = match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => [0; 16],
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(v6) => v6.ip().octets(),
    };
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(octets.as_chunks().0) {
        *word = u32::from_ne_bytes(*bytes);
    }
    let netns = netns_cookie(listener)?;
    Ok(Service { address: words, port: u32::from(address.port()), reserved: 0, netns })
}

/// Has no new connection find a listening socket, as if it were closed, while those whose handshake has begun still
/// come into its queue: the kernel looks for a listener by the interface too (Linux 5.7 for any process). Whoever else
/// holds the socket shares in that.
///
/// # Errors
/// When the kernel does not let it be bound to an interface.
pub(crate) fn hide(listener: BorrowedFd<'_>) -> Result<(), KernelError> {
    let index = NO_INTERFACE;
    // SAFETY: the descriptor is lent for the call; the kernel reads one int, which lives until it returns.
    let answer = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTOIFINDEX,
            (&raw const index).cast(),
            size_of_val(&index) as libc::socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(KernelError::last("setsockopt(SO_BINDTOIFINDEX)")) }
}

/// The cookie of the network namespace that a socket is in.
fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut length = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or_default();
    // SAFETY: the descriptor is lent for the call; the kernel writes at most `length` bytes, which is the size of
    // `cookie`, and the length itself; both live on this stack until it returns.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(cookie) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_hidden_listener_keeps_what_has_come_and_gets_no_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let before = TcpStream::connect(address).unwrap();
        hide(listener.as_fd()).unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(listener.accept().unwrap().1, before.local_addr().unwrap());
    }
}
