//! What the kernel knows about a TCP socket: how many bytes were received, read and sent; and a way to wake its
//! receiver.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{KernelError, socket};

/// `TCP_ESTABLISHED` of net/tcp_states.h.
const ESTABLISHED: u8 = 1;
/// `TCP_CLOSE`, likewise.
const CLOSE: u8 = 7;
/// Offsets in `struct tcp_info` (linux/tcp.h), where new fields are only ever appended.
const STATE: usize = 0;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
const INFO_BYTES: usize = 136;
/// How often to look for a moment without acknowledgements.
const TRIES: u32 = 64;

/// A part of `struct tcp_info`, read in one call under the socket's lock, so that no program that runs under the lock
/// is still running.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Whether neither side has begun to close.
    pub is_established: bool,
    /// Whether the connection has closed or was reset.
    is_closed: bool,
    /// Bytes received in order; the end of the stream counts as one.
    pub received: u64,
    /// Bytes that the peer has acknowledged, possibly including the start of the stream.
    acked: u64,
}

impl Counts {
    /// Reads them (bytes_received: Linux 4.1).
    ///
    /// # Errors
    /// The socket is not a TCP socket.
    pub fn read(socket: BorrowedFd<'_>) -> Result<Self, KernelError> {
        let mut info = [0_u8; INFO_BYTES];
        let mut length = INFO_BYTES as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to `info` and updates `length`; both live until the call
        // returns.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if answer != 0 || (length as usize) < INFO_BYTES {
            return Err(KernelError::last("getsockopt(TCP_INFO)"));
        }
        let number = |at: usize| {
            let mut raw = [0; 8];
            raw.copy_from_slice(&info[at..at + 8]);
            u64::from_ne_bytes(raw)
        };
        Ok(Self {
            is_established: info[STATE] == ESTABLISHED,
            is_closed: info[STATE] == CLOSE,
            received: number(BYTES_RECEIVED),
            acked: number(BYTES_ACKED),
        })
    }
}

/// The end of the send buffer, in bytes since the start of the connection (possibly off by one for its start): a lower
/// bound. It is exact if nothing is acknowledged in the meantime, and never too large.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn written_at_least(socket: BorrowedFd<'_>) -> Result<u64, KernelError> {
    // In this order: bytes acknowledged between the two calls are missing from the second.
    let acked = Counts::read(socket)?.acked;
    Ok(acked + u64::from(queued(socket, libc::TIOCOUTQ, "ioctl(SIOCOUTQ)")?))
}

/// The exact value; `None` if acknowledgements keep arriving.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn written(socket: BorrowedFd<'_>) -> Result<Option<u64>, KernelError> {
    for _ in 0..TRIES {
        let before = Counts::read(socket)?.acked;
        let unacknowledged = queued(socket, libc::TIOCOUTQ, "ioctl(SIOCOUTQ)")?;
        if Counts::read(socket)?.acked == before {
            return Ok(Some(before + u64::from(unacknowledged)));
        }
    }
    Ok(None)
}

/// Whether the connection has ended on both sides or was reset.
pub fn is_closed(socket: BorrowedFd<'_>) -> bool {
    Counts::read(socket).map_or(true, |counts| counts.is_closed)
}

/// Bytes received and unread. Not for a socket in a sockmap, where the value means something else.
///
/// # Errors
/// The socket does not support the request.
pub fn unread(socket: BorrowedFd<'_>) -> Result<u32, KernelError> {
    queued(socket, libc::FIONREAD, "ioctl(SIOCINQ)")
}

fn queued(socket: BorrowedFd<'_>, what: libc::Ioctl, name: &'static str) -> Result<u32, KernelError> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int to a variable that lives until the call returns.
    if unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut bytes) } != 0 {
        return Err(KernelError::last(name));
    }
    Ok(u32::try_from(bytes).unwrap_or(0))
}

/// Makes the kernel look at the unread bytes again, as if they had just arrived.
///
/// # Errors
/// The socket refuses the option.
pub fn kick(socket: BorrowedFd<'_>) -> Result<(), KernelError> {
    // 1 is the current value anyway; setting it calls the socket's `data_ready` under its lock.
    socket::set(socket, (libc::SOL_SOCKET, libc::SO_RCVLOWAT), 1, "setsockopt(SO_RCVLOWAT)")
}

/// How many unsent bytes the kernel accepts into the send queue (Linux 3.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsentMax {
    /// As many as `net.ipv4.tcp_notsent_lowat` says, now and later.
    Namespace,
    /// As many as there is room for: the default value of that setting.
    Room,
    /// This many.
    Bytes(u16),
}

/// Sets this limit.
///
/// # Errors
/// The socket is not a TCP socket.
pub fn set_unsent_max(socket: BorrowedFd<'_>, most: UnsentMax) -> Result<(), KernelError> {
    let value = match most {
        UnsentMax::Namespace => 0,
        // The kernel treats it as the largest number.
        UnsentMax::Room => -1,
        UnsentMax::Bytes(bytes) => libc::c_int::from(bytes),
    };
    let option = (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
    socket::set(socket, option, value, "setsockopt(TCP_NOTSENT_LOWAT)")
}

/// The socket's number, which is never reused (Linux 4.12).
///
/// # Errors
/// The socket does not support the option.
pub fn cookie(socket: BorrowedFd<'_>) -> Result<u64, KernelError> {
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie` and updates `length`; both live until the call
    // returns.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if answer == 0 { Ok(cookie) } else { Err(KernelError::last("getsockopt(SO_COOKIE)")) }
}

/// Whether it is a plain TCP socket, not one that carries another protocol's stream.
pub fn is_plain(socket: BorrowedFd<'_>) -> io::Result<bool> {
    // MPTCP has a different protocol number.
    Ok(socket2::SockRef::from(&socket).protocol()? == Some(socket2::Protocol::TCP))
}
