//! HTTP/3: a QUIC connection whose streams are connections with one exchange each.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use sluice_config::TlsVersion;
use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_core::tls::{ClientIdentity, Handshake, HandshakeFailure, Handshaking};
use sluice_http::ParseError;
use sluice_net::deadline::Deadline;
use sluice_net::listener::ListenerState;
use sluice_net::quic::{self, ConnectionError, Ended};
use sluice_net::stream::Stream;

use super::http2::RefusedHead;
use super::secure::TlsFacts;
use super::{Connection, Peer, Registration, Runners, head};
use crate::http3::{self, Accepted, Channel, Link, Terms};
use crate::shared_connection::Control;
use crate::worker::{Wait, Worker};

/// The first number of an error that is an alert of TLS (RFC 9001 section 4.8).
const ALERTS: u64 = 0x100;

/// A QUIC connection on a listener, whose handshake is under way.
pub(crate) struct QuicConnection {
    worker: Rc<Worker>,
    runners: Rc<Runners>,
    listener: Arc<ListenerState>,
    link: Rc<Link>,
    /// Until the handshake is complete.
    handshake: Option<HandshakeWatch>,
    registration: Registration,
}

/// A handshake under way: until when it must be complete, and its place among those of the listener.
struct HandshakeWatch {
    deadline: Deadline,
    _place: Handshaking,
}

/// What all streams of a connection share.
struct Parent {
    worker: Rc<Worker>,
    runners: Rc<Runners>,
    listener: Arc<ListenerState>,
    link: Rc<Link>,
    peer: Peer,
}

impl QuicConnection {
    /// The connection that a client has begun.
    pub(crate) fn new(
        worker: Rc<Worker>,
        runners: Rc<Runners>,
        listener: Arc<ListenerState>,
        quic: quic::Connection,
        place: Handshaking,
    ) -> Self {
        let control = Rc::<Control>::default();
        let registration = Registration::take(&worker, Wait::Quic(Rc::clone(&control)), &listener);
        let link = Link::new(quic, control, worker.metrics(), &listener.config.limits);
        let patience = listener.tls().map(|tls| tls.handshake_timeout()).unwrap_or_default();
        let handshake = Some(HandshakeWatch { deadline: Deadline::new(patience), _place: place });
        Self { worker, runners, listener, link, handshake, registration }
    }

    /// Completes the handshake, or begins it if there is early data; returns false when the connection has ended.
    pub(crate) async fn shake_hands(&mut self) -> bool {
        let Some(watch) = self.handshake.take() else { return true };
        let shaken = watch.deadline.run(poll_fn(|cx| self.poll_handshake(cx))).await;
        if shaken == Some(Ok(())) && self.quic().is_early() {
            self.handshake = Some(watch);
            return true;
        }
        drop(watch);
        self.finish_handshake(shaken);
        if shaken != Some(Ok(())) {
            // What is left to say is sent.
            poll_fn(|cx| self.quic().poll_drive(cx)).await;
        }
        shaken == Some(Ok(()))
    }

    fn quic(&self) -> &quic::Connection {
        self.link.connection()
    }

    fn poll_handshake(&self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeFailure>> {
        let quic = self.quic();
        let driven = quic.poll_drive(cx);
        if let Some(error) = quic.lost() {
            return Poll::Ready(Err(failure_of(&error)));
        }
        match driven {
            Poll::Ready(Ended) => Poll::Ready(Err(HandshakeFailure::Closed)),
            Poll::Pending if quic.is_connected() || quic.is_early() => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Counts a handshake, and closes the connection if it has failed. `None`: it took too long.
    fn finish_handshake(&self, shaken: Option<Result<(), HandshakeFailure>>) {
        let quic = self.quic();
        let outcome = match shaken {
            Some(Ok(())) => Handshake::Done { version: TlsVersion::V13, resumed: quic.is_resumed() },
            Some(Err(failure)) => Handshake::Failed(failure),
            None => Handshake::Failed(HandshakeFailure::TimedOut),
        };
        self.worker.metrics().handshake(outcome);
        if let Handshake::Done { .. } = outcome {
            self.open_window();
        }
        if let Handshake::Failed(failure) = outcome {
            tracing::debug!(
                listener = self.listener.config.name,
                client = %quic.remote().ip(),
                reason = failure.word(),
                "QUIC handshake failed"
            );
            quic.close(0, b"");
        }
    }

    /// The client may send as much as others do, now that it is known that it is there.
    fn open_window(&self) {
        let (limits, http3) = (&self.listener.config.limits, self.listener.config.http3);
        let has_early_data = http3.is_some_and(|http3| http3.has_early_data());
        if quic::first_window(limits, has_early_data) < limits.http3.connection_window_bytes {
            self.quic().set_receive_window(limits.http3.connection_window_bytes);
        }
    }

    /// Waits for the end of a handshake while early requests are served.
    async fn watch_handshake(&self, watch: Option<HandshakeWatch>) {
        let Some(watch) = watch else { return };
        let shaken = watch.deadline.run(self.link.settled()).await;
        let failure = || self.quic().lost().as_ref().map_or(HandshakeFailure::Closed, failure_of);
        self.finish_handshake(shaken.map(|is_complete| if is_complete { Ok(()) } else { Err(failure()) }));
    }

    /// Serves its streams.
    pub(crate) async fn serve(mut self) {
        let watch = self.handshake.take();
        let mut parent = Parent {
            peer: peer(self.quic(), &self.listener),
            worker: Rc::clone(&self.worker),
            runners: Rc::clone(&self.runners),
            listener: Arc::clone(&self.listener),
            link: Rc::clone(&self.link),
        };
        let mut streams = 0_u64;
        let open = |channel: Rc<Channel>| {
            streams += 1;
            if streams > 1 {
                parent.worker.metrics().count(Event::DownstreamReused);
            }
            parent.follow();
            tokio::task::spawn_local(parent.serve_stream(channel));
        };
        let terms = Terms { limits: &self.listener.config.limits, link: Rc::clone(&self.link) };
        tokio::join!(http3::serve(&terms, open), self.watch_handshake(watch));
        drop(self.registration);
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
    peer.early = quic.is_early().then(|| quic.clone());
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
    fn follow(&mut self) {
        let remote = self.link.connection().remote();
        if (remote.ip(), remote.port()) != (self.peer.address, self.peer.port) {
            let moved = Peer::at(remote);
            (self.peer.address, self.peer.port, self.peer.text) = (moved.address, moved.port, moved.text);
        }
    }

    fn serve_stream(&self, channel: Rc<Channel>) -> impl Future<Output = ()> + 'static {
        let (worker, listener, peer) =
            (Rc::clone(&self.worker), Arc::clone(&self.listener), self.peer.on_stream());
        let (link, runners) = (Rc::clone(&self.link), Rc::clone(&self.runners));
        async move {
            let Some(accepted) = accept(channel, &listener).await else { return };
            if peer.is_early() && !may_begin(&accepted, &worker, &link).await {
                return;
            }
            let stream = Stream::Channel(Rc::clone(&accepted.channel) as _);
            let mut connection =
                Box::new(Connection::bare(Rc::clone(&worker), runners, listener, stream, peer));
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

/// Waits until an early request may begin: one that changes something must not be a recording (RFC 8470 section 3), and no
/// request may act for an address that its sender does not have. Returns false if its connection was lost before.
async fn may_begin(accepted: &Accepted, worker: &Worker, link: &Link) -> bool {
    if accepted.is_safe() && link.connection().has_proved_address() {
        worker.metrics().count(Event::Http3Early);
        return true;
    }
    worker.metrics().count(Event::Http3EarlyWaited);
    link.settled().await
}
