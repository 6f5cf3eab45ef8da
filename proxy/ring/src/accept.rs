//! Accepts connections together with their peers' addresses.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockAddr;

use super::{Engine, Fd, epoll, uring};

/// An accept in progress. If dropped, it may continue; a connection that it then returns is closed.
pub struct AcceptOp(Accepting);

enum Accepting {
    Uring(uring::AcceptOp),
    Epoll(epoll::AcceptOp),
}

/// Starts to accept one connection from the listening socket `fd`.
pub fn accept(fd: &Fd) -> AcceptOp {
    AcceptOp(match Engine::current() {
        Engine::Epoll => Accepting::Epoll(epoll::AcceptOp::new(fd)),
        _ => Accepting::Uring(uring::accept(fd)),
    })
}

impl AcceptOp {
    /// Cancels it and waits for its end.
    ///
    /// # Errors
    /// ECANCELED, unless a connection has just arrived, or those of accept(2).
    pub async fn stop(mut self) -> io::Result<(OwnedFd, SockAddr)> {
        match &mut self.0 {
            Accepting::Uring(op) => {
                op.cancel();
                op.stopped().await
            }
            Accepting::Epoll(op) => {
                op.cancel();
                op.await
            }
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

/// Accepts a connection from the queue of `fd`; `None` if the queue is empty.
///
/// Call this after you cancel an [`accept`] on a socket from which others accept too: the kernel may have woken the
/// cancelled wait for a connection, and then notifies no other waiter. The socket stays blocking, because the others
/// share that flag.
///
/// # Errors
/// Those of accept(2); ECANCELED if another waiter took the connection.
pub async fn accept_waiting(fd: &Fd) -> io::Result<Option<(OwnedFd, SockAddr)>> {
    match Engine::current() {
        Engine::Epoll => epoll::accept_now(fd),
        _ => uring::accept_waiting(fd).await,
    }
}

/// Accepts up to `most` connections from the queue of `fd` in one pass of the engine. Returns fewer if no more are
/// waiting, if other waiters take them, or if the kernel refuses; the next [`accept`] then reports the error.
///
/// Each cancelled wait may have been woken for a connection of which no other waiter is notified. So if others accept
/// from the socket too, an [`accept`] or as many [`accept_waiting`] must follow.
pub async fn accept_burst(fd: &Fd, most: usize) -> Vec<(OwnedFd, SockAddr)> {
    match Engine::current() {
        Engine::Epoll => (0..most).map_while(|_| epoll::accept_now(fd).ok().flatten()).collect(),
        _ => uring::accept_burst(fd, most).await,
    }
}
