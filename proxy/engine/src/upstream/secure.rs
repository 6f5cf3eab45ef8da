//! TLS over a connection to an endpoint.

use rustls::HandshakeKind;
use sluice_core::cluster::{Cluster, Endpoint};
use sluice_core::error::Reason;
use sluice_core::metrics::Event;
use sluice_core::tls::upstream::Purpose;
use sluice_core::tls::verify;
use sluice_net::stream::Stream;
use sluice_net::stream::tls::{HandshakeError, Session};

use super::UpstreamConnection;

impl UpstreamConnection {
    /// Why the endpoint has ended a session that had just started, if it sent an alert: with TLS 1.3 it rejects
    /// sluice's certificate only when it receives the first request (RFC 8446 4.4.2.4). `silent` if nothing of a
    /// response was received. Logs the details.
    pub(crate) fn refusal(&self, cluster: &Cluster, silent: bool) -> Option<Reason> {
        let Stream::Tls(session) = self.reader.stream() else {
            return None;
        };
        let error = session.failure().filter(|_| silent && !self.reused)?;
        cluster.tls().iter().for_each(|tls| tls.warn(&self.endpoint.label, &error));
        Some(verify::reason(&error))
    }
}

/// The kind of a session's handshake, for the metrics.
pub(super) fn event(stream: &Stream) -> Option<Event> {
    let Stream::Tls(session) = stream else {
        return None;
    };
    let resumed = session.inspect(|tls| tls.handshake_kind()) == Some(HandshakeKind::Resumed);
    Some(if resumed { Event::UpstreamTlsResumed } else { Event::UpstreamTlsFull })
}

/// Starts TLS on the connection, if the cluster uses it. The caller limits the time.
///
/// # Errors
/// The reason code of the failure; details are logged.
pub(super) async fn secure(
    cluster: &Cluster,
    endpoint: &Endpoint,
    stream: Stream,
    purpose: Purpose,
) -> Result<Stream, Reason> {
    let tls = match (cluster.tls(), &cluster.config.tls) {
        (Some(tls), _) => tls,
        (None, None) => return Ok(stream),
        // Never send in the clear what has to be secured.
        (None, Some(_)) => return Err(Reason::TlsHandshakeFailed),
    };
    let fail = |error: &rustls::Error| {
        tls.warn(&endpoint.label, error);
        verify::reason(error)
    };
    let session = tls.begin(&endpoint.host, purpose).map_err(|error| fail(&error))?;
    let session = Session::new(stream, session, &[]);
    match session.handshake().await {
        Ok(()) if purpose == Purpose::Http2 && session.inspect(|tls| tls.alpn_protocol() != Some(b"h2")) => {
            Err(fail(&rustls::Error::NoApplicationProtocol))
        }
        Ok(()) => Ok(Stream::Tls(session)),
        Err(HandshakeError::Tls(error)) => Err(fail(&error)),
        Err(HandshakeError::Io(error)) => Err(fail(&rustls::Error::General(error.to_string()))),
    }
}
