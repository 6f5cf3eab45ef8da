//! Accepts when epoll reports waiting connections.

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

/// Maximum time that accept(2) may wait; the kernel rounds it up to one clock tick. accept(2) has no flag against
/// waiting, and O_NONBLOCK would affect every process that shares the socket. So the engine polls before it accepts,
/// and if another process takes the connection in between, this timeout ends the wait.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// An accept in progress. The kernel holds no part of it.
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
                // Connections that arrive from here on are reported again.
                Poll::Ready(ready) => ready?.clear_ready(),
                Poll::Pending => break,
            }
        }
        self.call.wait(cx);
        Poll::Pending
    }
}

/// Accepts a waiting connection; `None` if there is none.
///
/// # Errors
/// Those of accept(2).
pub(crate) fn accept_now(fd: &Fd) -> io::Result<Option<(OwnedFd, SockAddr)>> {
    let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    if nix::poll::poll(&mut fds, PollTimeout::ZERO)? == 0 {
        return Ok(None);
    }
    let socket = SockRef::from(fd);
    // Accepted sockets inherit the timeout, which has no effect: no call waits on them.
    if socket.read_timeout()?.is_none() {
        socket.set_read_timeout(Some(WAIT_MAX))?;
    }
    let accepted = attempt(|| socket.accept()).transpose()?;
    Ok(accepted.map(|(socket, peer)| (socket.into(), peer)))
}
