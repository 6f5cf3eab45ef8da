//! What all endpoints of a process share: its keys, its generation, and the way to connections that are elsewhere.
//!
//! After an upgrade, the new process reads the sockets that the old one had. Datagrams of connections that are still in
//! the old one go to it over a pair of unix sockets, and it answers on the UDP sockets itself. So an upgrade needs no
//! privilege and no support of the kernel, and no connection notices it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram as StdUnixDatagram;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::BytesMut;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use quinn_proto::EcnCodepoint;
use sluice_config::AssistMode;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::UnixDatagram;
use tokio::sync::{mpsc, watch};

use super::identifier::{Origin, destination};
use super::keys::QuicKeys;
use super::mailbox::Datagram;
use super::tokens::Tokens;

/// Bytes of datagrams that may wait for another process.
const WAITING_BYTES: usize = 4 << 20;
/// The largest datagram with its header.
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes before the datagram: key, sender, its port, local address, ECN.
const HEADER_BYTES: usize = 8 + 16 + 2 + 1 + 16 + 1;

/// A process as its endpoints see it.
pub struct QuicProcess {
    secret: [u8; 32],
    keys: QuicKeys,
    tokens: Tokens,
    /// Whether the kernel may give packets to the worker that has their connection.
    steering: OnceLock<AssistMode>,
    generation: u8,
    /// The ways to other processes, by their generation.
    relays: Mutex<BTreeMap<u8, Arc<OwnedFd>>>,
    /// Where datagrams from other processes go, by listener and worker.
    inboxes: Mutex<HashMap<(u64, u8), mpsc::Sender<Datagram>>>,
    /// Listeners whose sockets the next process reads.
    relayed: watch::Sender<BTreeSet<u64>>,
}

/// What a new process needs of an old one.
#[derive(Debug)]
pub struct QuicEstate {
    /// The secret of the keys.
    pub secret: [u8; 32],
    /// The generation of the old process.
    pub generation: u8,
    /// The ways to processes that may have connections, by generation; among them the old one.
    pub relays: Vec<(u8, OwnedFd)>,
}

static PROCESS: OnceLock<QuicProcess> = OnceLock::new();

impl QuicProcess {
    /// This process. Unless it has taken over from another one, its keys are random.
    pub fn this() -> &'static Self {
        PROCESS.get_or_init(|| Self::new(QuicKeys::random_secret(), fastrand::u8(..)))
    }

    /// Whether there is one: QUIC is in use, or another process was succeeded.
    pub fn has_begun() -> bool {
        PROCESS.get().is_some()
    }

    /// Begins with the secret of an earlier process. Call it before anything else of QUIC.
    pub fn begin(secret: [u8; 32]) {
        // Generations are of use only while two processes run.
        let _ = PROCESS.set(Self::new(secret, fastrand::u8(..)));
    }

    /// Makes this process the next generation. Call it before anything else of QUIC.
    pub fn succeed(estate: QuicEstate) {
        let process = Self::new(estate.secret, estate.generation.wrapping_add(1));
        let relays = estate.relays.into_iter().map(|(generation, socket)| (generation, Arc::new(socket)));
        *process.lock_relays() = relays.collect();
        if PROCESS.set(process).is_err() {
            tracing::error!("QUIC was in use before the other process was known; its connections are lost");
        }
    }

    fn new(secret: [u8; 32], generation: u8) -> Self {
        let (keys, tokens) = (QuicKeys::new(&secret), Tokens::new(&secret));
        let relayed = watch::Sender::default();
        Self {
            secret,
            keys,
            tokens,
            steering: OnceLock::new(),
            generation,
            relays: Mutex::default(),
            inboxes: Mutex::default(),
            relayed,
        }
    }

    /// The secrets of its endpoints.
    pub fn keys(&self) -> &QuicKeys {
        &self.keys
    }

    /// Sets `kernel.quic_steering`, before sockets are bound.
    pub fn set_steering(&self, mode: AssistMode) {
        // It cannot change while the process runs.
        let _ = self.steering.set(mode);
    }

    /// `kernel.quic_steering`.
    pub(crate) fn steering(&self) -> AssistMode {
        self.steering.get().copied().unwrap_or_default()
    }

    /// How clients that return prove their address.
    pub(super) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Its generation.
    pub fn generation(&self) -> u8 {
        self.generation
    }

    /// The other ends of the ways to older processes: what they send is for this one.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn receivers(&self) -> io::Result<Vec<UnixDatagram>> {
        let before = self.generation.wrapping_sub(1);
        let relays = self.lock_relays();
        relays.get(&before).into_iter().map(|socket| receiver(socket)).collect()
    }

    /// Prepares for a new process: what it needs, and where this one receives what the new one sends.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn bequeath(&self) -> io::Result<(QuicEstate, UnixDatagram)> {
        let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        for socket in [&ours, &theirs] {
            // The kernel allows less without privileges; more is lost then.
            let _ = socket.set_send_buffer_size(WAITING_BYTES);
        }
        let mut relays = self.lock_relays();
        relays.retain(|_, socket| !has_hung_up(socket));
        let mut passed = vec![(self.generation, OwnedFd::from(theirs))];
        for (generation, socket) in relays.iter() {
            passed.push((*generation, socket.try_clone()?));
        }
        let ours = Arc::new(OwnedFd::from(ours));
        let receiver = receiver(&ours)?;
        relays.insert(self.generation.wrapping_add(1), ours);
        Ok((QuicEstate { secret: self.secret, generation: self.generation, relays: passed }, receiver))
    }

    /// The new process has failed, or is gone: this one reads its sockets again.
    pub fn recall(&self) {
        self.lock_relays().remove(&self.generation.wrapping_add(1));
        self.relayed.send_replace(BTreeSet::new());
    }

    /// Listeners whose sockets the next process reads.
    pub(super) fn relayed(&self) -> watch::Receiver<BTreeSet<u64>> {
        self.relayed.subscribe()
    }

    /// Whether an older process may have connections whose datagrams this one receives.
    pub(super) fn has_older(&self) -> bool {
        let next = self.generation.wrapping_add(1);
        let mut relays = self.lock_relays();
        relays.retain(|generation, socket| *generation == next || !has_hung_up(socket));
        relays.keys().any(|generation| *generation != next)
    }

    /// Tells the process before this one whether this one reads the sockets of a listener.
    pub(super) fn announce(&self, key: u64, is_reading: bool) {
        let before = self.generation.wrapping_sub(1);
        if let Some(socket) = self.lock_relays().get(&before) {
            let message = [&key.to_le_bytes()[..], &[u8::from(is_reading)]].concat();
            let _ =
                SockRef::from(&**socket).send_with_flags(&message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        }
    }

    /// Registers the mailbox of a worker on the listener with this key.
    pub(crate) fn register(&self, key: u64, worker: u8, mailbox: mpsc::Sender<Datagram>) {
        self.lock_inboxes().insert((key, worker), mailbox);
    }

    /// Sends a datagram to the process that has its connection. Returns false if there is none. It is lost if too many
    /// wait.
    pub(super) fn relay(&self, key: u64, origin: Origin, datagram: &Datagram) -> bool {
        let relays = self.lock_relays();
        // One that is not known may be reached through the next one.
        let next = self.generation.wrapping_add(1);
        let Some(socket) = relays.get(&origin.generation).or_else(|| relays.get(&next)) else { return false };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let sent = SockRef::from(&**socket).send_with_flags(&encode(key, datagram), flags);
        !sent.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)))
    }

    /// Takes what another process says: a datagram for a worker of this one, or which sockets it reads.
    fn deliver(&self, message: &[u8]) {
        if let Some((key, [is_reading])) = message.split_first_chunk() {
            let key = u64::from_le_bytes(*key);
            self.relayed.send_modify(|relayed| match is_reading {
                0 => _ = relayed.remove(&key),
                _ => _ = relayed.insert(key),
            });
            return;
        }
        let Some((key, datagram)) = decode(message) else { return };
        let Some(origin) = destination(&datagram.bytes, &self.keys) else { return };
        if origin.generation != self.generation {
            self.relay(key, origin, &datagram);
        } else if let Some(mailbox) = self.lock_inboxes().get(&(key, origin.worker)) {
            let _ = mailbox.try_send(datagram);
        }
    }

    fn lock_relays(&self) -> MutexGuard<'_, BTreeMap<u8, Arc<OwnedFd>>> {
        self.relays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_inboxes(&self) -> MutexGuard<'_, HashMap<(u64, u8), mpsc::Sender<Datagram>>> {
        self.inboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn receiver(socket: &OwnedFd) -> io::Result<UnixDatagram> {
    let socket = StdUnixDatagram::from(socket.try_clone()?);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

/// Whether the process at the other end is gone.
fn has_hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Receives what the next process sends, until it is gone. From then on, this one reads its sockets again.
pub async fn receive_from_next(socket: UnixDatagram) {
    receive_relayed(socket).await;
    QuicProcess::this().recall();
}

/// Receives what another process sends, until it is gone.
pub async fn receive_relayed(socket: UnixDatagram) {
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    while let Ok(count @ 1..) = socket.recv(&mut message).await {
        QuicProcess::this().deliver(&message[..count]);
    }
    // Endpoints that have waited for an older process may end now.
    QuicProcess::this().relayed.send_modify(|_| ());
}

fn bytes_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn encode(key: u64, datagram: &Datagram) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER_BYTES + datagram.bytes.len());
    message.extend_from_slice(&key.to_le_bytes());
    message.extend_from_slice(&bytes_of(datagram.remote.ip()));
    message.extend_from_slice(&datagram.remote.port().to_le_bytes());
    message.push(u8::from(datagram.remote.is_ipv6()) | u8::from(datagram.local.is_some()) << 1);
    let local = datagram.local.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    message.extend_from_slice(&bytes_of(local));
    message.push(datagram.ecn.map_or(0, |ecn| ecn as u8));
    message.extend_from_slice(&datagram.bytes);
    message
}

fn decode(message: &[u8]) -> Option<(u64, Datagram)> {
    let (key, rest) = message.split_first_chunk()?;
    let (remote, rest) = rest.split_first_chunk::<16>()?;
    let (port, rest) = rest.split_first_chunk()?;
    let ([flags], rest) = rest.split_first_chunk()?;
    let (local, rest) = rest.split_first_chunk::<16>()?;
    let ([ecn], bytes) = rest.split_first_chunk()?;
    let address = |bytes: [u8; 16]| IpAddr::from(Ipv6Addr::from(bytes));
    // A socket of IPv4 knows no mapped addresses.
    let as_sent = |address: IpAddr| if flags & 1 == 0 { address.to_canonical() } else { address };
    let datagram = Datagram {
        remote: SocketAddr::new(as_sent(address(*remote)), u16::from_le_bytes(*port)),
        local: (flags & 2 != 0).then(|| as_sent(address(*local))),
        ecn: EcnCodepoint::from_bits(*ecn),
        bytes: BytesMut::from(bytes),
    };
    Some((u64::from_le_bytes(*key), datagram))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_arrive_as_they_were_sent() {
        for (remote, local) in [
            ("192.0.2.1:443", Some("192.0.2.9")),
            ("[2001:db8::1]:65535", Some("2001:db8::2")),
            ("[::ffff:192.0.2.1]:1", None),
            ("127.0.0.1:9", None),
        ] {
            let sent = Datagram {
                remote: remote.parse().unwrap(),
                local: local.map(|local| local.parse().unwrap()),
                ecn: Some(EcnCodepoint::Ce),
                bytes: BytesMut::from(&b"payload"[..]),
            };
            let (key, got) = decode(&encode(7, &sent)).unwrap();
            assert_eq!((key, got.remote, got.local, got.ecn), (7, sent.remote, sent.local, sent.ecn));
            assert_eq!(got.bytes, sent.bytes);
        }
        assert!(decode(&[0; HEADER_BYTES - 1]).is_none());
    }
}
