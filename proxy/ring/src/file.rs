//! Open, write, read, unlink and close: files for buffered bodies.
//!
//! All of these may wait for a disk, so no engine runs them on the worker's thread.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use super::{Engine, Fd, epoll, uring};

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
