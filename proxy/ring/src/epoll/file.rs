//! Files, in tokio's blocking threads: epoll does not support them.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{OFlag, OpenHow, openat2};
use nix::sys::stat::Mode;
use tokio::task::spawn_blocking;

use crate::Fd;
use crate::beneath::{READING, beneath};

/// The file for one operation: a duplicate of the descriptor, because the operation continues when its future is
/// dropped.
fn own(fd: &Fd) -> io::Result<File> {
    fd.as_fd().try_clone_to_owned().map(File::from)
}

async fn in_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

/// [`in_thread`] for work that returns a buffer.
async fn with_buffer(
    work: impl FnOnce() -> (io::Result<usize>, Vec<u8>) + Send + 'static,
) -> (io::Result<usize>, Vec<u8>) {
    spawn_blocking(work).await.unwrap_or_else(|error| (Err(io::Error::other(error)), Vec::new()))
}

pub(crate) async fn open(path: CString, flags: libc::c_int, mode: libc::mode_t) -> io::Result<OwnedFd> {
    let (flags, mode) = (OFlag::from_bits_retain(flags | libc::O_CLOEXEC), Mode::from_bits_retain(mode));
    in_thread(move || Ok(nix::fcntl::open(path.as_c_str(), flags, mode)?)).await
}

pub(crate) async fn open_beneath(folder: &Fd, path: CString) -> io::Result<OwnedFd> {
    let folder = own(folder)?;
    let how = OpenHow::new().flags(READING).resolve(beneath());
    in_thread(move || Ok(openat2(&folder, path.as_c_str(), how)?)).await
}

pub(crate) async fn unlink(path: CString) -> io::Result<()> {
    in_thread(move || Ok(nix::unistd::unlink(path.as_c_str())?)).await
}

pub(crate) async fn write_at(
    fd: &Fd,
    buf: Vec<u8>,
    start: usize,
    offset: u64,
) -> (io::Result<usize>, Vec<u8>) {
    match own(fd) {
        Ok(file) => with_buffer(move || (file.write_at(&buf[start..], offset), buf)).await,
        Err(error) => (Err(error), buf),
    }
}

pub(crate) async fn read_at(
    fd: &Fd,
    mut buf: Vec<u8>,
    bytes_max: usize,
    offset: u64,
) -> (io::Result<usize>, Vec<u8>) {
    let file = match own(fd) {
        Ok(file) => file,
        Err(error) => return (Err(error), buf),
    };
    let read = move || {
        let filled = buf.len();
        let room = (buf.capacity() - filled).min(bytes_max);
        buf.resize(filled + room, 0);
        let outcome = file.read_at(&mut buf[filled..], offset);
        buf.truncate(filled + *outcome.as_ref().unwrap_or(&0));
        (outcome, buf)
    };
    with_buffer(read).await
}

/// Closes it in a thread, without waiting.
pub(crate) fn close(fd: OwnedFd) {
    drop(spawn_blocking(move || drop(fd)));
}
