//! Socket options and properties for which no library has a function.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use sluice_ebpf::Service;
use socket2::SockRef;

use super::KernelError;

/// Linux 5.14; not in the libc crate.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// Linux 5.3; not in the libc crate.
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;
/// An index that no interface has: the kernel counts from 1.
const NO_INTERFACE: libc::c_int = libc::c_int::MAX;

/// The address of a listening socket in the form in which the programs look it up.
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

/// Hides a listening socket from new connections, as if it were closed. Connections whose handshake has begun still
/// enter its queue: the kernel also selects a listener by interface (Linux 5.7 for any process). This affects every
/// holder of the socket.
///
/// # Errors
/// The kernel refuses to bind the socket to an interface.
pub fn hide(listener: BorrowedFd<'_>) -> Result<(), KernelError> {
    let option = (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX);
    set(listener, option, NO_INTERFACE, "setsockopt(SO_BINDTOIFINDEX)").or_else(|error| {
        // Few processes may do it twice, and two descriptors can refer to one socket.
        if interface(listener).is_ok_and(|index| index == NO_INTERFACE) { Ok(()) } else { Err(error) }
    })
}

/// Makes the kernel choose by the addresses among the sockets that share a port with this one. Sockets that came from
/// another process may have a program that chooses otherwise.
pub fn choose_by_address(socket: BorrowedFd<'_>) {
    // It fails if there is no program.
    let option = (libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF);
    let _ = set(socket, option, 0, "setsockopt(SO_DETACH_REUSEPORT_BPF)");
}

/// Sets an option, given by level and number.
pub(super) fn set(
    socket: BorrowedFd<'_>,
    (level, option): (libc::c_int, libc::c_int),
    value: libc::c_int,
    call: &'static str,
) -> Result<(), KernelError> {
    // SAFETY: the descriptor is borrowed for the call. The kernel reads one int, which lives until the call returns.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if answer == 0 { Ok(()) } else { Err(KernelError::last(call)) }
}

/// The index of the interface to which a socket is bound; 0 is none.
fn interface(socket: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    let mut index = 0;
    get(socket, libc::SO_BINDTOIFINDEX, &mut index).map(|()| index)
}

/// The cookie of the socket's network namespace.
fn netns_cookie(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0;
    get(socket, SO_NETNS_COOKIE, &mut cookie).map(|()| cookie)
}

/// Reads an option of the socket level whose value is an integer like `value`.
fn get<T: Copy + Into<i128>>(socket: BorrowedFd<'_>, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut length = libc::socklen_t::try_from(size_of::<T>()).unwrap_or_default();
    // SAFETY: the descriptor is borrowed for the call. The kernel writes the length and at most `length` bytes, which
    // is the size of the integer, for which any bits are valid. Both live until the call returns.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            std::ptr::from_mut(value).cast(),
            &raw mut length,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn hidden_listener_keeps_its_queue_and_gets_no_new_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let before = TcpStream::connect(address).unwrap();
        hide(listener.as_fd()).unwrap();
        hide(listener.as_fd().try_clone_to_owned().unwrap().as_fd()).unwrap();
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(listener.accept().unwrap().1, before.local_addr().unwrap());
    }
}
