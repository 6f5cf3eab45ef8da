//! TLS termination on a listener: the rustls configuration, the certificates, and the limit of concurrent handshakes.

use crate::tls::TlsConfigError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{
    NoServerSessionStorage, ProducesTickets, ServerConfig, ServerSessionMemoryCache, WebPkiClientVerifier,
};
use rustls::version::{TLS12, TLS13};
use sluice_config::{self as config, ClientAuthMode, EarlyData, TlsVersion};

use super::certificate;
use super::crypto;
use super::resumption::{NotedSessions, NotedTickets};
use super::store::CertificateStore;

/// HTTP/3 in ALPN (RFC 9114 section 3.1).
const HTTP3: &[u8] = b"h3";

/// TLS on one listener with one configuration. Connections keep the one they started with.
pub struct Terminator {
    config: config::Tls,
    protocols: Vec<Vec<u8>>,
    /// The content of `client_auth.ca_file`.
    authorities: Vec<u8>,
    server: Arc<ServerConfig>,
    /// For QUIC, if the listener speaks HTTP/3.
    quic: Option<QuicTls>,
    store: Arc<CertificateStore>,
    under_way: Arc<AtomicUsize>,
}

/// What QUIC connections are accepted with.
#[derive(Clone)]
struct QuicTls {
    server: Arc<ServerConfig>,
    early_data: EarlyData,
    sessions_max: usize,
}

/// A handshake under way, until it is dropped.
pub struct Handshaking(Arc<AtomicUsize>);

impl Terminator {
    /// Creates the terminator of a configuration, offering `protocols` by ALPN (RFC 7301), the preferred one first. It
    /// uses the store of `before`, if there is one, else an empty store.
    ///
    /// If nothing has changed that clients negotiated, they can also resume earlier sessions. Otherwise they cannot: a
    /// ticket would admit a client that sent no certificate when none was required.
    ///
    /// # Errors
    /// What cannot be used, with the file's name.
    pub(crate) fn new(
        config: &config::Tls,
        protocols: Vec<Vec<u8>>,
        http3: Option<&config::Http3>,
        before: Option<&Self>,
    ) -> Result<Self, TlsConfigError> {
        let ca_file = config.client_auth.ca_file.as_deref().filter(|_| asks(config));
        let authorities = ca_file.map(certificate::read).transpose()?.unwrap_or_default();
        let store = before.map(|before| Arc::clone(&before.store)).unwrap_or_default();
        let agrees = |before: &&Self| {
            before.protocols == protocols
                && before.authorities == authorities
                && before.config.client_auth == config.client_auth
                && before.config.min_version == config.min_version
                && before.config.cipher_suites == config.cipher_suites
                && before.config.session_tickets == config.session_tickets
        };
        let before_agrees = before.filter(agrees);
        let server = match before_agrees {
            Some(before) => Arc::clone(&before.server),
            None => Arc::new(server_config(config, config.min_version, &protocols, &store)?),
        };
        let quic_before = before_agrees.and_then(|before| before.quic.as_ref());
        let quic = http3.map(|http3| match quic_before.filter(|before| before.is_of(http3)) {
            Some(before) => Ok(before.clone()),
            None => QuicTls::new(config, http3, &store),
        });
        let quic = quic.transpose()?;
        let under_way = before.map(|before| Arc::clone(&before.under_way)).unwrap_or_default();
        Ok(Self { config: config.clone(), protocols, authorities, server, quic, store, under_way })
    }

    /// The configuration for accepting connections.
    pub fn server_config(&self) -> &Arc<ServerConfig> {
        &self.server
    }

    /// The configuration for accepting QUIC connections, if there are any.
    pub fn quic_config(&self) -> Option<&Arc<ServerConfig>> {
        self.quic.as_ref().map(|quic| &quic.server)
    }

    /// Handshakes under way on all workers.
    pub fn handshakes(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// The time from the start of the connection to the end of its handshake.
    pub fn handshake_timeout(&self) -> Duration {
        Duration::from_millis(self.config.handshake_timeout_ms)
    }

    /// Takes one of the concurrent handshakes; `None` when the limit is reached.
    pub fn begin_handshake(&self) -> Option<Handshaking> {
        let handshaking = Handshaking(Arc::clone(&self.under_way));
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        (before < self.config.handshakes_max).then_some(handshaking)
    }

    /// Whether clients are asked for a certificate.
    pub fn asks_for_certificates(&self) -> bool {
        asks(&self.config)
    }

    /// The certificates.
    pub fn store(&self) -> &Arc<CertificateStore> {
        &self.store
    }

    /// How certificates for names outside the configuration are obtained, if enabled.
    pub fn on_demand(&self) -> Option<&config::OnDemand> {
        self.config.acme.as_ref()?.on_demand.as_ref()
    }

    /// Its configuration.
    pub fn config(&self) -> &config::Tls {
        &self.config
    }
}

impl QuicTls {
    fn new(
        config: &config::Tls,
        http3: &config::Http3,
        store: &Arc<CertificateStore>,
    ) -> Result<Self, TlsConfigError> {
        // RFC 9001 section 4.2: nothing older.
        let mut server = server_config(config, TlsVersion::V13, &[HTTP3.to_vec()], store)?;
        if http3.early_data == EarlyData::Safe {
            // Each session can be resumed once, so what was sent early cannot be repeated to this process. A ticket
            // could be resumed any number of times.
            server.ticketer = Arc::new(NoTickets);
            let sessions = ServerSessionMemoryCache::new(http3.early_data_sessions_max);
            server.session_storage = Arc::new(NotedSessions(sessions));
            // RFC 9001 section 4.6.1: the only number. Flow control is the bound.
            server.max_early_data_size = u32::MAX;
        } else {
            server.ticketer = Arc::new(NotedTickets(server.ticketer));
        }
        let (early_data, sessions_max) = (http3.early_data, http3.early_data_sessions_max);
        Ok(Self { server: Arc::new(server), early_data, sessions_max })
    }

    /// Whether this configuration has the same sessions.
    fn is_of(&self, http3: &config::Http3) -> bool {
        (self.early_data, self.sessions_max) == (http3.early_data, http3.early_data_sessions_max)
    }
}

/// Issues no tickets, as rustls does by default.
#[derive(Debug)]
struct NoTickets;

impl ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

impl Drop for Handshaking {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn asks(config: &config::Tls) -> bool {
    config.client_auth.mode != ClientAuthMode::Off
}

fn server_config(
    config: &config::Tls,
    min_version: TlsVersion,
    protocols: &[Vec<u8>],
    store: &Arc<CertificateStore>,
) -> Result<ServerConfig, TlsConfigError> {
    let provider = Arc::new(provider(&config.cipher_suites));
    let versions: &[_] = match min_version {
        TlsVersion::V12 => &[&TLS13, &TLS12],
        TlsVersion::V13 => &[&TLS13],
    };
    let said = |error: rustls::Error| error.to_string();
    let verifier = client_verifier(&config.client_auth, &provider)?;
    let builder =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(versions).map_err(said)?;
    let builder = match verifier {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut server = builder.with_cert_resolver(Arc::clone(store) as Arc<_>);
    server.alpn_protocols = protocols.to_vec();
    // All workers share its keys, which it replaces every six hours. No session is therefore stored here.
    if config.session_tickets {
        server.ticketer = crypto::Ticketer::new().map_err(said)?;
    } else {
        server.send_tls13_tickets = 0;
    }
    server.session_storage = Arc::new(NoServerSessionStorage {});
    // All suites are secure, so clients choose the one that is fast for them. A configured list of suites is in the
    // operator's order.
    server.ignore_client_order = !config.cipher_suites.is_empty();
    // Data sent before the client has finished could reach a client with an invalid certificate.
    server.send_half_rtt_data = false;
    Ok(server)
}

/// The named suites, in their order; all suites if `names` is empty.
fn provider(names: &[String]) -> CryptoProvider {
    let mut provider = crypto::default_provider();
    if !names.is_empty() {
        let find = |name: &String| {
            let known = crypto::ALL_CIPHER_SUITES.iter().copied();
            known.into_iter().find(|suite| suite.suite().as_str() == Some(name))
        };
        provider.cipher_suites = names.iter().filter_map(find).collect();
    }
    provider
}

fn client_verifier(
    auth: &config::ClientAuth,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsConfigError> {
    let (Some(file), true) = (&auth.ca_file, auth.mode != ClientAuthMode::Off) else {
        return Ok(None);
    };
    let mut roots = RootCertStore::empty();
    for authority in certificate::read_chain(file)? {
        roots.add(authority).map_err(|error| format!("{}: {error}", file.display()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = match auth.mode {
        ClientAuthMode::Optional => builder.allow_unauthenticated(),
        ClientAuthMode::Required | ClientAuthMode::Off => builder,
    };
    builder.build().map(Some).map_err(|error| format!("{}: {error}", file.display()).into())
}
