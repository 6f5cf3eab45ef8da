//! Accepts connections for one worker until it drains.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::Protocol;
use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_net::listener::{ListenerState, Listening};
use sluice_net::stream::Stream;
use sluice_ring as ring;
use socket2::SockAddr;
use tokio::sync::Notify;

use super::share::{Accepted, OpenCount, Share};
use crate::connection::Connection;
use crate::worker::Worker;

/// How long accepting rests when descriptors or memory have run out; connections wait in the kernel.
const PAUSE: Duration = Duration::from_millis(100);
/// How often, and after how long a time each, a hidden socket is looked at before it is closed: 300 ms in all, in which
/// handshakes that have begun end on most networks.
const LAST_LOOKS: u32 = 15;
const LAST_LOOK_AFTER: Duration = Duration::from_millis(20);
/// Connections beyond the limit that a worker tells so at a time; the rest are closed without a word.
const TURNED_AWAY_MAX: usize = 128;

/// Connections that are accepted in one pass of the ring at most.
const BURST_MAX: usize = 32;

/// How long nothing has to be refused before accepting counts as possible again.
const CALM: Duration = Duration::from_secs(1);

/// Who accepts.
#[derive(Clone)]
pub(super) struct AcceptContext {
    pub(super) worker: Rc<Worker>,
    pub(super) share: Rc<Share>,
}

/// A listening socket that one worker accepts from.
#[derive(Clone)]
pub(super) struct Entrance {
    pub(super) listening: Arc<Listening>,
    pub(super) socket: ring::Fd,
    /// Has the loop look whether it is to go on.
    pub(super) interrupt: Rc<Notify>,
}

/// Accepts until the worker drains or the listener is closed, then takes what is waiting.
pub(super) async fn accept_loop(door: AcceptContext, entrance: Entrance) {
    let worker = &door.worker;
    let listening = &entrance.listening;
    let mut shortage = Shortage { listening, refused_at: None };
    let mut state = listening.current();
    while !worker.is_draining() && !state.is_closed() {
        match entrance.accept(&mut shortage).await {
            Ok((accepted, peer)) => {
                state = listening.current();
                door.admit(&state, accepted, &peer);
                door.admit_waiting(&entrance).await;
            }
            Err(error) => shortage.refused(&error).await,
        }
    }
    // Connections that the kernel has completed would be reset with the socket. A process that takes over gets them, but
    // for those that may have woken a wait here just before it was called off: as many as a burst has waits.
    let is_hidden = listening.is_hidden();
    let mut looks = if is_hidden { LAST_LOOKS } else { 0 };
    let mut left = if worker.shares_sockets.get() && !is_hidden { BURST_MAX } else { usize::MAX };
    loop {
        match ring::accept_waiting(&entrance.socket).await {
            Ok(Some((accepted, peer))) => {
                door.admit(&state, accepted, &peer);
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
    /// The next connection; an error as well when it is interrupted.
    async fn accept(&self, shortage: &mut Shortage<'_>) -> io::Result<(OwnedFd, SockAddr)> {
        let mut accepting = ring::accept(&self.socket);
        loop {
            tokio::select! {
                biased;
                accepted = &mut accepting => return accepted,
                () = self.interrupt.notified() => {
                    accepting.cancel();
                    return accepting.await;
                }
                () = shortage.calm() => shortage.over(),
            }
        }
    }
}

/// A lack of descriptors or memory, which is said once however long it lasts.
struct Shortage<'a> {
    listening: &'a Listening,
    /// When this worker was refused last, while it has not been calm since.
    refused_at: Option<Instant>,
}

impl Shortage<'_> {
    async fn refused(&mut self, error: &io::Error) {
        // The connection died in the queue, or the wait was called off.
        if let Some(libc::ECONNABORTED | libc::EINTR | libc::ECANCELED | libc::EPROTO) = error.raw_os_error()
        {
            return;
        }
        if self.listening.starve(true) {
            tracing::warn!(listener = self.listening.current().config.name, %error, "cannot accept; trying again");
        }
        tokio::time::sleep(PAUSE).await;
        self.refused_at = Some(Instant::now());
    }

    /// Resolves when a shortage is over: out of descriptors, the kernel refuses at once, whether or not somebody connects.
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
    /// Takes what waits behind a connection that was just accepted: one a pass of the ring would have newcomers wait for
    /// the work of everybody else in between. The passes take more and more, for mostly none waits.
    async fn admit_waiting(&self, entrance: &Entrance) {
        let mut most = 1;
        loop {
            let burst = ring::accept_burst(&entrance.socket, most).await;
            let is_full = burst.len() == most;
            let state = entrance.listening.current();
            for (accepted, peer) in burst {
                self.admit(&state, accepted, &peer);
            }
            if !is_full || self.worker.is_draining() || state.is_closed() {
                return;
            }
            most = (most * 2).min(BURST_MAX);
        }
    }

    fn admit(&self, state: &Arc<ListenerState>, socket: OwnedFd, peer: &SockAddr) {
        // A unix socket's peer has no address; it is on this host.
        let client = peer.as_socket().map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip());
        let state = Arc::clone(state);
        let Some(admission) = state.admit() else { return self.refuse(state, socket, client) };
        let place = match self.worker.is_draining() {
            true => self.share.keep(admission),
            false => self.share.choose(admission),
        };
        match self.share.hand(Accepted { state, socket, client, place }) {
            Some(accepted) => self.begin(accepted),
            None => self.worker.metrics().count(Event::DownstreamHanded),
        }
    }

    /// Serves a connection here.
    pub(super) fn begin(&self, accepted: Accepted) {
        let Accepted { state, socket, client, place } = accepted;
        tokio::task::spawn_local(serve(self.connection(state, socket, client), place));
    }

    fn connection(&self, state: Arc<ListenerState>, socket: OwnedFd, client: IpAddr) -> Connection {
        Connection::new(Rc::clone(&self.worker), state, Stream::from_socket(socket), client)
    }

    fn refuse(&self, state: Arc<ListenerState>, socket: OwnedFd, client: IpAddr) {
        self.worker.metrics().count(Event::DownstreamRejected);
        self.worker.metrics().error(Reason::TooManyConnections);
        let place = Rc::clone(self.worker.turned_away());
        // Whoever speaks another protocol, or TLS, would take an answer for data.
        let speaks = state.config.protocol == Protocol::Http && state.tls().is_none();
        if speaks && Rc::strong_count(&place) <= TURNED_AWAY_MAX {
            tokio::task::spawn_local(turn_away(self.connection(state, socket, client), place));
        }
    }
}

async fn serve(connection: Connection, _place: OpenCount) {
    connection.serve().await;
}

async fn turn_away(connection: Connection, _place: Rc<()>) {
    connection.turn_away().await;
}
