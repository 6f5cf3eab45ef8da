//! Accepts when epoll says that connections wait.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use socket2::{SockAddr, SockRef};

use super::call::{Call, attempt, cancelled};
use crate::Fd;

/// How long accept(2) may wait at most: the kernel rounds it up to one tick of its clock. It has no flag against waiting,
/// and the socket's own would be that of every process that shares the socket. So the engine looks before it accepts, and
/// if another process takes the connection in between, this ends the wait.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// An accept under way. Nothing of it is in the kernel.
pub(crate) struct AcceptOp {
    fd: Fd,
    call: Call,
}

impl AcceptOp {
    pub(crate) fn new(fd: &Fd) -> Self {
        Self { fd: Fd::clone(fd), call: Call::default() }
    }

    pub(crate) fn cancel(&self) {
        self.call.cancel();
    }
}

impl Future for AcceptOp {
    type Output = io::Result<(OwnedFd, SockAddr)>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.call.is_cancelled() {
            return Poll::Ready(Err(cancelled()));
        }
        loop {
            if let Some(accepted) = accept_now(&self.fd).transpose() {
                return Poll::Ready(accepted);
            }
            match self.fd.watch()?.poll_read_ready(cx) {
                // What comes from here on is reported anew.
                Poll::Ready(ready) => ready?.clear_ready(),
                Poll::Pending => break,
            }
        }
        self.call.wait(cx);
        Poll::Pending
    }
}

/// Accepts a connection that waits; none if none does.
///
/// # Errors
/// Those of accept(2).
pub(crate) fn accept_now(fd: &Fd) -> io::Result<Option<(OwnedFd, SockAddr)>> {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    if nix::poll::poll(&mut fds, PollTimeout::ZERO)? == 0 {
        return Ok(None);
    }
    let socket = SockRef::from(fd);
    // Sockets that are accepted have it too: nobody waits in a call on those either.
    if socket.read_timeout()?.is_none() {
        socket.set_read_timeout(Some(WAIT_MAX))?;
    }
    let accepted = attempt(|| socket.accept()).transpose()?;
    Ok(accepted.map(|(socket, peer)| (socket.into(), peer)))
}
