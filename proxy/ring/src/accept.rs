//! Accepts connections together with their peers' addresses.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockAddr;

use super::{Engine, Fd, epoll, uring};

/// An accept under way. Dropped, it may go on; a connection that it brings then is closed.
pub struct AcceptOp(Accepting);

enum Accepting {
    Uring(uring::AcceptOp),
    Epoll(epoll::AcceptOp),
}

/// Begins to accept one connection from the listening socket `fd`.
pub fn accept(fd: &Fd) -> AcceptOp {
    AcceptOp(match Engine::current() {
        Engine::Epoll => Accepting::Epoll(epoll::AcceptOp::new(fd)),
        _ => Accepting::Uring(uring::accept(fd)),
    })
}

impl AcceptOp {
    /// Calls it off: it ends soon, with a connection if one has just come.
    pub fn cancel(&self) {
        match &self.0 {
            Accepting::Uring(op) => op.cancel(),
            Accepting::Epoll(op) => op.cancel(),
        }
    }
}

impl Future for AcceptOp {
    type Output = io::Result<(OwnedFd, SockAddr)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Accepting::Uring(op) => Pin::new(op).poll(cx),
            Accepting::Epoll(op) => Pin::new(op).poll(cx),
        }
    }
}

/// Accepts a connection that waits in the queue of `fd`; none if none does.
///
/// Whoever no longer accepts from a socket that others accept from as well owes them this: the kernel may wake one of
/// those who wait, and where that one calls its wait off at the same time, nobody else hears of the connection. The
/// socket stays blocking, which is theirs too.
///
/// # Errors
/// Those of accept(2); ECANCELED if somebody else took what waited.
pub async fn accept_waiting(fd: &Fd) -> io::Result<Option<(OwnedFd, SockAddr)>> {
    match Engine::current() {
        Engine::Epoll => epoll::accept_now(fd),
        _ => uring::accept_waiting(fd).await,
    }
}

/// Accepts up to `most` of the connections that wait in the queue of `fd`, in one pass of the engine; fewer when no more
/// wait, when somebody else takes them, or when the kernel refuses, which the next [`accept`] reports.
///
/// Each wait that is called off may have been woken for a connection that others are then not told of. So where others
/// accept from the socket too, an [`accept`] or as many [`accept_waiting`] must follow.
pub async fn accept_burst(fd: &Fd, most: usize) -> Vec<(OwnedFd, SockAddr)> {
    match Engine::current() {
        Engine::Epoll => (0..most).map_while(|_| epoll::accept_now(fd).ok().flatten()).collect(),
        _ => uring::accept_burst(fd, most).await,
    }
}
