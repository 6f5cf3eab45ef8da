//! The life of one downstream connection: read a head, run its exchange, repeat. Read this file first.

mod account;
mod affinity;
mod answer;
mod auth;
mod cached;
mod close;
mod cluster;
mod cors;
mod file_body;
mod files;
mod forward;
mod head;
mod held;
mod hints;
mod http2;
mod http3;
mod limits;
mod moved;
mod passthrough;
mod request;
mod runner;
mod secure;
mod service;
mod stored;
mod tcp;
mod token;
mod trace;
mod variables;
#[cfg(test)]
mod tests;

pub(crate) use http3::{QuicConnection, failure_of};
pub(crate) use moved::{MovedConnection, Past};
pub(crate) use runner::Runners;

use std::fmt::Write as _;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use head::Arrival;
use secure::TlsFacts;
use sluice_config::{Limits, Protocol};
use sluice_core::metrics::Counted;
use sluice_core::metrics::Event;
use sluice_core::service::entry::ServiceEntry;
use sluice_core::tls::ClientIdentity;
use sluice_http::{HeadScanner, RequestHead};
use sluice_net::buffers::IDLE_BYTES;
use sluice_net::deadline::Deadline;
use sluice_net::listener::{ClientPlace, ListenerState};
use sluice_net::stream::{self, Reader, Stream, Writer};

use crate::direct;
use crate::worker::{Call, Phase, Wait, Worker};

/// One downstream connection.
pub(crate) struct Connection {
    worker: Rc<Worker>,
    runners: Rc<Runners>,
    listener: Arc<ListenerState>,
    io: Io,
    peer: Peer,
    session: RequestState,
    /// `None` for a stream of another connection, through which it is found.
    registration: Option<Registration>,
    /// Its place among those of a client that a PROXY protocol header names. Boxed, because few have one.
    client_place: Option<Box<ClientPlace>>,
}

/// Its bytes, and their deadlines.
struct Io {
    reader: Reader,
    writer: Writer,
    deadline: Deadline,
}

/// The other end.
struct Peer {
    /// The address of the socket, or the one in a PROXY protocol header.
    address: IpAddr,
    /// Its port; 0 for a unix socket.
    port: u16,
    /// The address as text, for X-Forwarded-For.
    text: Rc<str>,
    /// Its identity from its certificate, if one is requested.
    identity: Option<Rc<ClientIdentity>>,
    /// What its TLS handshake settled, if there was one.
    tls: Option<Rc<TlsFacts>>,
    /// Whether direct return can send responses to it.
    direct: direct::Client,
    /// Its QUIC connection, if that has begun with early data.
    early: Option<sluice_net::quic::Connection>,
}

/// Its requests, one after the other.
struct RequestState {
    head: RequestHead,
    scanner: HeadScanner,
    /// The number of exchanges that have started.
    exchanges: u64,
    /// The service of the exchange under way.
    service: Option<Arc<ServiceEntry>>,
    /// Whether it may move to another worker before the next exchange.
    may_leave: bool,
    /// Whether its wait for the next message was ended so that it can move.
    is_called_away: bool,
}

/// An entry among the open connections of the worker; dropping it removes the entry.
struct Registration {
    worker: Rc<Worker>,
    /// Where the worker finds it for a drain.
    slot: usize,
    /// `None` once another worker counts the end.
    open: Option<Counted>,
}

impl Registration {
    fn take(worker: &Rc<Worker>, wait: Wait, listener: &Arc<ListenerState>) -> Self {
        let open = worker.count_while(Event::DownstreamAccepted, Event::DownstreamClosed);
        Self::of(worker, wait, listener, open)
    }

    /// For a connection that is counted already.
    fn of(worker: &Rc<Worker>, wait: Wait, listener: &Arc<ListenerState>, open: Counted) -> Self {
        let slot = worker.enrol(wait, Arc::clone(listener));
        Self { worker: Rc::clone(worker), slot, open: Some(open) }
    }

    /// Leaves the connection to another worker.
    fn hand_on(mut self) {
        self.open.take().into_iter().for_each(Counted::hand_on);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.worker.strike_off(self.slot);
    }
}

/// What follows an exchange.
pub(crate) enum Next {
    /// The next request.
    KeepAlive,
    /// Send pending bytes, then close; with `linger`, read and drop what the client still sends for a while.
    Close { linger: bool },
    /// Close at once and visibly: the client must not mistake the response for a complete one.
    Abort { reset: bool },
}

impl Connection {
    /// Creates the connection for an accepted socket.
    pub(crate) fn new(
        worker: Rc<Worker>,
        runners: Rc<Runners>,
        listener: Arc<ListenerState>,
        stream: Stream,
        client: SocketAddr,
    ) -> Self {
        let registration = Some(Registration::take(&worker, Wait::Own(Call::default()), &listener));
        Self { registration, ..Self::bare(worker, runners, listener, stream, Peer::at(client)) }
    }

    fn bare(
        worker: Rc<Worker>,
        runners: Rc<Runners>,
        listener: Arc<ListenerState>,
        stream: Stream,
        mut peer: Peer,
    ) -> Self {
        let (reader, writer) = stream::halves(stream);
        if listener.tls().is_some_and(|tls| tls.asks_for_certificates()) {
            // No identity until a certificate is seen.
            peer.identity.get_or_insert_with(|| Rc::new(ClientIdentity::new(None)));
        }
        let patience = Duration::from_millis(listener.config.limits.keep_alive_timeout_ms);
        let io = Io { reader, writer, deadline: Deadline::new(patience) };
        let session = RequestState {
            head: RequestHead::new(),
            scanner: HeadScanner::new(),
            exchanges: 0,
            service: None,
            may_leave: false,
            is_called_away: false,
        };
        Self { worker, runners, listener, io, peer, session, registration: None, client_place: None }
    }

    /// Records its phase, for the drain.
    fn set_phase(&self, phase: Phase) {
        if let Some(registration) = &self.registration {
            self.worker.set_phase(registration.slot, phase);
        }
    }

    /// Waits for the first bytes of a message. `Ok(0)` also if the connection has to end or is called away, and nothing
    /// has arrived by now.
    async fn first_bytes(&mut self, capacity: usize) -> Option<io::Result<usize>> {
        let may_move = self.may_move();
        let is_called_away = &mut self.session.is_called_away;
        *is_called_away = false;
        let Io { reader, deadline, .. } = &mut self.io;
        let slot = self.registration.as_ref().map(|registration| registration.slot);
        let worker = &self.worker;
        let mut is_recalled = false;
        let waiting = poll_fn(|cx| {
            loop {
                match reader.poll_fill(cx, capacity) {
                    Poll::Ready(Err(error))
                        if is_recalled && error.raw_os_error() == Some(libc::ECANCELED) =>
                    {
                        if reader.is_quiet() {
                            return Poll::Ready(Ok(0));
                        }
                        // It has arrived since: the next receive brings it.
                        is_recalled = false;
                    }
                    Poll::Ready(filled) => return Poll::Ready(filled),
                    Poll::Pending if is_recalled => return Poll::Pending,
                    Poll::Pending => {
                        *is_called_away = may_move && worker.sheds();
                        if !*is_called_away {
                            ready!(slot.map_or(Poll::Pending, |slot| worker.poll_call(slot, may_move, cx)));
                        }
                        is_recalled = reader.recall();
                        if !is_recalled {
                            return Poll::Ready(Ok(0));
                        }
                    }
                }
            }
        });
        deadline.run(waiting).await
    }

    /// Whether the exchange under way is the last of this connection.
    fn is_ending(&self) -> bool {
        self.worker.resources().ends_connections() || self.listener.is_closed()
    }

    fn limits(&self) -> &Limits {
        &self.listener.config.limits
    }

    /// Serves requests until the connection ends, or moves to another worker. Boxed, because an async function keeps two
    /// places for what it is given.
    pub(crate) async fn serve(mut self: Box<Self>) -> Option<Box<MovedConnection>> {
        if self.session.exchanges > 0 {
            return self.serve_requests().await;
        }
        // Boxed, because the greeting and the handshake are a small part of a connection's life.
        if !self.greet().await || (self.listener.tls().is_some() && !Box::pin(self.secure()).await) {
            return None;
        }
        // It waits again, after what preceded its first message.
        self.set_phase(Phase::Idle);
        match self.listener.config.protocol {
            Protocol::Tcp => Box::pin(self.tunnel_connection()).await,
            Protocol::TlsPassthrough => Box::pin(self.pass_through()).await,
            Protocol::Http => match self.begins_http2().await {
                Some(true) => Box::pin(self.serve_http2()).await,
                Some(false) => return self.serve_requests().await,
                None => {}
            },
        }
        None
    }

    /// Serves HTTP/1.1 requests until the connection ends or moves.
    async fn serve_requests(mut self: Box<Self>) -> Option<Box<MovedConnection>> {
        loop {
            let next = match self.next_head().await {
                Arrival::Head => {
                    self.set_phase(Phase::Busy);
                    if self.session.exchanges > 0 {
                        self.worker.metrics().count(Event::DownstreamReused);
                    }
                    self.session.exchanges += 1;
                    let next;
                    (self, next) = self.run_exchange().await;
                    next
                }
                Arrival::Refused(reason) if self.is_broken_preface(reason) => self.drop_unanswered(reason),
                Arrival::Refused(reason) => {
                    let is_head = self.io.reader.data().starts_with(b"HEAD ");
                    Box::pin(self.refuse(reason, is_head)).await
                }
                Arrival::Closed if self.session.is_called_away => match self.move_away() {
                    Ok(moved) => return moved,
                    Err(stays) => {
                        self = stays;
                        continue;
                    }
                },
                // The last response may still be leaving: a client that has half-closed may read slowly.
                Arrival::Closed => Next::Close { linger: false },
            };
            match next {
                // Also when the connection is to end: the client was not notified, so its next request may be on its
                // way.
                Next::KeepAlive => self.rest(),
                end => {
                    self.follow(end).await;
                    return None;
                }
            }
        }
    }

    /// Ends the connection as requested by its last exchange.
    async fn follow(&mut self, next: Next) {
        match next {
            Next::KeepAlive => Box::pin(self.close(false)).await,
            Next::Close { linger } => Box::pin(self.close(linger)).await,
            Next::Abort { reset } => Box::pin(self.abort(reset)).await,
        }
    }

    /// Prepares for the wait between two requests.
    fn rest(&mut self) {
        self.set_phase(Phase::Idle);
        self.session.service = None;
        self.session.may_leave = true;
        self.io.reader.shrink(IDLE_BYTES);
        self.io.writer.shrink(sluice_net::buffers::SMALL_BYTES);
    }
}

impl Peer {
    /// A peer of which only the address is known.
    fn at(address: SocketAddr) -> Self {
        let (address, port) = (address.ip(), address.port());
        let text = text_of(address);
        Self {
            address,
            port,
            text,
            identity: None,
            tls: None,
            direct: direct::Client::default(),
            early: None,
        }
    }

    /// The same peer for a stream of its connection.
    fn on_stream(&self) -> Self {
        let (text, identity) = (Rc::clone(&self.text), self.identity.clone());
        Self {
            address: self.address,
            port: self.port,
            text,
            identity,
            tls: self.tls.clone(),
            direct: direct::Client::default(),
            early: self.early.clone(),
        }
    }

    /// Whether its request may be a recording, because its handshake is not complete.
    fn is_early(&self) -> bool {
        self.early.as_ref().is_some_and(sluice_net::quic::Connection::is_early)
    }
}

/// An address in the form of X-Forwarded-For.
fn text_of(address: IpAddr) -> Rc<str> {
    let mut text = String::with_capacity(ADDRESS_BYTES_MAX);
    // A string takes everything.
    let _ = write!(text, "{}", address.to_canonical());
    text.into()
}

/// The longest address as text: IPv6 with an IPv4 part.
const ADDRESS_BYTES_MAX: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".len();
