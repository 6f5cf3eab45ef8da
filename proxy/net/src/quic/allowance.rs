//! What may be sent to an address that may be forged: three times what came from it (RFC 9000 section 8.1).
//!
//! quinn-proto keeps to this but for its last packet, which it sends whole if one byte of the allowance is left: with a
//! large chain of certificates, four bytes for each that an attacker sends in the name of a victim. Here the packet waits.

/// Of one connection, until the client has proved its address.
pub(super) struct Allowance {
    received: u64,
    is_proved: bool,
}

/// Bytes that may be sent for each that was received.
const FACTOR: u64 = 3;

impl Allowance {
    /// For a client whose first datagram has `received` bytes. `is_proved`: it has shown a token of its address.
    pub(super) fn new(received: usize, is_proved: bool) -> Self {
        Self { received: received as u64, is_proved }
    }

    /// A datagram has arrived. `has_our_identifier`: it names an identifier that sluice has chosen. Of its bits, 80 cannot
    /// be guessed, so the client has received at its address (RFC 9000 section 8.1 asks for 64). No connection begins with
    /// such an identifier unless its address is proved, so it is one of this connection.
    pub(super) fn receive(&mut self, bytes: usize, has_our_identifier: bool) {
        self.received += bytes as u64;
        self.is_proved |= has_our_identifier;
    }

    /// Whether the client has proved that it receives at its address.
    pub(super) fn is_proved(&self) -> bool {
        self.is_proved
    }

    /// How many of `segments_max` packets may be sent now; `None` if the next one has to wait for the client.
    pub(super) fn segments(
        &self,
        connection: &quinn_proto::Connection,
        segments_max: usize,
    ) -> Option<usize> {
        if self.is_proved {
            return Some(segments_max);
        }
        let left = (self.received * FACTOR).saturating_sub(connection.stats().udp_tx.bytes);
        let segments = left / u64::from(connection.current_mtu().max(1));
        (segments > 0).then(|| segments_max.min(usize::try_from(segments).unwrap_or(usize::MAX)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;
    use std::time::Instant;

    use bytes::BytesMut;
    use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    use quinn_proto::{
        ClientConfig, Connection, DatagramEvent, Endpoint, EndpointConfig, ServerConfig, TransportConfig,
    };
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use sluice_core::tls::crypto;

    use super::*;

    /// A certificate that takes several packets.
    fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let names: Vec<_> = (0..400).map(|number| format!("{number}.long.name.example")).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        (made.cert.der().clone(), PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap())
    }

    /// The connection of a server whose client has sent its hello, and the size of that.
    fn begun() -> (Connection, usize) {
        let (certificate, key) = certificate();
        let provider = Arc::new(crypto::default_provider());
        let versions = &[&rustls::version::TLS13];
        let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider));
        let server = server.with_protocol_versions(versions).unwrap().with_no_client_auth();
        let server = server.with_single_cert(vec![certificate.clone()], key).unwrap();
        let mut server =
            ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(Arc::new(server)).unwrap()));
        // The allowance is no multiple of its packets.
        let mut transport = TransportConfig::default();
        transport.initial_mtu(1400);
        server.transport_config(Arc::new(transport));
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider);
        let client = client.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
        let client = QuicClientConfig::try_from(Arc::new(client.with_no_client_auth())).unwrap();

        let now = Instant::now();
        let (address, mut out) = (SocketAddr::from(([192, 0, 2, 1], 443)), Vec::new());
        let endpoint = || Arc::new(EndpointConfig::default());
        let mut clients = Endpoint::new(endpoint(), None, true, None);
        let (_, mut client) = clients
            .connect(now, ClientConfig::new(Arc::new(client)), address, "1.long.name.example")
            .unwrap();
        let mut servers = Endpoint::new(endpoint(), Some(Arc::new(server)), true, None);
        let (mut begun, mut size) = (None, 0);
        // A hello with a key share of a newer kind takes two datagrams.
        while client.poll_transmit(now, 1, &mut out).is_some() {
            let datagram = BytesMut::from(&out[..]);
            size += out.len();
            out.clear();
            match servers.handle(now, address, None, None, datagram, &mut Vec::new()) {
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let (_, connection) = servers.accept(incoming, now, &mut Vec::new(), None).unwrap();
                    begun = Some(connection);
                }
                Some(DatagramEvent::ConnectionEvent(_, event)) => begun.as_mut().unwrap().handle_event(event),
                _ => panic!("it is not taken"),
            }
        }
        (begun.unwrap(), size)
    }

    #[test]
    fn an_address_that_may_be_forged_gets_three_times_what_came_from_it() {
        let (mut connection, size) = begun();
        let mut allowance = Allowance::new(size, false);
        let (mut sent, mut out) = (0, Vec::new());
        let mut send = |connection: &mut Connection, allowance: &Allowance, now| {
            while let Some(segments) = allowance.segments(connection, 16) {
                out.clear();
                let Some(transmit) = connection.poll_transmit(now, segments, &mut out) else { break };
                sent += transmit.size;
            }
            sent
        };
        // Its timers make it try again.
        let mut now = Instant::now();
        for _ in 0..8 {
            let sent = send(&mut connection, &allowance, now);
            assert!((size + 1..=3 * size).contains(&sent), "{sent} bytes for {size}");
            let Some(at) = connection.poll_timeout() else { break };
            now = at;
            connection.handle_timeout(now);
        }
        assert_eq!(allowance.segments(&connection, 16), None);
        // Once the client has proved its address, there is no limit.
        allowance.receive(size, true);
        assert_eq!(allowance.segments(&connection, 16), Some(16));
    }
}
