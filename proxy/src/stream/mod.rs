//! The seam between the protocol code and the wire: owned-buffer receives and sends over a ring socket,
//! or over an in-memory pipe in tests.
//!
//! [`Stream`] is the handle, [`Reader`] and [`Writer`] are its two directions. It is an enum, not a
//! trait: a few engines, one match, and no type parameter in everything above.

#[cfg(test)]
pub(crate) mod memory;
mod outgoing;
mod passed;
mod reader;
pub(crate) mod tls;
mod writer;

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::net::{RecvFlags, SendFlags};
use sluice_ring as ring;
use socket2::SockRef;

use crate::http2;

pub(crate) use reader::Reader;
pub(crate) use writer::Writer;

/// The two directions of a connection.
pub(crate) fn halves(stream: Stream) -> (Reader, Writer) {
    let outgoing = Rc::<outgoing::Outgoing>::default();
    (Reader::new(stream.clone(), Rc::clone(&outgoing)), Writer::new(stream, outgoing))
}

/// One connection's socket; cloning it shares the descriptor.
#[derive(Clone)]
pub(crate) enum Stream {
    /// A TCP or unix socket driven by the ring of this thread.
    Ring(ring::Fd),
    /// A TLS session over another stream.
    Tls(Rc<tls::Session>),
    /// One stream of an HTTP/2 connection, which speaks HTTP/1.1 here.
    Http2(Rc<http2::Channel>),
    /// One exchange on an HTTP/2 connection to an endpoint, which speaks HTTP/1.1 here.
    Http2Upstream(Rc<http2::upstream::Channel>),
    /// An end of an in-memory pipe.
    #[cfg(test)]
    Memory(memory::End),
}

impl Stream {
    /// Takes a connected socket. It must be blocking: the ring waits for it, and a socket marked
    /// non-blocking would answer EAGAIN instead.
    pub(crate) fn from_socket(socket: OwnedFd) -> Self {
        Self::Ring(Rc::new(socket))
    }

    /// Whether this is a bare socket: what is read and written is what the kernel sees.
    pub(crate) fn is_socket(&self) -> bool {
        match self {
            Self::Ring(_) => true,
            Self::Tls(_) => false,
            Self::Http2(_) | Self::Http2Upstream(_) => false,
            #[cfg(test)]
            Self::Memory(_) => false,
        }
    }

    /// The descriptor, to ask the kernel about the socket. None where the kernel's bytes are not the stream's.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Ring(fd) => Some(fd.as_fd()),
            Self::Tls(_) => None,
            Self::Http2(_) | Self::Http2Upstream(_) => None,
            #[cfg(test)]
            Self::Memory(_) => None,
        }
    }

    /// The socket below, if there is one.
    pub(crate) fn socket(&self) -> Option<&ring::Fd> {
        match self {
            Self::Ring(fd) => Some(fd),
            Self::Tls(_) => None,
            Self::Http2(_) | Self::Http2Upstream(_) => None,
            #[cfg(test)]
            Self::Memory(_) => None,
        }
    }

    /// The socket, if this is its last holder; no operation is under way then, for each holds it.
    pub(crate) fn into_socket(self) -> Option<OwnedFd> {
        match self {
            Self::Ring(fd) => Rc::into_inner(fd),
            Self::Tls(_) => None,
            Self::Http2(_) | Self::Http2Upstream(_) => None,
            #[cfg(test)]
            Self::Memory(_) => None,
        }
    }

    /// Whether it is one stream of an HTTP/2 connection: one exchange, and then its end.
    pub(crate) fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(_))
    }

    /// Ready when the other side has broken off, as far as that is seen without reading: on a stream of HTTP/2.
    pub(crate) fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Http2(channel) => channel.poll_reset(cx),
            _ => Poll::Pending,
        }
    }

    /// Whether a send goes on by itself, so that its outcome may be looked at when that is of interest.
    fn sends_by_itself(&self) -> bool {
        !matches!(self, Self::Http2(_) | Self::Http2Upstream(_))
    }

    /// Whether its exchanges share a connection, so that it is never kept for the next one.
    pub(crate) fn is_multiplexed(&self) -> bool {
        matches!(self, Self::Http2Upstream(_))
    }

    /// Whether the other side has said that it did nothing about what was sent (RFC 9113 section 8.7).
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Http2Upstream(channel) if channel.is_refused())
    }

    fn recv(&self, buf: Vec<u8>, patient: bool) -> Recv {
        match self {
            Self::Ring(fd) => Recv::Ring(ring::recv(fd, buf, patient)),
            Self::Tls(session) => Recv::Tls(session.recv(buf, patient)),
            Self::Http2(channel) => Recv::Http2(channel.recv(buf)),
            Self::Http2Upstream(channel) => Recv::Http2Upstream(channel.recv(buf)),
            #[cfg(test)]
            Self::Memory(end) => Recv::Memory(end.recv(buf)),
        }
    }

    fn send(&self, buf: Vec<u8>, start: usize, whole: bool) -> Send {
        match self {
            Self::Ring(fd) => Send::Ring(ring::send(fd, buf, start, whole)),
            Self::Tls(session) => Send::Tls(session.send(buf, start, whole)),
            Self::Http2(channel) => Send::Http2(channel.send(buf, start)),
            Self::Http2Upstream(channel) => Send::Http2Upstream(channel.send(buf, start)),
            #[cfg(test)]
            Self::Memory(end) => Send::Memory(end.send(buf, start, whole)),
        }
    }

    /// Sends a last message, as much of it as the socket takes at once. Nothing may be under way.
    fn send_now(&self, buf: Vec<u8>) {
        match self {
            Self::Ring(fd) => {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let _ = rustix::net::send(fd, &buf, flags);
            }
            Self::Tls(session) => drop(session.send(buf, 0, true)),
            Self::Http2(channel) => drop(channel.send(buf, 0)),
            Self::Http2Upstream(channel) => drop(channel.send(buf, 0)),
            #[cfg(test)]
            Self::Memory(end) => drop(end.send(buf, 0, true)),
        }
    }

    /// Tells the peer that all was said that was to be said, if the protocol below has a way to; with what was sent
    /// gone, and before the close.
    pub(crate) fn say_goodbye(&self) {
        match self {
            Self::Ring(_) | Self::Http2(_) | Self::Http2Upstream(_) => {}
            Self::Tls(session) => session.say_goodbye(),
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }

    /// Half-closes: the peer reads the end of the stream after what was sent.
    pub(crate) fn shutdown_write(&self) {
        self.say_goodbye();
        self.shutdown(Shutdown::Write);
    }

    /// Makes a receive under way, and later ones, end once what has arrived is read.
    pub(crate) fn shutdown_read(&self) {
        self.shutdown(Shutdown::Read);
    }

    fn shutdown(&self, how: Shutdown) {
        match self {
            // An error means that the peer was faster; the next operation tells.
            Self::Ring(fd) => drop(SockRef::from(&**fd).shutdown(how)),
            Self::Tls(session) => session.below().shutdown(how),
            Self::Http2(channel) => channel.shutdown(how),
            // A request says itself where it ends.
            Self::Http2Upstream(_) => {}
            #[cfg(test)]
            Self::Memory(end) => end.shutdown(how),
        }
    }

    /// Makes the close that follows a reset, so that the peer cannot take what it has for complete.
    pub(crate) fn reset_on_close(&self) {
        match self {
            Self::Ring(fd) => drop(SockRef::from(&**fd).set_linger(Some(Duration::ZERO))),
            Self::Tls(session) => session.below().reset_on_close(),
            Self::Http2(channel) => channel.reset_on_close(),
            // It is one whenever something is not whole.
            Self::Http2Upstream(_) => {}
            #[cfg(test)]
            Self::Memory(end) => end.reset(),
        }
    }

    /// Whether nothing has come that is unread: no byte, no end, no error.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Ring(fd) => {
                let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                matches!(rustix::net::recv(fd, &mut [0; 1], flags), Err(rustix::io::Errno::AGAIN))
            }
            // What comes may be of the session alone.
            Self::Tls(_) | Self::Http2(_) | Self::Http2Upstream(_) => true,
            #[cfg(test)]
            Self::Memory(_) => true,
        }
    }

    /// Whether the peer has shut its writing side down or is gone, whatever is still unread.
    pub(crate) fn is_hung_up(&self) -> bool {
        match self {
            Self::Ring(fd) => {
                let mut fds = [PollFd::new(fd.as_fd(), PollFlags::from_bits_retain(libc::POLLRDHUP))];
                poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
            }
            Self::Tls(session) => session.below().is_hung_up(),
            // Its receive tells, for there is never a request behind the first.
            Self::Http2(_) | Self::Http2Upstream(_) => false,
            #[cfg(test)]
            Self::Memory(end) => end.is_hung_up(),
        }
    }
}

/// A receive under way: resolves to the count (0 at the end of the stream) and the buffer.
pub(crate) enum Recv {
    Ring(ring::RecvOp),
    Tls(tls::Recv),
    Http2(http2::Recv<http2::Channel>),
    Http2Upstream(http2::Recv<http2::upstream::Channel>),
    #[cfg(test)]
    Memory(memory::Recv),
}

impl Future for Recv {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Ring(recv) => Pin::new(recv).poll(cx),
            Self::Tls(recv) => Pin::new(recv).poll(cx),
            Self::Http2(recv) => Pin::new(recv).poll(cx),
            Self::Http2Upstream(recv) => Pin::new(recv).poll(cx),
            #[cfg(test)]
            Self::Memory(recv) => Pin::new(recv).poll(cx),
        }
    }
}

impl Recv {
    /// Ends it soon, so that the descriptor closes with its last holder.
    fn cancel(&self) {
        match self {
            Self::Ring(recv) => recv.cancel(),
            Self::Tls(recv) => recv.cancel(),
            // Nothing goes on there that nobody polls.
            Self::Http2(_) | Self::Http2Upstream(_) => {}
            #[cfg(test)]
            Self::Memory(_) => {}
        }
    }
}

/// A send under way: resolves to the count and the buffer.
pub(crate) enum Send {
    Ring(ring::SendOp),
    Tls(tls::Send),
    Http2(http2::Send<http2::Channel>),
    Http2Upstream(http2::Send<http2::upstream::Channel>),
    #[cfg(test)]
    Memory(memory::Send),
}

impl Future for Send {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Ring(send) => Pin::new(send).poll(cx),
            Self::Tls(send) => Pin::new(send).poll(cx),
            Self::Http2(send) => Pin::new(send).poll(cx),
            Self::Http2Upstream(send) => Pin::new(send).poll(cx),
            #[cfg(test)]
            Self::Memory(send) => Pin::new(send).poll(cx),
        }
    }
}

impl Send {
    /// Ends it soon, as [`Recv::cancel`].
    fn cancel(&self) {
        match self {
            Self::Ring(send) => send.cancel(),
            Self::Tls(send) => send.cancel(),
            Self::Http2(_) | Self::Http2Upstream(_) => {}
            #[cfg(test)]
            Self::Memory(send) => send.cancel(),
        }
    }
}
