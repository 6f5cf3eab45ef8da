//! HTTP/2: a connection whose streams are connections with one exchange each.

use std::rc::Rc;
use std::sync::Arc;

use sluice_config::Http2;
use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_net::buffers::IDLE_BYTES;
use sluice_net::listener::ListenerState;
use sluice_net::stream::Stream;

use super::{Connection, Next, Peer, Registration, Runners, head};
use crate::http2::{self, Accepted, Terms, is_preface};
use crate::shared_connection::Control;
use crate::worker::{Phase, Worker};

/// What all streams of a connection share.
struct Parent {
    worker: Rc<Worker>,
    runners: Rc<Runners>,
    listener: Arc<ListenerState>,
    peer: Peer,
}

impl Connection {
    /// Whether the client starts with HTTP/2's preface, on a listener that accepts it without TLS. Other bytes are left
    /// unread. `None` if nothing arrived.
    pub(super) async fn begins_http2(&mut self) -> Option<bool> {
        if let Some(is_agreed) = self.has_agreed_on_http2() {
            return Some(is_agreed);
        }
        if self.listener.config.http2 != Http2::PriorKnowledge {
            return Some(false);
        }
        self.io.deadline.set(self.limits().keep_alive_timeout_ms);
        loop {
            if let Some(is_preface) = is_preface(self.io.reader.data()) {
                return Some(is_preface);
            }
            let filled = if self.io.reader.data().is_empty() {
                self.first_bytes(IDLE_BYTES).await
            } else {
                self.set_phase(Phase::Busy);
                self.io.deadline.set(self.limits().header_timeout_ms);
                self.io.deadline.run(self.io.reader.fill(IDLE_BYTES)).await
            };
            if !matches!(filled, Some(Ok(count)) if count > 0) {
                // Half a preface is not a request either, and gets an error response.
                return (!self.io.reader.data().is_empty()).then_some(false);
            }
        }
    }

    /// The result of ALPN in the TLS handshake, if there was one (RFC 7301).
    fn has_agreed_on_http2(&self) -> Option<bool> {
        let Stream::Tls(session) = self.io.reader.stream() else {
            return None;
        };
        session.inspect(|connection| Some(connection.alpn_protocol()? == b"h2"))
    }

    /// Whether a refused first head may have been meant as a preface: it then gets no response in a protocol that
    /// nobody used (RFC 9113 section 3.4).
    pub(super) fn is_broken_preface(&self, reason: Reason) -> bool {
        let mut lines = self.io.reader.data().split(|byte| *byte == b'\r');
        let begins_http1 = lines.next().is_some_and(|line| {
            line.rsplit(|byte| *byte == b' ').next().is_some_and(|last| last.starts_with(b"HTTP/1."))
        });
        self.listener.config.http2 == Http2::PriorKnowledge
            && self.session.exchanges == 0
            && reason == Reason::BadRequest
            && !begins_http1
    }

    pub(super) fn drop_unanswered(&self, reason: Reason) -> Next {
        self.record_connection(reason);
        Next::Close { linger: true }
    }

    /// Serves the streams of an HTTP/2 connection, of which no bytes have been taken from the reader.
    pub(super) async fn serve_http2(mut self) {
        let control = Rc::<Control>::default();
        if let Some(Registration { slot, .. }) = self.registration {
            // A drain notifies the client, and lets its streams finish.
            self.worker.end_through(slot, Rc::clone(&control));
            self.worker.set_phase(slot, Phase::Idle);
        }
        let (worker, listener) = (Rc::clone(&self.worker), Arc::clone(&self.listener));
        let runners = Rc::clone(&self.runners);
        let parent = Parent { worker, runners, listener, peer: self.peer.on_stream() };
        let mut streams = 0_u64;
        let open = |accepted| {
            streams += 1;
            if streams > 1 {
                parent.worker.metrics().count(Event::DownstreamReused);
            }
            tokio::task::spawn_local(parent.serve_stream(accepted));
        };
        let terms =
            Terms { limits: &parent.listener.config.limits, metrics: parent.worker.metrics(), control };
        http2::serve((&mut self.io.reader, &mut self.io.writer), &terms, open).await;
        // Unread bytes would make the close discard what was sent last.
        self.close(true).await;
    }
}

impl Connection {
    /// Serves the only exchange of a stream, whose head was accepted or refused. Boxed, because an async function keeps two
    /// places for what it is given.
    pub(super) async fn serve_stream(mut self: Box<Self>, read: Result<(), RefusedHead>) {
        self.session.exchanges = 1;
        let next = match read {
            Ok(()) => {
                let next;
                (self, next) = self.run_exchange().await;
                next
            }
            Err(RefusedHead { reason, is_head }) => Box::pin(self.refuse(reason, is_head)).await,
        };
        self.follow(next).await;
    }
}

/// A refused head.
pub(super) struct RefusedHead {
    reason: Reason,
    /// Whether its method is HEAD nevertheless.
    is_head: bool,
}

impl RefusedHead {
    /// A head refused for this reason.
    pub(super) fn new(reason: Reason, is_head: bool) -> Self {
        Self { reason, is_head }
    }
}

impl Parent {
    fn serve_stream(&self, accepted: Accepted) -> impl Future<Output = ()> + 'static {
        let (worker, listener) = (Rc::clone(&self.worker), Arc::clone(&self.listener));
        let stream = Stream::Channel(Rc::clone(&accepted.channel) as _);
        let (runners, peer) = (Rc::clone(&self.runners), self.peer.on_stream());
        let mut connection = Box::new(Connection::bare(worker, runners, listener, stream, peer));
        let limits = connection.head_limits();
        let key = || self.worker.with_random(|random| random.u128(..)).to_ne_bytes();
        let read = accepted.read(&mut connection.session.head, &limits, key);
        let is_head = accepted.is_head();
        connection.serve_stream(read.map_err(|error| RefusedHead::new(head::reason(error), is_head)))
    }
}
