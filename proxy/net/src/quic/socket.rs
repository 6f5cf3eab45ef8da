//! A UDP socket: many datagrams with one call, in both directions.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::Waker;

use bytes::BytesMut;
use quinn_proto::{EcnCodepoint, Transmit};
use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use sluice_ring as ring;

use super::mailbox::Datagram;

/// Calls of one turn: other tasks of the worker follow.
const BATCHES: usize = 4;
/// Buffers of one call. Each takes the datagrams of one sender that the kernel has joined.
const BUFFERS: usize = 8;
/// The size of a buffer: the most that the kernel joins.
const BUFFER_BYTES: usize = 64 * 1024;
/// The most datagrams that one call sends. With more, a few connections fill the client's socket or a router on the way,
/// and what is lost at the end of a response waits for a timeout; with fewer, there are more calls. Beside nginx, 32 in
/// eight calls of a turn had twice its p99 at 64 KB, and 10 in one call five percent fewer requests; 16 has neither.
const SEGMENTS_MAX: usize = 16;
/// What the kernel keeps of what was received, and of what is to be sent. It allows less without privileges.
const KERNEL_BYTES: usize = 4 << 20;

/// A worker's socket of a listener.
pub(super) struct Socket {
    fd: ring::Fd,
    state: UdpSocketState,
    /// Datagrams that the socket had no room for, in order.
    blocked: RefCell<VecDeque<(Transmit, Vec<u8>)>>,
    waiting: RefCell<Vec<Waker>>,
    is_flushing: Cell<bool>,
}

impl Socket {
    /// Prepares a bound socket.
    ///
    /// # Errors
    /// The kernel refuses an option.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // What the kernel allows suffices; datagrams are lost earlier then.
        let _ = state.set_recv_buffer_size(UdpSockRef::from(&socket), KERNEL_BYTES);
        let _ = state.set_send_buffer_size(UdpSockRef::from(&socket), KERNEL_BYTES);
        let (blocked, waiting, is_flushing) = Default::default();
        Ok(Self { fd: socket.into(), state, blocked, waiting, is_flushing })
    }

    /// Whether datagrams may be fragmented on their way, so that their best size cannot be found out.
    pub(super) fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// The most datagrams that can be sent at once.
    pub(super) fn segments_max(&self) -> usize {
        self.state.max_gso_segments().clamp(1, SEGMENTS_MAX)
    }

    /// Whether the socket has no room, so that nothing more should be made to send. `waker` is woken when it has.
    pub(super) fn is_blocked(&self, waker: &Waker) -> bool {
        let is_blocked = !self.blocked.borrow().is_empty();
        if is_blocked {
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|other| other.will_wake(waker)) {
                waiting.push(waker.clone());
            }
        }
        is_blocked
    }

    /// Sends a datagram that nobody waits for: it is lost if the socket has no room.
    pub(super) fn send_or_lose(&self, transmit: &Transmit, bytes: &[u8]) {
        if self.blocked.borrow().is_empty() {
            self.try_send(transmit, bytes);
        }
    }

    /// Sends one or several datagrams, now or when there is room.
    pub(super) fn send(self: &Rc<Self>, transmit: Transmit, bytes: &[u8]) {
        let has_room = self.blocked.borrow().is_empty() && self.try_send(&transmit, bytes);
        if has_room {
            return;
        }
        self.blocked.borrow_mut().push_back((transmit, bytes.to_vec()));
        if !self.is_flushing.replace(true) {
            tokio::task::spawn_local(Rc::clone(self).flush());
        }
    }

    /// Whether the socket had room. What cannot be sent for another reason is lost, as on a network: the protocol tries
    /// again, or finds that the path is closed.
    fn try_send(&self, transmit: &Transmit, bytes: &[u8]) -> bool {
        let sent = self.state.try_send(
            UdpSockRef::from(&self.fd),
            &quinn_udp::Transmit {
                destination: transmit.destination,
                ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
                contents: bytes,
                segment_size: transmit.segment_size,
                src_ip: transmit.src_ip,
            },
        );
        match sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            // A datagram that is too large is how the best size is found out.
            Err(error) if error.raw_os_error() != Some(libc::EMSGSIZE) => {
                tracing::debug!(%error, client = %transmit.destination, "cannot send a datagram");
                true
            }
            _ => true,
        }
    }

    async fn flush(self: Rc<Self>) {
        loop {
            let next = self.blocked.borrow_mut().pop_front();
            let Some((transmit, bytes)) = next else { break };
            if !self.try_send(&transmit, &bytes) {
                self.blocked.borrow_mut().push_front((transmit, bytes));
                // An error shows again when it is sent.
                let _ = ring::poll(&self.fd, libc::POLLOUT).await;
            }
        }
        self.is_flushing.set(false);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Receives until nothing is left, a few calls at most, and gives each datagram to `take`.
    ///
    /// # Errors
    /// The socket can no longer be used.
    pub(super) async fn receive(
        &self,
        room: &mut ReceiveBuffers,
        mut take: impl FnMut(Datagram),
    ) -> io::Result<()> {
        let mut calls = 0;
        ring::when_readable(&self.fd, || {
            loop {
                match self.receive_now(room, &mut take) {
                    Ok(()) => calls += 1,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return (calls > 0).then_some(Ok(()));
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // What the network says of one client is no matter of the others.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                    Err(error) => return Some(Err(error)),
                }
                if calls == BATCHES {
                    return Some(Ok(()));
                }
            }
        })
        .await?
    }

    fn receive_now(&self, room: &mut ReceiveBuffers, take: &mut impl FnMut(Datagram)) -> io::Result<()> {
        let mut metas = [RecvMeta::default(); BUFFERS];
        let count = {
            let mut parts = room.0.chunks_exact_mut(BUFFER_BYTES).map(IoSliceMut::new);
            let mut slices: [IoSliceMut<'_>; BUFFERS] =
                std::array::from_fn(|_| parts.next().unwrap_or_else(|| IoSliceMut::new(&mut [])));
            self.state.recv(UdpSockRef::from(&self.fd), &mut slices, &mut metas)?
        };
        for (buffer, meta) in room.0.chunks_exact(BUFFER_BYTES).zip(&metas[..count]) {
            let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
            // Each by itself: one that is kept must not keep the others.
            for one in buffer[..meta.len].chunks(meta.stride.max(1)) {
                take(Datagram { remote: meta.addr, local: meta.dst_ip, ecn, bytes: BytesMut::from(one) });
            }
        }
        Ok(())
    }
}

/// Where datagrams are received.
pub(super) struct ReceiveBuffers(Box<[u8]>);

impl ReceiveBuffers {
    pub(super) fn new() -> Self {
        Self(vec![0; BUFFERS * BUFFER_BYTES].into())
    }
}
