//! HTTP/3: a QUIC connection whose streams are connections with one exchange each.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_config::TlsVersion;
use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_core::tls::{ClientIdentity, Handshake, HandshakeFailure};
use sluice_http::ParseError;
use sluice_net::deadline::Deadline;
use sluice_net::listener::ListenerState;
use sluice_net::quic::{self, ConnectionError, Ended};
use sluice_net::stream::Stream;

use super::http2::RefusedHead;
use super::secure::TlsFacts;
use super::{Connection, Peer, Registration, head};
use crate::http3::{self, Accepted, Channel, Link, Terms};
use crate::shared_connection::Control;
use crate::worker::{Wait, Worker};

/// The first number of an error that is an alert of TLS (RFC 9001 section 4.8).
const ALERTS: u64 = 0x100;

/// A QUIC connection on a listener, whose handshake is under way.
pub(crate) struct QuicConnection {
    worker: Rc<Worker>,
    listener: Arc<ListenerState>,
    quic: quic::Connection,
    control: Rc<Control>,
    registration: Registration,
}

/// What all streams of a connection share.
struct Parent {
    worker: Rc<Worker>,
    listener: Arc<ListenerState>,
    peer: Peer,
}

impl QuicConnection {
    /// The connection that a client has begun.
    pub(crate) fn new(worker: Rc<Worker>, listener: Arc<ListenerState>, quic: quic::Connection) -> Self {
        let control = Rc::<Control>::default();
        let registration = Registration::take(&worker, Wait::Quic(Rc::clone(&control)), &listener);
        Self { worker, listener, quic, control, registration }
    }

    /// Completes the handshake; returns false when the connection has ended. `handshaking` is dropped with it.
    pub(crate) async fn shake_hands<T>(&self, patience: Duration, handshaking: T) -> bool {
        let deadline = Deadline::new(patience);
        let shaken = deadline.run(poll_fn(|cx| self.poll_handshake(cx))).await;
        drop(handshaking);
        let outcome = match shaken {
            Some(Ok(())) => Handshake::Done { version: TlsVersion::V13, resumed: false },
            Some(Err(failure)) => Handshake::Failed(failure),
            None => Handshake::Failed(HandshakeFailure::TimedOut),
        };
        self.worker.metrics().handshake(outcome);
        if let Handshake::Failed(failure) = outcome {
            tracing::debug!(
                listener = self.listener.config.name,
                client = %self.quic.remote().ip(),
                reason = failure.word(),
                "QUIC handshake failed"
            );
            self.quic.close(0, b"");
            self.end().await;
        }
        shaken == Some(Ok(()))
    }

    fn poll_handshake(&self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeFailure>> {
        let driven = self.quic.poll_drive(cx);
        if let Some(error) = self.quic.lost() {
            return Poll::Ready(Err(failure_of(&error)));
        }
        match driven {
            Poll::Ready(Ended) => Poll::Ready(Err(HandshakeFailure::Closed)),
            Poll::Pending if self.quic.is_connected() => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Sends what is left to say.
    async fn end(&self) {
        poll_fn(|cx| self.quic.poll_drive(cx)).await;
    }

    /// Serves its streams.
    pub(crate) async fn serve(self) {
        let Self { worker, listener, quic, control, registration } = self;
        let link = Link::new(quic.clone(), control, worker.metrics(), &listener.config.limits);
        let mut parent = Parent { peer: peer(&quic, &listener), worker, listener: Arc::clone(&listener) };
        let mut streams = 0_u64;
        let open = |channel: Rc<Channel>| {
            streams += 1;
            if streams > 1 {
                parent.worker.metrics().count(Event::DownstreamReused);
            }
            parent.follow(&quic);
            tokio::task::spawn_local(parent.serve_stream(channel));
        };
        http3::serve(&Terms { limits: &listener.config.limits, link }, open).await;
        drop(registration);
    }
}

/// What is known of the client.
fn peer(quic: &quic::Connection, listener: &ListenerState) -> Peer {
    let server_name = quic.server_name();
    let mut peer = Peer::at(quic.remote());
    if listener.tls().is_some_and(|tls| tls.asks_for_certificates()) {
        let certificates = quic.peer_certificates();
        let identity = ClientIdentity::new(certificates.as_deref()).asking_for(server_name.as_deref());
        peer.identity = Some(Rc::new(identity));
    }
    peer.tls = Some(Rc::new(TlsFacts::of_quic(server_name)));
    peer
}

/// The outcome of a handshake that was lost.
pub(crate) fn failure_of(error: &ConnectionError) -> HandshakeFailure {
    let alert = |code: u64| u8::try_from(code.checked_sub(ALERTS)?).ok();
    match error {
        ConnectionError::TransportError(error) => {
            alert(error.code.into()).map_or(HandshakeFailure::Protocol, HandshakeFailure::with_alert)
        }
        ConnectionError::ConnectionClosed(close) => {
            alert(close.error_code.into()).map_or(HandshakeFailure::Closed, HandshakeFailure::by_alert)
        }
        ConnectionError::TimedOut => HandshakeFailure::TimedOut,
        _ => HandshakeFailure::Closed,
    }
}

impl Parent {
    /// The client may have moved.
    fn follow(&mut self, quic: &quic::Connection) {
        let remote = quic.remote();
        if (remote.ip(), remote.port()) != (self.peer.address, self.peer.port) {
            let moved = Peer::at(remote);
            (self.peer.address, self.peer.port, self.peer.text) = (moved.address, moved.port, moved.text);
        }
    }

    fn serve_stream(&self, channel: Rc<Channel>) -> impl Future<Output = ()> + 'static {
        let (worker, listener, peer) =
            (Rc::clone(&self.worker), Arc::clone(&self.listener), self.peer.on_stream());
        async move {
            let Some(accepted) = accept(channel, &listener).await else { return };
            let stream = Stream::Channel(Rc::clone(&accepted.channel) as _);
            let mut connection = Box::new(Connection::bare(Rc::clone(&worker), listener, stream, peer));
            let limits = connection.head_limits();
            let key = || worker.with_random(|random| random.u128(..)).to_ne_bytes();
            let read: Result<(), ParseError> = accepted.read(&mut connection.session.head, &limits, key);
            let is_head = accepted.is_head();
            drop(accepted);
            let read = read.map_err(|error| RefusedHead::new(head::reason(error), is_head));
            connection.serve_stream(read).await;
        }
    }
}

/// The request of a stream; `None` if it is not one, or takes too long.
async fn accept(channel: Rc<Channel>, listener: &ListenerState) -> Option<Accepted> {
    let patience = Duration::from_millis(listener.config.limits.header_timeout_ms);
    match tokio::time::timeout(patience, Rc::clone(&channel).accept()).await {
        Ok(accepted) => accepted.ok(),
        Err(_) => {
            tracing::debug!(reason = Reason::HeaderTimeout.word(), "HTTP/3 request reset");
            channel.time_out();
            None
        }
    }
}
