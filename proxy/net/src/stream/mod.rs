//! The boundary between the protocol code and the wire: owned-buffer receives and sends over a ring socket, or over an
//! in-memory pipe in tests.
//!
//! [`Stream`] is the handle; [`Reader`] and [`Writer`] are its two directions. It is an enum, not a trait: there are
//! few engines, one match selects among them, and the code above needs no type parameter.

mod channel;
#[cfg(any(test, feature = "fake"))]
pub mod memory;
mod outgoing;
mod passed;
mod reader;
pub mod tls;
mod writer;

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sluice_ring as ring;
use socket2::SockRef;

use crate::deadline::Deadline;

pub use channel::{Channel, Verdict};
use channel::{ChannelRecv, ChannelSend};
pub use reader::Reader;
pub use writer::Writer;

/// The two directions of a connection.
pub fn halves(stream: Stream) -> (Reader, Writer) {
    let outgoing = Rc::<outgoing::Outgoing>::default();
    (Reader::new(stream.clone(), Rc::clone(&outgoing)), Writer::new(stream, outgoing))
}

/// Whether nothing is under way on a connection: nothing is unread, and everything is sent.
pub fn is_idle(reader: &Reader, writer: &mut Writer, deadline: &Deadline) -> bool {
    !reader.is_receiving() && reader.data().is_empty() && reader.is_quiet() && writer.is_settled(deadline)
}

/// The socket of an idle connection. `None`, and the connection is closed, if it has no plain socket, or if an operation
/// still holds the socket: the engine has lost it, and perhaps bytes with it.
pub fn into_socket((reader, writer): (Reader, Writer)) -> Option<OwnedFd> {
    let stream = reader.stream().clone();
    drop((reader, writer));
    stream.into_socket()
}

/// One connection's socket. Clones share the descriptor.
#[derive(Clone)]
pub enum Stream {
    /// A TCP or unix socket driven by the engine of this thread.
    Socket(ring::Fd),
    /// A TLS session over another stream.
    Tls(Rc<tls::Session>),
    /// One exchange of an HTTP/2 connection.
    Channel(Rc<dyn Channel>),
    /// One end of an in-memory pipe.
    #[cfg(any(test, feature = "fake"))]
    Memory(memory::End),
}

impl Stream {
    /// Takes a connected socket. It must be blocking: a ring waits for it, and a non-blocking socket would return
    /// EAGAIN instead.
    pub fn from_socket(socket: OwnedFd) -> Self {
        Self::Socket(socket.into())
    }

    /// Whether this is a plain socket: what is read and written is what the kernel sees.
    pub fn is_socket(&self) -> bool {
        match self {
            Self::Socket(_) => true,
            Self::Tls(_) | Self::Channel(_) => false,
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(_) => false,
        }
    }

    /// The descriptor, to query the kernel about the socket. `None` if the kernel's bytes are not the stream's.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Socket(fd) => Some(fd.as_fd()),
            Self::Tls(_) | Self::Channel(_) => None,
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(_) => None,
        }
    }

    /// The socket below, if there is one.
    pub fn socket(&self) -> Option<&ring::Fd> {
        match self {
            Self::Socket(fd) => Some(fd),
            Self::Tls(_) | Self::Channel(_) => None,
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(_) => None,
        }
    }

    /// The socket, if this is its last holder. No operation is then in progress, because each operation holds it.
    pub fn into_socket(self) -> Option<OwnedFd> {
        match self {
            Self::Socket(fd) => fd.into_inner(),
            Self::Tls(_) | Self::Channel(_) => None,
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(_) => None,
        }
    }

    /// Whether this is one exchange of a shared connection: heads and ends of messages are separate from the bytes, and
    /// no other exchange follows on it.
    pub fn is_channel(&self) -> bool {
        matches!(self, Self::Channel(_))
    }

    /// Ready when the peer has reset an HTTP/2 stream, if this is visible without reading.
    pub fn poll_broken(&self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Channel(channel) => channel.poll_reset(cx),
            _ => Poll::Pending,
        }
    }

    /// Whether a send continues without being polled, so that its result can be read later.
    fn sends_by_itself(&self) -> bool {
        !matches!(self, Self::Channel(_))
    }

    /// The reason that the peer gave for ending an exchange early, if the protocol has one.
    pub fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Channel(channel) => channel.verdict(),
            _ => None,
        }
    }

    fn recv(&self, buf: Vec<u8>, patient: bool) -> StreamRecv {
        match self {
            Self::Socket(fd) => StreamRecv::Socket(ring::recv(fd, buf, patient)),
            Self::Tls(session) => StreamRecv::Tls(session.recv(buf, patient)),
            Self::Channel(channel) => StreamRecv::Channel(ChannelRecv::new(channel, buf)),
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(end) => StreamRecv::Memory(end.recv(buf)),
        }
    }

    /// Receives up to `bytes_max` bytes, without a buffer until something has arrived. Only sockets can.
    fn recv_lent(&self, bytes_max: usize, patient: bool) -> Option<StreamRecv> {
        Some(StreamRecv::Socket(ring::recv_lent(self.socket()?, bytes_max, patient)))
    }

    fn send(&self, buf: Vec<u8>, start: usize, whole: bool) -> StreamSend {
        match self {
            Self::Socket(fd) => StreamSend::Socket(ring::send(fd, buf, start, whole)),
            Self::Tls(session) => StreamSend::Tls(session.send(buf, start, whole)),
            Self::Channel(channel) => StreamSend::Channel(ChannelSend::new(channel, buf, start)),
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(end) => StreamSend::Memory(end.send(buf, start, whole)),
        }
    }

    /// Sends a last message, as much of it as the socket takes at once. Nothing may be in progress.
    fn send_now(&self, buf: Vec<u8>) {
        match self {
            Self::Socket(fd) => {
                let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
                let _ = SockRef::from(fd).send_with_flags(&buf, flags);
            }
            Self::Tls(session) => drop(session.send(buf, 0, true)),
            Self::Channel(channel) => drop(ChannelSend::new(channel, buf, 0)),
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(end) => drop(end.send(buf, 0, true)),
        }
    }

    /// Tells the peer that nothing follows, if the protocol below supports this. Call it when everything has been sent,
    /// before the close.
    pub fn say_goodbye(&self) {
        match self {
            Self::Socket(_) | Self::Channel(_) => {}
            Self::Tls(session) => session.say_goodbye(),
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(_) => {}
        }
    }

    /// Half-closes: the peer reads the end of the stream after the sent bytes.
    pub fn shutdown_write(&self) {
        self.say_goodbye();
        match self {
            // An error means that the peer closed first; the next operation reports it.
            Self::Socket(fd) => drop(SockRef::from(fd).shutdown(Shutdown::Write)),
            Self::Tls(session) => session.below().shutdown_write(),
            Self::Channel(channel) => channel.shutdown_write(),
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(end) => end.shutdown_write(),
        }
    }

    /// Turns the following close into a reset, so that the peer cannot mistake what it has for a complete message.
    pub fn reset_on_close(&self) {
        match self {
            Self::Socket(fd) => drop(SockRef::from(fd).set_linger(Some(Duration::ZERO))),
            Self::Tls(session) => session.below().reset_on_close(),
            Self::Channel(channel) => channel.reset_on_close(),
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(end) => end.reset(),
        }
    }

    /// Whether nothing unread has arrived: no byte, no end, no error.
    pub fn is_quiet(&self) -> bool {
        match self {
            Self::Socket(fd) => {
                let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
                let peeked = SockRef::from(fd).recv_with_flags(&mut [MaybeUninit::uninit(); 1], flags);
                peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            }
            // Bytes may belong to the session only.
            Self::Tls(_) | Self::Channel(_) => true,
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(_) => true,
        }
    }

    /// Whether the connection has been reset. A channel reports it by [`Stream::poll_broken`].
    pub fn is_broken(&self) -> bool {
        match self {
            Self::Socket(fd) => {
                let mut fds = [PollFd::new(fd.as_fd(), PollFlags::empty())];
                poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
            }
            Self::Tls(session) => session.below().is_broken(),
            Self::Channel(_) => false,
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(end) => end.is_reset(),
        }
    }

    /// Whether the peer has shut down its writing side or closed, even if bytes are still unread.
    pub fn is_hung_up(&self) -> bool {
        match self {
            Self::Socket(fd) => {
                let mut fds = [PollFd::new(fd.as_fd(), PollFlags::from_bits_retain(libc::POLLRDHUP))];
                poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
            }
            Self::Tls(session) => session.below().is_hung_up(),
            // The receive reports it, because no second request follows on a channel.
            Self::Channel(_) => false,
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(end) => end.is_hung_up(),
        }
    }
}

/// A receive in progress: resolves to the count (0 at the end of the stream) and the buffer.
pub(crate) enum StreamRecv {
    Socket(ring::RecvOp),
    Tls(tls::TlsRecv),
    Channel(ChannelRecv),
    #[cfg(any(test, feature = "fake"))]
    Memory(memory::MemoryRecv),
}

impl Future for StreamRecv {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Socket(recv) => Pin::new(recv).poll(cx),
            Self::Tls(recv) => Pin::new(recv).poll(cx),
            Self::Channel(recv) => Pin::new(recv).poll(cx),
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(recv) => Pin::new(recv).poll(cx),
        }
    }
}

impl StreamRecv {
    /// Cancels it, so that the descriptor closes with its last holder.
    fn cancel(&self) {
        match self {
            Self::Socket(recv) => recv.cancel(),
            Self::Tls(recv) => recv.cancel(),
            // A channel does nothing unless it is polled.
            Self::Channel(_) => {}
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(_) => {}
        }
    }
}

/// A send in progress: resolves to the count and the buffer.
pub(crate) enum StreamSend {
    Socket(ring::SendOp),
    Tls(tls::TlsSend),
    Channel(ChannelSend),
    #[cfg(any(test, feature = "fake"))]
    Memory(memory::MemorySend),
}

impl Future for StreamSend {
    type Output = (io::Result<usize>, Vec<u8>);

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Socket(send) => Pin::new(send).poll(cx),
            Self::Tls(send) => Pin::new(send).poll(cx),
            Self::Channel(send) => Pin::new(send).poll(cx),
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(send) => Pin::new(send).poll(cx),
        }
    }
}

impl StreamSend {
    /// Cancels it, like [`StreamRecv::cancel`].
    fn cancel(&self) {
        match self {
            Self::Socket(send) => send.cancel(),
            Self::Tls(send) => send.cancel(),
            Self::Channel(_) => {}
            #[cfg(any(test, feature = "fake"))]
            Self::Memory(send) => send.cancel(),
        }
    }
}
