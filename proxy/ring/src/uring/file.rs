//! Files: where an operation on a file would block, the kernel runs it in a kernel thread.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};

use io_uring::{opcode, squeue, types};

use super::{Completion, Fd, Finished, lost, outcome, raw, submit};
use crate::beneath::{READING, beneath};

struct OpenData<K> {
    /// What the kernel reads while the operation runs, and descriptors that it uses.
    _kept: K,
}

impl<K: Unpin + 'static> Finished for OpenData<K> {
    const BRINGS_DESCRIPTOR: bool = true;
    type Output = io::Result<OwnedFd>;

    fn finish(self, Completion { result, .. }: Completion) -> Self::Output {
        outcome(result)?;
        // SAFETY: a non-negative result of openat or openat2 is a new descriptor, which nothing else owns yet.
        Ok(unsafe { OwnedFd::from_raw_fd(result) })
    }

    fn lost() -> Self::Output {
        Err(lost())
    }
}

pub(crate) async fn open(path: CString, flags: libc::c_int, mode: libc::mode_t) -> io::Result<OwnedFd> {
    let at = types::Fd(libc::AT_FDCWD);
    let entry = opcode::OpenAt::new(at, path.as_ptr()).flags(flags | libc::O_CLOEXEC).mode(mode).build();
    // SAFETY: `OpenData` owns the path, whose heap block does not move. The driver keeps it until the operation has
    // ended.
    unsafe { submit(OpenData { _kept: path }, entry) }.await
}

pub(crate) async fn open_beneath(folder: &Fd, path: CString) -> io::Result<OwnedFd> {
    // Bits of a non-negative int.
    let flags = READING.bits() as u64;
    let how = Box::new(types::OpenHow::new().flags(flags).resolve(beneath().bits()));
    let entry = opcode::OpenAt2::new(raw(folder), path.as_ptr(), &raw const *how).build();
    // SAFETY: `OpenData` owns the descriptor, and path and flags on the heap, which do not move. The driver keeps it
    // until the operation has ended.
    unsafe { submit(OpenData { _kept: (path, how, Fd::clone(folder)) }, entry) }.await
}

struct UnlinkData {
    _path: CString,
}

impl Finished for UnlinkData {
    type Output = io::Result<()>;

    fn finish(self, Completion { result, .. }: Completion) -> Self::Output {
        outcome(result).map(drop)
    }

    fn lost() -> Self::Output {
        Err(lost())
    }
}

pub(crate) async fn unlink(path: CString) -> io::Result<()> {
    let entry = opcode::UnlinkAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr()).build();
    // SAFETY: `UnlinkData` owns the path, whose heap block does not move. The driver keeps it until the operation has
    // ended.
    unsafe { submit(UnlinkData { _path: path }, entry) }.await
}

struct FileData {
    /// Kept so that the descriptor outlives the operation.
    _fd: Fd,
    buf: Vec<u8>,
    /// Whether the kernel writes to the buffer.
    fills: bool,
}

impl Finished for FileData {
    type Output = (io::Result<usize>, Vec<u8>);

    fn finish(mut self, Completion { result, .. }: Completion) -> Self::Output {
        let outcome = outcome(result);
        if let (Ok(count), true) = (&outcome, self.fills) {
            let filled = self.buf.len() + count;
            assert!(filled <= self.buf.capacity(), "the kernel received only the spare capacity");
            // SAFETY: the operation has ended, so we own the buffer again. The kernel wrote `count` bytes right after
            // the old length, within the spare capacity that `read_at` passed to it.
            unsafe { self.buf.set_len(filled) };
        }
        (outcome, self.buf)
    }

    fn lost() -> Self::Output {
        (Err(lost()), Vec::new())
    }
}

pub(crate) async fn write_at(
    fd: &Fd,
    buf: Vec<u8>,
    start: usize,
    offset: u64,
) -> (io::Result<usize>, Vec<u8>) {
    let pending = &buf[start..];
    let length = u32::try_from(pending.len()).unwrap_or(u32::MAX);
    let entry = opcode::Write::new(raw(fd), pending.as_ptr(), length).offset(offset).build();
    // SAFETY: `FileData` owns the descriptor and the buffer, and the driver keeps it until the operation has ended.
    // Moving the Vec does not move its heap block, and nothing touches the Vec before the completion returns it.
    unsafe { submit(FileData { _fd: Fd::clone(fd), buf, fills: false }, entry) }.await
}

pub(crate) async fn read_at(
    fd: &Fd,
    mut buf: Vec<u8>,
    bytes_max: usize,
    offset: u64,
) -> (io::Result<usize>, Vec<u8>) {
    let spare = buf.spare_capacity_mut();
    let length = u32::try_from(spare.len().min(bytes_max)).unwrap_or(u32::MAX);
    let entry = opcode::Read::new(raw(fd), spare.as_mut_ptr().cast(), length).offset(offset).build();
    // SAFETY: as for a write; the kernel receives only the spare capacity.
    unsafe { submit(FileData { _fd: Fd::clone(fd), buf, fills: true }, entry) }.await
}

struct CloseData;

impl Finished for CloseData {
    type Output = ();

    fn finish(self, _: Completion) {}

    fn lost() {}
}

pub(crate) fn close(fd: OwnedFd) {
    // The operation's data does not own the descriptor: from here on the kernel closes it, even if the future is
    // dropped.
    let raw = fd.into_raw_fd();
    let entry = opcode::Close::new(types::Fd(raw)).build().flags(squeue::Flags::ASYNC);
    // SAFETY: the descriptor is open, and `into_raw_fd` has given up its ownership. The operation closes it; nothing
    // else uses it.
    drop(unsafe { submit(CloseData, entry) });
}
