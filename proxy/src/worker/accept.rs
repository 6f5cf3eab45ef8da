//! Accepts connections for one worker until it drains.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use socket2::SockAddr;

use super::Worker;
use crate::config::Protocol;
use crate::connection::Connection;
use crate::error::Reason;
use crate::listener::{Admission, ListenerState, Listening};
use crate::metrics::Event;
use crate::ring;
use crate::stream::Stream;

/// How long accepting rests when descriptors or memory have run out; connections wait in the kernel.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections beyond the limit that a worker tells so at a time; the rest are closed without a word.
const TURNED_AWAY_MAX: usize = 128;

/// Accepts from `socket` until the worker drains or the listener is closed, then takes what is waiting.
pub(super) async fn accept_loop(worker: Rc<Worker>, listening: Arc<Listening>, socket: ring::Fd) {
    let mut starved = false;
    let mut state = listening.current();
    while !worker.is_draining() && !state.is_closed() {
        match ring::accept(&socket).await {
            Ok((accepted, peer)) => {
                state = listening.current();
                if std::mem::take(&mut starved) {
                    tracing::info!(listener = state.config.name, "accepting again");
                }
                admit(&worker, &state, accepted, &peer);
            }
            Err(error) => refused(&error, &state, &mut starved).await,
        }
    }
    // Connections that the kernel has completed would be reset with the socket. A process that takes over gets them, but
    // for the one that may have woken the wait here just before it was called off.
    loop {
        match ring::accept_waiting(&socket).await {
            Ok(Some((accepted, peer))) => {
                admit(&worker, &state, accepted, &peer);
                if worker.shares_sockets.get() {
                    return;
                }
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

fn admit(worker: &Rc<Worker>, state: &Arc<ListenerState>, accepted: OwnedFd, peer: &SockAddr) {
    // A unix socket's peer has no address; it is on this host.
    let client = peer.as_socket().map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip());
    let connection =
        || Connection::new(Rc::clone(worker), Arc::clone(state), Stream::from_socket(accepted), client);
    if let Some(admission) = state.admit() {
        tokio_uring::spawn(serve(connection(), admission));
        return;
    }
    worker.metrics().count(Event::DownstreamRejected);
    worker.metrics().error(Reason::TooManyConnections);
    let place = Rc::clone(worker.turned_away());
    // Whoever speaks another protocol, or TLS, would take an answer for data.
    let speaks = state.config.protocol == Protocol::Http && state.tls().is_none();
    if speaks && Rc::strong_count(&place) <= TURNED_AWAY_MAX {
        tokio_uring::spawn(turn_away(connection(), place));
    }
}

async fn serve(connection: Connection, _admission: Admission) {
    connection.serve().await;
}

async fn turn_away(connection: Connection, _place: Rc<()>) {
    connection.turn_away().await;
}
