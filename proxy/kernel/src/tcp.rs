//! What the kernel says of a TCP socket: how many bytes came, how many were read and sent; and a push.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::{KernelError, socket};

/// `TCP_ESTABLISHED` of net/tcp_states.h.
const ESTABLISHED: u8 = 1;
/// `TCP_CLOSE` there.
const CLOSE: u8 = 7;
/// Offsets in `struct tcp_info` (linux/tcp.h), where fields are only ever added behind.
const STATE: usize = 0;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;
const INFO_BYTES: usize = 136;
/// Ends the search for a moment in which nothing moves.
const TRIES: u32 = 64;

/// A part of `struct tcp_info`, read at once under the socket's lock: so what runs under it has ended.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Whether neither side has begun to end.
    pub is_established: bool,
    /// Whether it has ended, or was reset.
    is_closed: bool,
    /// Bytes that came in order; the end of the stream counts as one.
    pub received: u64,
    /// Bytes that the other side has acknowledged, and the start of the stream perhaps.
    acked: u64,
}

impl Counts {
    /// Reads them (bytes_received: Linux 4.1).
    ///
    /// # Errors
    /// When the socket is not TCP's.
    pub fn read(socket: BorrowedFd<'_>) -> Result<Self, KernelError> {
        let mut info = [0_u8; INFO_BYTES];
        let mut length = INFO_BYTES as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes into `info`, which both live until the call returns.
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

/// Where the send buffer ends, in bytes since the connection began (give or take its start): at least so far. It is
/// exact when nothing is acknowledged meanwhile, and never too large.
///
/// # Errors
/// When the socket is not TCP's.
pub fn written_at_least(socket: BorrowedFd<'_>) -> Result<u64, KernelError> {
    // In this order: what is acknowledged between the two is missing from the second.
    let acked = Counts::read(socket)?.acked;
    Ok(acked + u64::from(queued(socket, libc::TIOCOUTQ, "ioctl(SIOCOUTQ)")?))
}

/// The same, exact; `None` when acknowledgements do not cease.
///
/// # Errors
/// When the socket is not TCP's.
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

/// Whether the connection has ended on both sides, or was reset.
pub fn is_closed(socket: BorrowedFd<'_>) -> bool {
    Counts::read(socket).map_or(true, |counts| counts.is_closed)
}

/// Bytes that came and are unread. Not for a socket in a sockmap: there it counts something else.
///
/// # Errors
/// When the socket cannot be asked.
pub fn unread(socket: BorrowedFd<'_>) -> Result<u32, KernelError> {
    queued(socket, libc::FIONREAD, "ioctl(SIOCINQ)")
}

fn queued(socket: BorrowedFd<'_>, what: libc::Ioctl, name: &'static str) -> Result<u32, KernelError> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: both requests write one int, into a variable that lives until the call returns.
    if unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut bytes) } != 0 {
        return Err(KernelError::last(name));
    }
    Ok(u32::try_from(bytes).unwrap_or(0))
}

/// Has the kernel look again at what is unread, as if it had just come.
///
/// # Errors
/// When the socket refuses the option.
pub fn kick(socket: BorrowedFd<'_>) -> Result<(), KernelError> {
    // 1 is what it is anyway; setting it calls the socket's `data_ready` under its lock.
    socket::set(socket, (libc::SOL_SOCKET, libc::SO_RCVLOWAT), 1, "setsockopt(SO_RCVLOWAT)")
}

/// How many bytes the kernel takes into the send queue before it has sent them (Linux 3.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsentMax {
    /// As many as `net.ipv4.tcp_notsent_lowat` says, now and later.
    Namespace,
    /// As many as there is room for: what that is where nobody has set it.
    Room,
    /// So many.
    Bytes(u16),
}

/// Sets that.
///
/// # Errors
/// When the socket is not TCP's.
pub fn set_unsent_max(socket: BorrowedFd<'_>, most: UnsentMax) -> Result<(), KernelError> {
    let value = match most {
        UnsentMax::Namespace => 0,
        // The kernel takes it for the largest number.
        UnsentMax::Room => -1,
        UnsentMax::Bytes(bytes) => libc::c_int::from(bytes),
    };
    let option = (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
    socket::set(socket, option, value, "setsockopt(TCP_NOTSENT_LOWAT)")
}

/// The socket's number, never used again for another (Linux 4.12).
///
/// # Errors
/// When the socket cannot be asked.
pub fn cookie(socket: BorrowedFd<'_>) -> Result<u64, KernelError> {
    let mut cookie = 0_u64;
    let mut length = size_of_val(&cookie) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `cookie`, which both live until the call returns.
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

/// Whether it is a TCP socket, and no kind of it that carries a stream of another.
pub fn is_plain(socket: BorrowedFd<'_>) -> io::Result<bool> {
    // MPTCP has a protocol of its own.
    Ok(socket2::SockRef::from(&socket).protocol()? == Some(socket2::Protocol::TCP))
}
