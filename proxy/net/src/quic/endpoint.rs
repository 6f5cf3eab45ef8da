//! One worker's UDP socket of a listener: datagrams to connections, and new connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use quinn_proto::{
    ConnectionError, ConnectionHandle, DatagramEvent, EndpointConfig, Incoming, ServerConfig, Transmit,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use super::allowance::Allowance;
use super::connection::{Connection, Shared};
use super::identifier::{Identifiers, Origin, destination};
use super::keys::QuicKeys;
use super::mailbox::{Datagram, Mailboxes};
use super::process::QuicProcess;
use super::socket::{ReceiveBuffers, Socket};

/// Between two attempts on a socket that fails.
const PAUSE: Duration = Duration::from_millis(100);

/// The code of an end that is nobody's fault: H3_NO_ERROR (RFC 9114 section 8.1).
const NO_ERROR: u64 = 0x100;

/// Decides about new connections.
pub trait Admit: 'static {
    /// What a connection holds from its admission to its end.
    type Place;

    /// What becomes of a client that connects. `is_validated`: it has proved that it receives at this address.
    fn judge(&self, client: SocketAddr, is_validated: bool) -> Verdict<Self::Place>;

    /// Records a handshake that failed at its first packet.
    fn failed(&self, client: SocketAddr, error: &ConnectionError);

    /// Records that a datagram is passed to another worker, or to another process.
    fn forwarded(&self);

    /// Begins to serve a connection, whose handshake is under way.
    fn begin(&self, connection: Connection, place: Self::Place);
}

/// A decision about a client that connects.
pub enum Verdict<P> {
    /// The handshake begins.
    Accept(Arc<ServerConfig>, P),
    /// The client must first prove its address.
    Retry,
    /// The client is told that it is refused.
    Refuse,
    /// It gets no answer.
    Ignore,
}

/// One worker's socket of a listener.
pub struct Endpoint {
    core: Rc<Core>,
    mail: mpsc::Receiver<Datagram>,
}

pub(super) struct Core {
    /// The first one sends.
    sockets: Vec<Rc<Socket>>,
    proto: RefCell<quinn_proto::Endpoint>,
    connections: RefCell<HashMap<ConnectionHandle, Rc<Shared>>>,
    origin: Origin,
    keys: QuicKeys,
    mailboxes: Vec<mpsc::Sender<Datagram>>,
    /// The listener, as other processes know it.
    key: u64,
    /// Where packets are written before they are sent.
    outgoing: RefCell<Vec<u8>>,
    /// What it still does.
    stage: watch::Sender<Stage>,
    /// Notified when a connection has ended.
    ended: Notify,
}

/// What an endpoint still does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It accepts connections.
    Open,
    /// It serves those that it has.
    Closing,
    /// The same, after another process has taken over. As soon as that one reads the sockets, this one does not.
    HandedOver,
}

/// Makes an endpoint accept no more connections, and end with its last one.
pub struct Close(Weak<Core>);

impl Close {
    /// See [`Close`]. `is_handed_over`: another process has taken over.
    pub fn close(&self, is_handed_over: bool) {
        let wanted = if is_handed_over { Stage::HandedOver } else { Stage::Closing };
        let Some(core) = self.0.upgrade() else { return };
        core.stage.send_if_modified(|stage| {
            let is_open = *stage == Stage::Open;
            if is_open {
                *stage = wanted;
            }
            is_open
        });
    }

    /// Whether the endpoint has ended.
    pub fn has_ended(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Closes the connections that are left, as the process ends. Their clients would wait for a timeout otherwise: the
    /// kernel, which ends those of TCP, knows nothing of them.
    pub fn end(&self) {
        let Some(core) = self.0.upgrade() else { return };
        let mut outgoing = Vec::new();
        for shared in core.connections.borrow().values() {
            shared.end(NO_ERROR, |proto| {
                outgoing.clear();
                if let Some(transmit) = proto.poll_transmit(Instant::now(), 1, &mut outgoing) {
                    core.send(&transmit, &outgoing);
                }
            });
        }
    }
}

impl Endpoint {
    /// An endpoint on bound sockets of one address. `config` is needed to read the first packets of connections.
    ///
    /// # Errors
    /// A socket cannot be prepared, or there is none.
    pub fn new(
        sockets: Vec<OwnedFd>,
        origin: Origin,
        config: Arc<ServerConfig>,
        mailboxes: Mailboxes,
    ) -> io::Result<Self> {
        let keys = QuicProcess::this().keys();
        let sockets = sockets.into_iter().map(|socket| Socket::new(socket).map(Rc::new));
        let sockets: Vec<_> = sockets.collect::<io::Result<_>>()?;
        let first = sockets.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut endpoint = EndpointConfig::new(keys.resets());
        endpoint.cid_generator(move || Box::new(Identifiers { origin, keys: keys.clone() }));
        let can_discover = !first.may_fragment();
        let proto = quinn_proto::Endpoint::new(Arc::new(endpoint), Some(config), can_discover, None);
        let Mailboxes { key, all, own } = mailboxes;
        let core = Core {
            sockets,
            proto: RefCell::new(proto),
            connections: RefCell::default(),
            origin,
            keys: keys.clone(),
            mailboxes: all,
            key,
            outgoing: RefCell::default(),
            stage: watch::Sender::new(Stage::Open),
            ended: Notify::new(),
        };
        Ok(Self { core: Rc::new(core), mail: own })
    }

    /// Ends the endpoint from elsewhere.
    pub fn close(&self) -> Close {
        Close(Rc::downgrade(&self.core))
    }

    /// Receives until the endpoint was closed and its last connection has ended.
    pub async fn run<A: Admit>(self, admit: Rc<A>) {
        let Self { core, mut mail } = self;
        let mut readers = JoinSet::new();
        for socket in &core.sockets {
            readers.spawn_local(read(Rc::clone(&core), Rc::clone(socket), Rc::clone(&admit)));
        }
        let mut stage = core.stage.subscribe();
        let mut relayed = QuicProcess::this().relayed();
        QuicProcess::this().announce(core.key, true);
        while !core.is_done() {
            tokio::select! {
                Some(datagram) = mail.recv() => core.take(datagram, &*admit),
                () = core.ended.notified() => {}
                _ = stage.changed() => {}
                _ = relayed.changed() => {}
            }
        }
        QuicProcess::this().announce(core.key, false);
    }
}

/// Reads a socket, unless another process does.
async fn read<A: Admit>(core: Rc<Core>, socket: Rc<Socket>, admit: Rc<A>) {
    let mut room = ReceiveBuffers::new();
    let mut stage = core.stage.subscribe();
    let mut relayed = QuicProcess::this().relayed();
    loop {
        let is_relayed = *stage.borrow_and_update() == Stage::HandedOver
            && relayed.borrow_and_update().contains(&core.key);
        tokio::select! {
            biased;
            _ = stage.changed() => {}
            _ = relayed.changed() => {}
            received = socket.receive(&mut room, |datagram| core.take(datagram, &*admit)), if !is_relayed => {
                if let Err(error) = received {
                    tracing::error!(%error, "HTTP/3 cannot receive on a socket; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
                // Even if there is always something to receive, others have their turn.
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Core {
    fn is_done(&self) -> bool {
        *self.stage.borrow() != Stage::Open
            && self.connections.borrow().is_empty()
            && !QuicProcess::this().has_older()
    }

    /// Gives a datagram to whom it belongs.
    fn take<A: Admit>(self: &Rc<Self>, datagram: Datagram, admit: &A) {
        let destination = destination(&datagram.bytes, &self.keys);
        if let Some(origin) = destination
            && origin != self.origin
        {
            // Of a process that is gone: the client is told.
            if self.forward(origin, &datagram) {
                admit.forwarded();
                return;
            }
        }
        let Datagram { remote, local, ecn, bytes } = datagram;
        let size = bytes.len();
        let outgoing = &mut *self.outgoing.borrow_mut();
        outgoing.clear();
        let event = self.proto.borrow_mut().handle(Instant::now(), remote, local, ecn, bytes, outgoing);
        match event {
            None => {}
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let connection = self.connections.borrow().get(&handle).cloned();
                if let Some(connection) = connection {
                    connection.take(event, size, destination.is_some());
                }
            }
            Some(DatagramEvent::Response(transmit)) => self.send(&transmit, outgoing),
            // Of a connection that is gone, or of somebody who has learned the identifier in one. What arrived for it later
            // would count as a proof of its address.
            Some(DatagramEvent::NewConnection(incoming))
                if destination.is_some() && !incoming.remote_address_validated() =>
            {
                self.proto.borrow_mut().ignore(incoming);
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.decide(incoming, size, outgoing, admit),
        }
    }

    /// Gives a datagram to the worker, or the process, that has its connection. Returns false if there is none.
    fn forward(&self, origin: Origin, datagram: &Datagram) -> bool {
        if origin.generation != self.origin.generation {
            return QuicProcess::this().relay(self.key, origin, datagram);
        }
        let Some(mailbox) = self.mailboxes.get(usize::from(origin.worker)) else { return false };
        // A full mailbox loses it, as a full socket would.
        let _ = mailbox.try_send(datagram.clone());
        true
    }

    /// Sends an answer that belongs to no connection.
    fn send(&self, transmit: &Transmit, bytes: &[u8]) {
        if let Some(socket) = self.sockets.first() {
            socket.send_or_lose(transmit, bytes);
        }
    }

    /// Begins, refuses or ignores a connection, whose first datagram has `size` bytes.
    fn decide<A: Admit>(self: &Rc<Self>, incoming: Incoming, size: usize, outgoing: &mut Vec<u8>, admit: &A) {
        let (remote, is_validated) = (incoming.remote_address(), incoming.remote_address_validated());
        let client = SocketAddr::new(remote.ip().to_canonical(), remote.port());
        let verdict = match *self.stage.borrow() {
            Stage::Closing => Verdict::Refuse,
            // The client tries again, and reaches the other process.
            Stage::HandedOver => Verdict::Ignore,
            Stage::Open => admit.judge(client, is_validated),
        };
        outgoing.clear();
        let mut proto = self.proto.borrow_mut();
        let response = match verdict {
            Verdict::Ignore => {
                proto.ignore(incoming);
                None
            }
            Verdict::Refuse => Some(proto.refuse(incoming, outgoing)),
            Verdict::Retry => match proto.retry(incoming, outgoing) {
                Ok(transmit) => Some(transmit),
                // It has proved its address already, which was asked before.
                Err(error) => Some(proto.refuse(error.into_incoming(), outgoing)),
            },
            Verdict::Accept(config, place) => {
                match proto.accept(incoming, Instant::now(), outgoing, Some(config)) {
                    Ok((handle, connection)) => {
                        let shared =
                            Shared::new(self, handle, connection, Allowance::new(size, is_validated));
                        self.connections.borrow_mut().insert(handle, Rc::clone(&shared));
                        drop(proto);
                        return admit.begin(Connection::new(shared), place);
                    }
                    Err(error) => {
                        admit.failed(client, &error.cause);
                        error.response
                    }
                }
            }
        };
        if let Some(transmit) = response {
            self.send(&transmit, outgoing);
        }
    }

    /// Exchanges what a connection and the endpoint have to tell each other.
    pub(super) fn settle(&self, handle: ConnectionHandle, connection: &mut quinn_proto::Connection) {
        while let Some(event) = connection.poll_endpoint_events() {
            let is_last = event.is_drained();
            let answer = self.proto.borrow_mut().handle_event(handle, event);
            answer.into_iter().for_each(|answer| connection.handle_event(answer));
            if is_last {
                self.connections.borrow_mut().remove(&handle);
                self.ended.notify_one();
            }
        }
    }

    /// Sends what a connection has to send and its allowance admits, with one call: other connections follow. Returns
    /// whether that was all.
    pub(super) fn transmit(
        &self,
        connection: &mut quinn_proto::Connection,
        allowance: &Allowance,
        now: Instant,
        waker: &Waker,
    ) -> bool {
        let Some(socket) = self.sockets.first() else { return true };
        if socket.is_blocked(waker) {
            return false;
        }
        let outgoing = &mut *self.outgoing.borrow_mut();
        outgoing.clear();
        // The client's next datagram adds to the allowance, and wakes the driver.
        let Some(segments) = allowance.segments(connection, socket.segments_max()) else { return true };
        let Some(transmit) = connection.poll_transmit(now, segments, outgoing) else { return true };
        let size = transmit.size;
        socket.send(transmit, &outgoing[..size]);
        waker.wake_by_ref();
        false
    }
}
