//! Accepts a connection together with its peer's address.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use io_uring::opcode;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockAddr, SockAddrStorage};
use tokio::time::timeout;

use super::{Completion, Fd, Finished, InFlight, lost, outcome, raw, submit};

/// How long a cancelled accept may go on before it is cancelled again.
const AGAIN: Duration = Duration::from_millis(1);

struct Peer {
    storage: SockAddrStorage,
    length: libc::socklen_t,
}

struct AcceptData {
    _fd: Fd,
    /// Boxed: the kernel writes the address here when a connection arrives.
    peer: Box<Peer>,
}

impl Finished for AcceptData {
    const BRINGS_DESCRIPTOR: bool = true;
    type Output = io::Result<(OwnedFd, SockAddr)>;

    fn finish(self, Completion { result, .. }: Completion) -> Self::Output {
        outcome(result)?;
        // SAFETY: a non-negative result of accept is a new descriptor, which nothing else owns yet.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        let Peer { storage, length } = *self.peer;
        // SAFETY: the kernel filled `storage` with an address of `length` bytes. The operation has ended, so the kernel
        // no longer writes to it.
        let address = unsafe { SockAddr::new(storage, length) };
        Ok((socket, address))
    }

    fn lost() -> Self::Output {
        Err(lost())
    }
}

/// An accept in progress. If dropped, it continues; a connection that it then returns is closed.
pub(crate) struct AcceptOp(InFlight<AcceptData>);

pub(crate) fn accept(fd: &Fd) -> AcceptOp {
    let storage = SockAddrStorage::zeroed();
    let mut peer = Box::new(Peer { length: storage.size_of(), storage });
    let address: *mut SockAddrStorage = &raw mut peer.storage;
    let length = &raw mut peer.length;
    let entry = opcode::Accept::new(raw(fd), address.cast(), length).flags(libc::SOCK_CLOEXEC).build();
    // SAFETY: `AcceptData` owns the descriptor and, boxed, the address and its length. The driver keeps it until the
    // operation has ended.
    AcceptOp(unsafe { submit(AcceptData { _fd: Fd::clone(fd), peer }, entry) })
}

impl AcceptOp {
    /// Cancels it: it ends soon, with a connection if one has just arrived.
    pub(crate) fn cancel(&self) {
        self.0.cancel();
    }

    /// Waits for the end of a cancelled accept, and cancels it again as long as it goes on.
    ///
    /// The kernel loses a cancellation if a connection arrives just when it begins to wait for one: it then tries to
    /// accept once more, later, and until then finds nothing to cancel. If another accept takes that connection, this
    /// one would wait for the next. Our own driver repeats such a cancellation at once; tokio-uring does not.
    pub(crate) async fn stopped(&mut self) -> io::Result<(OwnedFd, SockAddr)> {
        if self.0.repeats_cancellation() {
            // A timer for each accept would wake the loop by a system call each time.
            return self.await;
        }
        loop {
            match timeout(AGAIN, &mut *self).await {
                Ok(ended) => return ended,
                Err(_) => self.cancel(),
            }
        }
    }
}

impl Future for AcceptOp {
    type Output = io::Result<(OwnedFd, SockAddr)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

/// Implements [`crate::accept_waiting`]. The kernel wakes only one of the waiters (`poll_exclusive`, 5.x).
pub(crate) async fn accept_waiting(fd: &Fd) -> io::Result<Option<(OwnedFd, SockAddr)>> {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    if poll(&mut fds, PollTimeout::ZERO)? == 0 {
        return Ok(None);
    }
    accept_at_once(fd).stopped().await.map(Some)
}

pub(crate) async fn accept_burst(fd: &Fd, most: usize) -> Vec<(OwnedFd, SockAddr)> {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    if !poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0) {
        return Vec::new();
    }
    let accepting: Vec<_> = (0..most).map(|_| accept_at_once(fd)).collect();
    let mut accepted = Vec::with_capacity(most);
    for mut one in accepting {
        accepted.extend(one.stopped().await);
    }
    accepted
}

/// Accepts a waiting connection; ECANCELED if there is none.
fn accept_at_once(fd: &Fd) -> AcceptOp {
    let accepting = accept(fd);
    // The kernel processes both in order: it tries once, and then the wait is cancelled.
    accepting.cancel();
    accepting
}
