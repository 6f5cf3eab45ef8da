//! Accepts connections for one worker until it drains.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::{Protocol, ProxyProtocol};
use sluice_core::clock;
use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_net::listener::{ClientPlace, ListenerState, Listening, TooManyConnections};
use sluice_net::stream::Stream;
use sluice_ring as ring;
use socket2::SockAddr;
use tokio::sync::Notify;

use super::share::{Accepted, OpenCount, Share};
use crate::connection::{Connection, MovedConnection, Past, Runners};
use crate::worker::Worker;

/// How long accepting pauses when descriptors or memory have run out; connections wait in the kernel.
const PAUSE: Duration = Duration::from_millis(100);
/// How often, and at which interval, a hidden socket is checked before it is closed: 300 ms in total, in which started
/// handshakes complete on most networks.
const LAST_LOOKS: u32 = 15;
const LAST_LOOK_AFTER: Duration = Duration::from_millis(20);
/// Connections beyond the limit that get a response from a worker at the same time; the rest are closed without one.
const TURNED_AWAY_MAX: usize = 128;

/// The maximum number of connections accepted in one pass of the ring.
const BURST_MAX: usize = 32;

/// How long nothing must have failed before accepting counts as possible again.
const CALM: Duration = Duration::from_secs(1);

/// What accepting needs.
#[derive(Clone)]
pub(super) struct AcceptContext {
    pub(super) worker: Rc<Worker>,
    pub(super) runners: Rc<Runners>,
    pub(super) share: Rc<Share>,
}

/// A listening socket that one worker accepts from.
#[derive(Clone)]
pub(super) struct Entrance {
    pub(super) listening: Arc<Listening>,
    pub(super) socket: ring::Fd,
    /// Makes the loop check whether it is to continue.
    pub(super) interrupt: Rc<Notify>,
}

/// Accepts until the worker drains or the listener is closed, then takes the waiting connections.
pub(super) async fn accept_loop(door: AcceptContext, entrance: Entrance) {
    let worker = &door.worker;
    let listening = &entrance.listening;
    let mut shortage = Shortage { listening, refused_at: None };
    let mut state = listening.current();
    while !worker.is_draining() && !state.is_closed() {
        match entrance.accept(&mut shortage).await {
            Ok((accepted, peer)) => {
                state = listening.current();
                door.admit(&entrance, &state, accepted, &peer);
                door.admit_waiting(&entrance).await;
            }
            Err(error) => shortage.refused(&error).await,
        }
    }
    // Connections that the kernel has completed would be reset with the socket. If another process takes over, it gets
    // them, except for those that may have woken a wait here just before it was cancelled: as many as a burst has
    // waits.
    let is_hidden = listening.is_hidden();
    let mut looks = if is_hidden { LAST_LOOKS } else { 0 };
    let mut left = if worker.shares_sockets.get() && !is_hidden { BURST_MAX } else { usize::MAX };
    loop {
        match ring::accept_waiting(&entrance.socket).await {
            Ok(Some((accepted, peer))) => {
                door.admit(&entrance, &state, accepted, &peer);
                left -= 1;
                if left == 0 {
                    return;
                }
            }
            Ok(None) if looks > 0 => {
                looks -= 1;
                tokio::time::sleep(LAST_LOOK_AFTER).await;
            }
            Ok(None) => return,
            Err(error) => shortage.refused(&error).await,
        }
    }
}

impl Entrance {
    /// The next connection; an error when it is interrupted.
    async fn accept(&self, shortage: &mut Shortage<'_>) -> io::Result<(OwnedFd, SockAddr)> {
        let mut accepting = ring::accept(&self.socket);
        loop {
            tokio::select! {
                biased;
                accepted = &mut accepting => return accepted,
                () = self.interrupt.notified() => {
                    return accepting.stop().await;
                }
                () = shortage.calm() => shortage.over(),
            }
        }
    }
}

/// A shortage of descriptors or memory, logged once per shortage.
struct Shortage<'a> {
    listening: &'a Listening,
    /// When accepting last failed on this worker, until it has been calm.
    refused_at: Option<Instant>,
}

impl Shortage<'_> {
    async fn refused(&mut self, error: &io::Error) {
        // The connection died in the queue, or the wait was cancelled.
        if let Some(libc::ECONNABORTED | libc::EINTR | libc::ECANCELED | libc::EPROTO) = error.raw_os_error()
        {
            return;
        }
        if self.listening.starve(true) {
            tracing::warn!(listener = self.listening.current().config.name, %error, "cannot accept; retrying");
        }
        tokio::time::sleep(PAUSE).await;
        self.refused_at = Some(Instant::now());
    }

    /// Resolves when a shortage is over. Without descriptors, the kernel fails at once, whether or not a client
    /// connects.
    async fn calm(&self) {
        match self.refused_at {
            Some(at) => tokio::time::sleep_until((at + CALM).into()).await,
            None => std::future::pending().await,
        }
    }

    fn over(&mut self) {
        self.refused_at = None;
        if self.listening.starve(false) {
            tracing::info!(listener = self.listening.current().config.name, "accepting again");
        }
    }
}

impl AcceptContext {
    /// Takes the connections that wait after an accepted one. With one per pass of the ring, new clients would wait for
    /// the work of all others in between. The batch size grows with each pass, because usually none is waiting.
    async fn admit_waiting(&self, entrance: &Entrance) {
        let mut most = 1;
        loop {
            let burst = ring::accept_burst(&entrance.socket, most).await;
            let is_full = burst.len() == most;
            let state = entrance.listening.current();
            for (accepted, peer) in burst {
                self.admit(entrance, &state, accepted, &peer);
            }
            if !is_full || self.worker.is_draining() || state.is_closed() {
                return;
            }
            most = (most * 2).min(BURST_MAX);
        }
    }

    fn admit(&self, entrance: &Entrance, state: &Arc<ListenerState>, socket: OwnedFd, peer: &SockAddr) {
        // A unix socket's peer has no address; it is on this host.
        let client = peer.as_socket().unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 0)));
        let (state, is_chosen) = (Arc::clone(state), entrance.listening.is_chosen());
        if is_chosen {
            self.share.take();
        }
        if self.is_banned(&state, client.ip()) {
            if peer.as_socket().is_some() {
                self.keep_out(entrance, client.ip());
            }
            return;
        }
        let Some(admission) = state.admit() else { return self.refuse(state, socket, client) };
        let Ok(of_client) = self.enter(&state, peer) else { return self.refuse(state, socket, client) };
        let admission = admission.with_client(of_client);
        let place = match self.worker.is_draining() {
            true => self.share.keep(admission),
            false => self.share.choose(admission, is_chosen),
        };
        match self.share.hand(Accepted { state, socket, client, place, past: Past::default() }) {
            Some(accepted) => self.begin(accepted),
            None => self.worker.metrics().count(Event::DownstreamHanded),
        }
    }

    /// A place among the connections of the client. A trusted proxy has many clients, and behind others the client is
    /// known only later; a unix socket's peer is on this host.
    fn enter(
        &self,
        state: &ListenerState,
        peer: &SockAddr,
    ) -> Result<Option<ClientPlace>, TooManyConnections> {
        let is_limited = state.config.limits.connections_per_client_max > 0
            && state.config.proxy_protocol == ProxyProtocol::Off;
        match peer.as_socket().filter(|_| is_limited).map(|address| address.ip().to_canonical()) {
            Some(client) if !self.worker.snapshot().trusts(&client) => state.enter(client),
            _ => Ok(None),
        }
    }

    /// Whether a connection is closed before anything is read. Behind a proxy, the client is known only later.
    fn is_banned(&self, state: &ListenerState, client: IpAddr) -> bool {
        let snapshot = self.worker.snapshot();
        let is_banned = snapshot.bans.holds(client, clock::now_ms)
            && state.config.proxy_protocol == ProxyProtocol::Off
            && !snapshot.trusts(&client.to_canonical());
        if is_banned {
            snapshot.bans.count_turned_away();
        }
        is_banned
    }

    /// From now on, the kernel turns this banned client away at this socket, if it can.
    fn keep_out(&self, entrance: &Entrance, client: IpAddr) {
        let listener = entrance.socket.as_fd();
        self.worker.snapshot().keep_out(client, listener);
        // A reload may have put the listener behind a proxy in between, whose address says nothing about the client.
        if entrance.listening.current().config.proxy_protocol != ProxyProtocol::Off {
            Listening::let_everybody_in(listener);
        }
    }

    /// Serves a connection on this worker.
    pub(super) fn begin(&self, accepted: Accepted) {
        let Accepted { state, socket, client, place, past } = accepted;
        let connection = if past.is_empty() {
            self.connection(state, socket, client)
        } else {
            let (worker, runners) = (Rc::clone(&self.worker), Rc::clone(&self.runners));
            Connection::resume(worker, runners, MovedConnection { socket, listener: state, client, past })
        };
        let (door, connection) = (self.clone(), Box::new(connection));
        // Not a function: that would keep two places for everything it is given.
        tokio::task::spawn_local(async move {
            if let Some(moved) = connection.serve().await {
                door.pass_on(*moved, place);
            }
        });
    }

    /// Gives a connection that has left this worker to the one that has room.
    fn pass_on(&self, moved: MovedConnection, mut place: OpenCount) {
        self.share.choose_again(&mut place);
        let MovedConnection { socket, listener: state, client, past } = moved;
        if let Some(stays) = self.share.hand(Accepted { state, socket, client, place, past }) {
            // Until the next tick, which looks at all workers again.
            self.worker.shed(false);
            self.begin(stays);
        }
    }

    /// Looks at the connections of all workers: who rests, and whose connections are to move.
    pub(super) fn level(&self) {
        self.share.gather(self.worker.gathers());
        self.worker.rest(self.share.rests());
        self.worker.shed(self.share.is_uneven());
    }

    fn connection(&self, state: Arc<ListenerState>, socket: OwnedFd, client: SocketAddr) -> Connection {
        let (worker, runners) = (Rc::clone(&self.worker), Rc::clone(&self.runners));
        Connection::new(worker, runners, state, Stream::from_socket(socket), client)
    }

    fn refuse(&self, state: Arc<ListenerState>, socket: OwnedFd, client: SocketAddr) {
        self.worker.metrics().count(Event::DownstreamRejected);
        self.worker.metrics().error(Reason::TooManyConnections);
        let place = Rc::clone(self.worker.turned_away());
        // A client with another protocol, or TLS, would take a response for data.
        let speaks = state.config.protocol == Protocol::Http && state.tls().is_none();
        if speaks && Rc::strong_count(&place) <= TURNED_AWAY_MAX {
            tokio::task::spawn_local(turn_away(self.connection(state, socket, client), place));
        }
    }
}

async fn turn_away(connection: Connection, _place: Rc<()>) {
    connection.turn_away().await;
}
