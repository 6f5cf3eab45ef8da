//! HTTP/3 on a listener: which clients get a connection, and its life from there.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_core::tls::{Handshake, HandshakeFailure, Handshaking};
use sluice_net::listener::{DatagramSockets, ListenerState, Listening};
use sluice_net::quic::{
    Admit, Close, Connection, ConnectionError, Endpoint, QlogRecorder, ServerConfig, Verdict, recorded,
    server_config,
};

use super::accept::AcceptContext;
use super::share::OpenCount;
use crate::connection::{QuicConnection, failure_of};

/// A worker's part of HTTP/3 on a listener.
struct Gate {
    door: AcceptContext,
    /// Its sockets are closed as soon as nobody accepts from it.
    listening: Weak<Listening>,
    /// What the state of the listener means for QUIC; made again when the state changes.
    made: RefCell<Option<(Arc<ListenerState>, Arc<ServerConfig>)>>,
}

/// What a connection holds.
pub(super) struct QuicPlace {
    state: Arc<ListenerState>,
    _open: OpenCount,
    handshaking: Handshaking,
}

/// Serves HTTP/3 on a socket, in a task. Returns how that is ended.
///
/// # Errors
/// The socket cannot be prepared, or the listener has nothing to begin with.
pub(super) fn begin(
    door: &AcceptContext,
    listening: &Arc<Listening>,
    datagrams: DatagramSockets,
) -> io::Result<Close> {
    let gate = Gate { door: door.clone(), listening: Arc::downgrade(listening), made: RefCell::default() };
    let config = gate.config(&listening.current()).ok_or(io::ErrorKind::InvalidInput)?;
    let DatagramSockets { sockets, origin, mailboxes } = datagrams;
    let endpoint = Endpoint::new(sockets, origin, config, mailboxes)?;
    let close = endpoint.close();
    tokio::task::spawn_local(endpoint.run(Rc::new(gate)));
    Ok(close)
}

impl Gate {
    /// The parameters for connections that begin now.
    fn config(&self, state: &Arc<ListenerState>) -> Option<Arc<ServerConfig>> {
        let mut made = self.made.borrow_mut();
        if let Some((_, config)) = made.as_ref().filter(|(known, _)| Arc::ptr_eq(known, state)) {
            return Some(Arc::clone(config));
        }
        let tls = state.tls()?.quic_config()?;
        let config = Arc::new(server_config(tls, &state.config.limits)?);
        *made = Some((Arc::clone(state), Arc::clone(&config)));
        Some(config)
    }

    /// The parameters for a connection that is recorded, if it is one.
    fn sample(&self, state: &Arc<ListenerState>, client: SocketAddr) -> Option<Arc<ServerConfig>> {
        let snapshot = self.door.worker.snapshot();
        let qlog = snapshot.config.qlog.as_ref()?;
        let title = format!("{} from {client}", state.config.name);
        let random = self.door.worker.with_random(|random| random.f64());
        let stream = QlogRecorder::with(qlog).ok()?.record(random, title)?;
        let has_early_data = state.config.http3.is_some_and(|http3| http3.has_early_data());
        Some(Arc::new(recorded(&*self.config(state)?, (&state.config.limits, has_early_data), stream)))
    }

    fn is_banned(&self, client: SocketAddr) -> bool {
        let snapshot = self.door.worker.snapshot();
        let is_banned =
            snapshot.bans.holds(client.ip(), clock::now_ms) && !snapshot.trusts(&client.ip().to_canonical());
        if is_banned {
            snapshot.bans.count_turned_away();
        }
        is_banned
    }

    fn admit(&self, state: &Arc<ListenerState>, client: SocketAddr) -> Option<QuicPlace> {
        let metrics = self.door.worker.metrics();
        let too_many = || {
            metrics.count(Event::DownstreamRejected);
            metrics.error(Reason::TooManyConnections);
        };
        let admission = state.admit().or_else(|| {
            too_many();
            None
        })?;
        let is_trusted = self.door.worker.snapshot().trusts(&client.ip().to_canonical());
        let of_client = if is_trusted { Ok(None) } else { state.enter(client.ip().to_canonical()) };
        let of_client = of_client.map_err(|_| too_many()).ok()?;
        let handshaking = state.tls()?.begin_handshake().or_else(|| {
            metrics.handshake(Handshake::Failed(HandshakeFailure::TooMany));
            None
        })?;
        let open = self.door.share.keep(admission.with_client(of_client));
        Some(QuicPlace { state: Arc::clone(state), _open: open, handshaking })
    }
}

impl Admit for Gate {
    type Place = QuicPlace;

    fn judge(&self, client: SocketAddr, is_validated: bool) -> Verdict<QuicPlace> {
        let worker = &self.door.worker;
        if self.is_banned(client) {
            return Verdict::Ignore;
        }
        let refuse = || {
            worker.metrics().count(Event::Http3Refused);
            Verdict::Refuse
        };
        let Some(state) = self.listening.upgrade().map(|listening| listening.current()) else {
            return refuse();
        };
        if worker.is_draining() || state.is_closed() || state.config.http3.is_none() {
            return refuse();
        }
        let (Some(config), Some(tls)) = (self.config(&state), state.tls()) else { return refuse() };
        // A forged address must not take the places of the client that has it.
        let counts_clients = state.config.limits.connections_per_client_max > 0;
        let has_many = tls.handshakes() >= state.config.limits.http3.validate_above;
        if !is_validated && (counts_clients || has_many) {
            worker.metrics().count(Event::Http3Retried);
            return Verdict::Retry;
        }
        match self.admit(&state, client) {
            Some(place) => Verdict::Accept(self.sample(&state, client).unwrap_or(config), place),
            None => refuse(),
        }
    }

    fn failed(&self, client: SocketAddr, error: &ConnectionError) {
        let failure = failure_of(error);
        self.door.worker.metrics().handshake(Handshake::Failed(failure));
        tracing::debug!(client = %client.ip(), reason = failure.word(), "QUIC handshake failed");
    }

    fn forwarded(&self) {
        self.door.worker.metrics().count(Event::Http3Forwarded);
    }

    fn begin(&self, connection: Connection, place: QuicPlace) {
        let QuicPlace { state, _open, handshaking } = place;
        let (worker, runners) = (Rc::clone(&self.door.worker), Rc::clone(&self.door.runners));
        tokio::task::spawn_local(async move {
            let mut connection = QuicConnection::new(worker, runners, state, connection, handshaking);
            if connection.shake_hands().await {
                connection.serve().await;
            }
            drop(_open);
        });
    }
}
