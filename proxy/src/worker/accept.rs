//! Accepts connections for one worker until it drains.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{MsgFlags, send};
use socket2::{SockAddr, SockRef};
use std::os::fd::AsRawFd;

use super::Worker;
use crate::config::Protocol;
use crate::connection::Connection;
use crate::error::Reason;
use crate::listener::{Admission, ListenerState};
use crate::metrics::Event;
use crate::ring;
use crate::stream::Stream;

/// How long accepting rests when descriptors or memory have run out; connections wait in the kernel.
const PAUSE: Duration = Duration::from_millis(100);
/// What an HTTP connection beyond the limit is told.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\
    Connection: close\r\n\r\n";

/// Accepts from `socket` until the worker drains, then takes what is waiting and closes it.
pub(super) async fn accept_loop(worker: Rc<Worker>, state: Arc<ListenerState>, socket: ring::Fd) {
    let mut starved = false;
    while !worker.is_draining() {
        match ring::accept(&socket).await {
            Ok((accepted, peer)) => {
                if std::mem::take(&mut starved) {
                    tracing::info!(listener = state.config.name, "accepting again");
                }
                admit(&worker, &state, accepted, &peer);
            }
            Err(error) => refused(&error, &state, &mut starved).await,
        }
    }
    accept_waiting(&worker, &state, &socket);
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

/// Connections that the kernel has completed would be reset with the socket.
fn accept_waiting(worker: &Rc<Worker>, state: &Arc<ListenerState>, socket: &ring::Fd) {
    let listening = SockRef::from(&**socket);
    if listening.set_nonblocking(true).is_err() {
        return;
    }
    while let Ok((accepted, peer)) = listening.accept() {
        if accepted.set_nonblocking(false).is_ok() {
            admit(worker, state, accepted.into(), &peer);
        }
    }
}

fn admit(worker: &Rc<Worker>, state: &Arc<ListenerState>, accepted: OwnedFd, peer: &SockAddr) {
    let Some(admission) = state.admit() else {
        worker.metrics().count(Event::DownstreamRejected);
        worker.metrics().error(Reason::TooManyConnections);
        // Whoever speaks another protocol would take it for data.
        if state.config.protocol == Protocol::Http {
            // Best effort: the socket buffer of a new connection is empty.
            let _ = send(accepted.as_raw_fd(), TOO_MANY, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        }
        return;
    };
    // A unix socket's peer has no address; it is on this host.
    let client = peer.as_socket().map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip());
    let connection =
        Connection::new(Rc::clone(worker), Arc::clone(state), Stream::from_socket(accepted), client);
    tokio_uring::spawn(serve(connection, admission));
}

async fn serve(connection: Connection, _admission: Admission) {
    connection.serve().await;
}
