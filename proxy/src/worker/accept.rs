//! Accepts connections for one worker until it drains.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockAddr;

use super::Worker;
use super::share::{Accepted, Place, Share};
use crate::config::Protocol;
use crate::connection::Connection;
use crate::error::Reason;
use crate::listener::{ListenerState, Listening};
use crate::metrics::Event;
use crate::ring;
use crate::stream::Stream;

/// How long accepting rests when descriptors or memory have run out; connections wait in the kernel.
const PAUSE: Duration = Duration::from_millis(100);
/// How often, and after how long a time each, a hidden socket is looked at before it is closed: 300 ms in all, in which
/// handshakes that have begun end on most networks.
const LAST_LOOKS: u32 = 15;
const LAST_LOOK_AFTER: Duration = Duration::from_millis(20);
/// Connections beyond the limit that a worker tells so at a time; the rest are closed without a word.
const TURNED_AWAY_MAX: usize = 128;

/// Who accepts.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) worker: Rc<Worker>,
    pub(super) share: Rc<Share>,
}

/// Accepts from `socket` until the worker drains or the listener is closed, then takes what is waiting.
pub(super) async fn accept_loop(door: Door, listening: Arc<Listening>, socket: ring::Fd) {
    let worker = &door.worker;
    let mut starved = false;
    let mut state = listening.current();
    while !worker.is_draining() && !state.is_closed() {
        match ring::accept(&socket).await {
            Ok((accepted, peer)) => {
                state = listening.current();
                if std::mem::take(&mut starved) {
                    tracing::info!(listener = state.config.name, "accepting again");
                }
                door.admit(&state, accepted, &peer);
            }
            Err(error) => refused(&error, &state, &mut starved).await,
        }
    }
    // Connections that the kernel has completed would be reset with the socket. A process that takes over gets them, but
    // for the one that may have woken the wait here just before it was called off.
    let is_hidden = listening.is_hidden();
    let mut looks = if is_hidden { LAST_LOOKS } else { 0 };
    loop {
        match ring::accept_waiting(&socket).await {
            Ok(Some((accepted, peer))) => {
                door.admit(&state, accepted, &peer);
                if worker.shares_sockets.get() && !is_hidden {
                    return;
                }
            }
            Ok(None) if looks > 0 => {
                looks -= 1;
                tokio::time::sleep(LAST_LOOK_AFTER).await;
            }
            Ok(None) => return,
            Err(error) => refused(&error, &state, &mut starved).await,
        }
    }
}

async fn refused(error: &io::Error, state: &ListenerState, starved: &mut bool) {
    match error.raw_os_error() {
        // The connection died in the queue, or the drain called the wait off.
        Some(libc::ECONNABORTED | libc::EINTR | libc::ECANCELED | libc::EPROTO) => {}
        _ => {
            if !std::mem::replace(starved, true) {
                tracing::warn!(listener = state.config.name, %error, "cannot accept; trying again");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Door {
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

async fn serve(connection: Connection, _place: Place) {
    connection.serve().await;
}

async fn turn_away(connection: Connection, _place: Rc<()>) {
    connection.turn_away().await;
}
