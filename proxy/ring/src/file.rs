//! Open, write, read, unlink, close and send: files of buffered bodies, and files that routes respond with.
//!
//! All of these may wait for a disk. No engine runs them on the worker's thread, unless the kernel can say that it will
//! not wait: the lookup of a name that it has in memory, and the sending of pages that it has in memory.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl, openat2};
use nix::sys::sendfile::sendfile;

use super::beneath::{READING, beneath};
use super::{Engine, Fd, epoll, resident, uring};

/// Opens `path` (openat(2); 5.6). If the future is dropped before its end, the file is closed again.
///
/// # Errors
/// Those of openat(2).
pub async fn open(path: CString, flags: libc::c_int, mode: libc::mode_t) -> io::Result<OwnedFd> {
    match Engine::current() {
        Engine::Epoll => epoll::open(path, flags, mode).await,
        _ => uring::open(path, flags, mode).await,
    }
}

/// Removes the name of a file (unlinkat(2); 5.11).
///
/// # Errors
/// Those of unlinkat(2).
pub async fn unlink(path: CString) -> io::Result<()> {
    match Engine::current() {
        Engine::Epoll => epoll::unlink(path).await,
        _ => uring::unlink(path).await,
    }
}

/// Writes `buf[start..]`, or a part of it, to the file at `offset`. Returns the number of bytes and the buffer.
pub async fn write_at(fd: &Fd, buf: Vec<u8>, start: usize, offset: u64) -> (io::Result<usize>, Vec<u8>) {
    match Engine::current() {
        Engine::Epoll => epoll::write_at(fd, buf, start, offset).await,
        _ => uring::write_at(fd, buf, start, offset).await,
    }
}

/// Reads at most `bytes_max` bytes from the file at `offset` into the spare capacity of `buf`. Returns the number of
/// bytes (0 is the end of the file) and the buffer.
pub async fn read_at(fd: &Fd, buf: Vec<u8>, bytes_max: usize, offset: u64) -> (io::Result<usize>, Vec<u8>) {
    match Engine::current() {
        Engine::Epoll => epoll::read_at(fd, buf, bytes_max, offset).await,
        _ => uring::read_at(fd, buf, bytes_max, offset).await,
    }
}

/// Closes a file outside the worker's thread: the last close of a file without a name frees its blocks, which takes
/// milliseconds for a large file.
pub fn close(fd: OwnedFd) {
    match Engine::current() {
        Engine::Epoll => epoll::close(fd),
        _ => uring::close(fd),
    }
}

/// Opens what is at `path` below a folder for reading, without leaving the folder (openat2(2); 5.6). It may be of any
/// kind. On the thread itself if the kernel has all names in memory (5.12).
///
/// # Errors
/// Those of openat2(2): EXDEV for a path that leads out of the folder.
pub async fn open_beneath(folder: &Fd, path: CString) -> io::Result<OwnedFd> {
    let cached = beneath() | ResolveFlag::from_bits_retain(libc::RESOLVE_CACHED);
    let opened = match openat2(folder, path.as_c_str(), OpenHow::new().flags(READING).resolve(cached)) {
        // Names that are not in memory, or a kernel that does not know the flag.
        Err(Errno::EAGAIN | Errno::EINVAL) => look_beneath(folder, path).await?,
        opened => opened?,
    };
    // io_uring would otherwise report EAGAIN for a page that is not in memory, on some filesystems.
    fcntl(&opened, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(opened)
}

/// The part of [`open_beneath`] that may wait for a disk.
pub(crate) async fn look_beneath(folder: &Fd, path: CString) -> io::Result<OwnedFd> {
    match Engine::current() {
        Engine::Epoll => epoll::open_beneath(folder, path).await,
        _ => uring::open_beneath(folder, path).await,
    }
}

/// Whether the kernel has these bytes of a file in memory, so that to send them does not wait: by cachestat(2) (6.5), or
/// by trying some of them. `None` if it cannot tell.
pub fn is_resident(file: &Fd, offset: u64, count: u64) -> Option<bool> {
    resident::is_resident(file, offset, count)
}

/// Sends up to `count` bytes of a file from `offset`, as many as the socket takes at once, without copying them
/// (sendfile(2)). The socket must not have a send in progress.
///
/// # Errors
/// Those of sendfile(2): EAGAIN if the socket has no room. 0 bytes mean that the file ends before `offset`.
pub fn send_file_now(socket: &Fd, file: &Fd, offset: u64, count: usize) -> io::Result<usize> {
    let mut offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // sendfile(2) has no flag for this. Nobody else sees it: the thread does nothing else meanwhile, and operations in
    // progress were told when they began.
    fcntl(socket, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let sent = sendfile(socket.as_fd(), file.as_fd(), Some(&mut offset), count);
    fcntl(socket, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(sent?)
}
