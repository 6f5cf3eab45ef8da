//! Receive, send, connect and wait for events, on one socket.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockAddr;

use super::{Engine, Fd, epoll, uring};

/// A receive in progress.
pub struct RecvOp(Receiving);

enum Receiving {
    Uring(uring::RecvOp),
    Lent(uring::LentOp),
    Epoll(epoll::RecvOp),
}

/// Starts receiving into the spare capacity of `buf`, after its contents. Returns the number of bytes (0 is the end of
/// the stream) and the buffer. With `patient` it waits for data before it tries.
pub fn recv(fd: &Fd, buf: Vec<u8>, patient: bool) -> RecvOp {
    debug_assert!(buf.capacity() > buf.len(), "a receive of no bytes looks like the end of the stream");
    RecvOp(match Engine::current() {
        Engine::Epoll => Receiving::Epoll(epoll::RecvOp::new(fd, buf, patient)),
        _ => Receiving::Uring(uring::recv(fd, buf, patient)),
    })
}

/// Starts receiving up to `bytes_max` bytes, without a buffer until something has arrived, if the engine can do that
/// (tokio-uring cannot). Returns the number of bytes and a buffer that may have room for no more.
pub fn recv_lent(fd: &Fd, bytes_max: usize, patient: bool) -> RecvOp {
    debug_assert!(bytes_max > 0, "a receive of no bytes looks like the end of the stream");
    RecvOp(match Engine::current() {
        Engine::Epoll => Receiving::Epoll(epoll::RecvOp::lent(fd, bytes_max, patient)),
        Engine::IoUring => Receiving::Lent(uring::recv_lent(fd, bytes_max, patient)),
        Engine::TokioUring => Receiving::Uring(uring::recv(fd, Vec::with_capacity(bytes_max), patient)),
    })
}

impl RecvOp {
    /// Makes what has arrived by now visible to its next poll, without waiting for the engine's next turn and, if
    /// nothing has, without a system call. Returns false if something may have arrived all the same: the kernel does
    /// not have the receive yet, or the engine cannot tell (tokio-uring). A system call on the socket finds it then,
    /// and [`Self::refresh`] afterwards makes visible what the receive took meanwhile.
    pub fn catch_up(&mut self) -> bool {
        match &mut self.0 {
            Receiving::Uring(op) => op.catch_up(),
            Receiving::Lent(op) => op.catch_up(),
            Receiving::Epoll(op) => {
                op.refresh();
                true
            }
        }
    }

    /// Whether it notices what arrives from now on: the kernel has it, as far as the engine can tell.
    pub fn is_armed(&self) -> bool {
        match &self.0 {
            Receiving::Uring(op) => op.is_submitted(),
            Receiving::Lent(op) => op.is_submitted(),
            Receiving::Epoll(_) => true,
        }
    }

    /// Makes what the kernel has completed visible to its next poll. tokio-uring has no such call; there a poll may see
    /// a completion one turn late.
    pub fn refresh(&mut self) {
        match &mut self.0 {
            Receiving::Uring(_) | Receiving::Lent(_) => uring::dispatch(),
            Receiving::Epoll(op) => op.refresh(),
        }
    }

    /// Cancels it: it ends soon, possibly with data that has just arrived.
    pub fn cancel(&self) {
        match &self.0 {
            Receiving::Uring(op) => op.cancel(),
            Receiving::Lent(op) => op.cancel(),
            Receiving::Epoll(op) => op.cancel(),
        }
    }
}

impl Future for RecvOp {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Receiving::Uring(op) => Pin::new(op).poll(cx),
            Receiving::Lent(op) => Pin::new(op).poll(cx),
            Receiving::Epoll(op) => Pin::new(op).poll(cx),
        }
    }
}

/// A send in progress.
pub struct SendOp(Sending);

enum Sending {
    Uring(uring::SendOp),
    Epoll(epoll::SendOp),
}

/// Starts sending `buf[start..]`. With `whole` it continues, polled or not, until everything is sent or an error ends
/// it; without `whole` it may send only a part. Returns the number of bytes and the buffer.
pub fn send(fd: &Fd, buf: Vec<u8>, start: usize, whole: bool) -> SendOp {
    SendOp(match Engine::current() {
        Engine::Epoll => Sending::Epoll(epoll::SendOp::new(fd, buf, start, whole)),
        _ => Sending::Uring(uring::send(fd, buf, start, whole)),
    })
}

impl SendOp {
    /// Cancels it: it ends soon, and a part may have left.
    pub fn cancel(&self) {
        match &self.0 {
            Sending::Uring(op) => op.cancel(),
            Sending::Epoll(op) => op.cancel(),
        }
    }
}

impl Future for SendOp {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Sending::Uring(op) => Pin::new(op).poll(cx),
            Sending::Epoll(op) => Pin::new(op).poll(cx),
        }
    }
}

/// Connects `fd` to `address`. Dropping the future cancels the connect, which would otherwise keep the socket open
/// until the kernel gives up.
///
/// # Errors
/// Those of connect(2).
pub async fn connect(fd: &Fd, address: SockAddr) -> io::Result<()> {
    match Engine::current() {
        Engine::Epoll => epoll::connect(fd, &address).await,
        _ => uring::connect(fd, address).await,
    }
}

/// Waits until `fd` is ready for any of `events`, has failed or was hung up (poll(2); also when the peer has shut
/// down).
///
/// # Errors
/// Those of poll(2).
pub async fn poll(fd: &Fd, events: libc::c_short) -> io::Result<()> {
    match Engine::current() {
        Engine::Epoll => epoll::poll(fd, events).await,
        _ => uring::poll(fd, events).await,
    }
}
