//! TLS listeners: the handshake, before anything else is read.

use std::rc::Rc;
use std::sync::Arc;

use rustls::{ProtocolVersion, ServerConnection};
use sluice_core::tls::{CHALLENGE_PROTOCOL, ClientIdentity, Handshake, HandshakeFailure, Terminator};
use sluice_net::buffers::IDLE_BYTES;
use sluice_net::stream::tls::{HandshakeError, Session};
use sluice_net::stream::{self, Stream};

use super::Connection;
use crate::worker::Phase;

/// What a handshake settled, for the variables of fields.
pub(super) struct TlsFacts {
    /// As nginx and OpenSSL name it.
    pub(super) version: &'static str,
    /// The name that the client asked for; empty if it asked for none.
    pub(super) server_name: Box<str>,
}

impl TlsFacts {
    /// Of a QUIC connection, which has one version.
    pub(super) fn of_quic(server_name: Option<String>) -> Self {
        Self { version: "TLSv1.3", server_name: server_name.unwrap_or_default().into() }
    }

    fn of(connection: &rustls::Connection) -> Self {
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => "TLSv1.3",
            Some(ProtocolVersion::TLSv1_2) => "TLSv1.2",
            _ => "",
        };
        let server_name = match connection {
            rustls::Connection::Server(server) => server.server_name(),
            rustls::Connection::Client(_) => None,
        };
        Self { version, server_name: server_name.unwrap_or_default().into() }
    }
}

impl Connection {
    /// Starts a TLS session on the socket if the listener uses TLS; returns false when the connection must end.
    pub(super) async fn secure(&mut self) -> bool {
        let Some(terminator) = self.listener.tls().cloned() else {
            return true;
        };
        match self.shake_hands(&terminator).await {
            Ok(session) => {
                let done = session.inspect(|connection| match connection {
                    rustls::Connection::Server(connection) => Some(Handshake::done(connection)),
                    rustls::Connection::Client(_) => None,
                });
                done.into_iter().for_each(|done| self.worker.metrics().handshake(done));
                let is_challenge =
                    session.inspect(|connection| connection.alpn_protocol() == Some(CHALLENGE_PROTOCOL));
                self.take_over(&terminator, session);
                if is_challenge {
                    // A challenge connection ends after the handshake (RFC 8737 section 3).
                    self.close(false).await;
                }
                !is_challenge
            }
            Err(failure) => {
                self.worker.metrics().handshake(Handshake::Failed(failure));
                tracing::debug!(
                    listener = self.listener.config.name,
                    client = &*self.peer.text,
                    reason = failure.word(),
                    "TLS handshake failed"
                );
                if !matches!(failure, HandshakeFailure::TooMany | HandshakeFailure::TimedOut) {
                    // An alert is being sent; a reset would overtake it.
                    self.close(true).await;
                }
                false
            }
        }
    }

    async fn shake_hands(&mut self, terminator: &Terminator) -> Result<Rc<Session>, HandshakeFailure> {
        self.io.deadline.set(u64::try_from(terminator.handshake_timeout().as_millis()).unwrap_or(u64::MAX));
        if self.io.reader.data().is_empty() {
            // A silent client does not count as a handshake.
            self.io.reader.arm_patiently(IDLE_BYTES);
            match self.first_bytes(IDLE_BYTES).await {
                Some(Ok(1..)) => {}
                Some(_) => return Err(HandshakeFailure::Closed),
                None => return Err(HandshakeFailure::TimedOut),
            }
        }
        self.set_phase(Phase::Busy);
        let _under_way = terminator.begin_handshake().ok_or(HandshakeFailure::TooMany)?;
        let connection = ServerConnection::new(Arc::clone(terminator.server_config()))
            .map_err(|error| HandshakeFailure::from(&error))?;
        // Bytes received together with a PROXY protocol header belong to the session.
        let (received, start) = self.io.reader.take(Vec::new());
        let session = Session::new(self.io.reader.stream().clone(), connection, &received[start..]);
        match self.io.deadline.run(session.handshake()).await {
            Some(Ok(())) => Ok(session),
            Some(Err(HandshakeError::Tls(error))) => Err(HandshakeFailure::from(&error)),
            Some(Err(HandshakeError::Io(_))) => Err(HandshakeFailure::Closed),
            None => Err(HandshakeFailure::TimedOut),
        }
    }

    /// From now on the connection uses the session's streams.
    fn take_over(&mut self, terminator: &Terminator, session: Rc<Session>) {
        if terminator.asks_for_certificates() {
            let identity = session.inspect(|connection| {
                let host = match connection {
                    rustls::Connection::Server(server) => server.server_name(),
                    rustls::Connection::Client(_) => None,
                };
                ClientIdentity::new(connection.peer_certificates()).asking_for(host)
            });
            self.peer.identity = Some(Rc::new(identity));
        }
        self.peer.tls = Some(Rc::new(session.inspect(TlsFacts::of)));
        (self.io.reader, self.io.writer) = stream::halves(Stream::Tls(session));
    }
}
