//! TLS to the endpoints of one cluster: trusted authorities, the client certificate, and resumable sessions.
//!
//! This module transfers no bytes; see `stream::tls` for the workers' connections and `health` for the checks.

use crate::tls::TlsConfigError;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::{fs, io};

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, Error, RootCertStore};
use sluice_config::{Config, TlsVersion, UpstreamTls};

use super::Finding;
use super::roots::system_roots;
use super::verify::{self, Verifier};
use crate::clock;

/// Maximum size of a PEM file, in bytes; the roots of a whole system take a few hundred thousand.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Minimum interval between log messages about failed handshakes of a cluster, in milliseconds.
const WARN_INTERVAL_MS: u64 = 10_000;

/// The purpose of a connection, which the endpoint learns by ALPN (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, with many concurrent exchanges.
    Http2,
    /// Whatever protocol the client of a tunnel uses.
    Opaque,
}

/// A cluster's TLS to its endpoints, shared by all workers.
pub struct UpstreamSessions {
    cluster: String,
    config: UpstreamTls,
    current: ArcSwap<Current>,
    warned_ms: AtomicU64,
}

/// The state built from changed files, before it is in use.
pub struct Refreshed(Current);

/// The state built from the files at one moment.
struct Current {
    files: Files,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
    opaque: Arc<ClientConfig>,
}

/// What is wrong with a key of a cluster's `tls`.
#[derive(Debug)]
struct BadKey {
    key: &'static str,
    message: String,
}

impl BadKey {
    fn new(key: &'static str, message: impl Into<String>) -> Self {
        Self { key, message: message.into() }
    }

    /// Adds the whole path of the key.
    fn of(self, cluster: &str) -> TlsConfigError {
        let Self { key, message } = self;
        format!("clusters.{cluster}.tls.{key}: {message}").into()
    }
}

/// The content of the files.
#[derive(PartialEq, Eq)]
struct Files {
    authorities: Option<Vec<u8>>,
    /// Certificate and key.
    shown: Option<(Vec<u8>, Vec<u8>)>,
}

impl UpstreamSessions {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// Which file is wrong and why, with the path of its key in the configuration.
    pub fn load(cluster: &str, config: &UpstreamTls) -> Result<Self, TlsConfigError> {
        let current = Files::read(config).and_then(|files| Current::new(config, files));
        let current = current.map_err(|bad| bad.of(cluster))?;
        if config.danger_skip_verification {
            let pinned = !config.pinned_sha256.is_empty();
            tracing::warn!(
                cluster,
                pinned,
                "certificates of endpoints are not verified (danger_skip_verification)"
            );
        }
        Ok(Self {
            cluster: cluster.to_owned(),
            config: config.clone(),
            current: ArcSwap::from_pointee(current),
            warned_ms: AtomicU64::new(0),
        })
    }

    /// Reads the files again; returns the new state if they have changed.
    ///
    /// # Errors
    /// As [`UpstreamSessions::load`].
    pub fn refreshed(&self) -> Result<Option<Refreshed>, TlsConfigError> {
        let at = |bad: BadKey| bad.of(&self.cluster);
        let files = Files::read(&self.config).map_err(at)?;
        if files == self.current.load().files {
            return Ok(None);
        }
        Ok(Some(Refreshed(Current::new(&self.config, files).map_err(at)?)))
    }

    /// Uses the new state for new connections.
    pub fn put(&self, refreshed: Refreshed) {
        self.current.store(Arc::new(refreshed.0));
        tracing::info!(cluster = self.cluster, "the TLS files have changed and are in use");
    }

    /// Starts a session with the endpoint whose host is `host`, which may include a port.
    ///
    /// # Errors
    /// If `host` is not a valid host.
    pub fn begin(&self, host: &str, purpose: Purpose) -> Result<ClientConnection, Error> {
        let name = self.server_name(host).map_err(|error| Error::General(error.to_string()))?;
        ClientConnection::new(self.client(purpose), name)
    }

    /// The configuration of new sessions.
    pub fn client(&self, purpose: Purpose) -> Arc<ClientConfig> {
        let current = self.current.load();
        match purpose {
            Purpose::Http1 => Arc::clone(&current.http1),
            Purpose::Http2 => Arc::clone(&current.http2),
            Purpose::Opaque => Arc::clone(&current.opaque),
        }
    }

    /// The name that the certificate must be valid for.
    ///
    /// # Errors
    /// If `host` is not a valid host.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
        let name = self.config.server_name.as_deref().unwrap_or_else(|| without_port(host));
        ServerName::try_from(name.to_owned())
    }

    /// Logs why a handshake failed, unless a failure was logged a moment ago.
    pub fn warn(&self, endpoint: &str, error: &Error) {
        let (now, last) = (clock::now_ms(), self.warned_ms.load(Relaxed));
        let is_due = last == 0 || now.saturating_sub(last) >= WARN_INTERVAL_MS;
        if is_due && self.warned_ms.compare_exchange(last, now.max(1), Relaxed, Relaxed).is_ok() {
            let reason = verify::describe(error);
            tracing::warn!(
                cluster = self.cluster,
                endpoint,
                reason,
                "the TLS handshake with an endpoint failed"
            );
        }
    }
}

/// Checks the files that clusters name for TLS to their endpoints. Returns mistakes and warnings.
pub(super) fn check(config: &Config) -> Vec<Finding> {
    let secured = config.clusters.iter().filter_map(|(name, cluster)| Some((name, cluster.tls.as_ref()?)));
    let mut findings = Vec::new();
    for (name, tls) in secured {
        let mut add = |key: &str, message: String, is_mistake| {
            findings.push(Finding { path: format!("clusters.{name}.tls.{key}"), message, is_mistake });
        };
        if let Err(BadKey { key, message }) = Files::read(tls).and_then(|files| Current::new(tls, files)) {
            add(key, message, true);
        }
        if tls.danger_skip_verification {
            add("danger_skip_verification", "certificates of endpoints are not verified".to_owned(), false);
        }
    }
    findings
}

/// The host of `host:port`; an IPv6 address without its brackets.
fn without_port(host: &str) -> &str {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return address;
    }
    host.rsplit_once(':').map_or(host, |(name, _)| name)
}

impl Files {
    fn read(config: &UpstreamTls) -> Result<Self, BadKey> {
        let read = |key, path: &Path| {
            read(path)
                .map_err(|error| BadKey::new(key, format!("{} cannot be read: {error}", path.display())))
        };
        let authorities = config.ca_file.as_deref().map(|path| read("ca_file", path)).transpose()?;
        let shown = match &config.client_certificate {
            Some(files) => Some((
                read("client_certificate.cert", &files.cert)?,
                read("client_certificate.key", &files.key)?,
            )),
            None => None,
        };
        Ok(Self { authorities, shown })
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a FIFO would wait for its writer.
    let found = fs::metadata(path)?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it is not a regular file of at most {FILE_BYTES_MAX} bytes")));
    }
    fs::read(path)
}

impl Current {
    fn new(config: &UpstreamTls, files: Files) -> Result<Self, BadKey> {
        let provider = Arc::new(crate::tls::crypto::default_provider());
        // The first random bytes of a process take a tenth of a second (entropy from CPU jitter); no request should
        // wait for that.
        let _ = provider.secure_random.fill(&mut [0]);
        let versions: &[_] = match config.min_version {
            TlsVersion::V12 => &[&TLS13, &TLS12],
            TlsVersion::V13 => &[&TLS13],
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_protocol_versions(versions)
            .map_err(|error| BadKey::new("min_version", error.to_string()))?;
        let verifier = verifier(config, &files, provider)?;
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let opaque = match &files.shown {
            None => builder.with_no_client_auth(),
            Some(shown) => {
                let (chain, key) = identity(config, shown)?;
                let made = builder.with_client_auth_cert(chain, key);
                made.map_err(|error| match error {
                    Error::InconsistentKeys(_) => {
                        BadKey::new("client_certificate.key", "the key does not match cert")
                    }
                    error => BadKey::new("client_certificate.cert", error.to_string()),
                })?
            }
        };
        // A copy resumes the same sessions because it shares their store.
        let mut http1 = opaque.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut http2 = opaque.clone();
        http2.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { files, http1: Arc::new(http1), http2: Arc::new(http2), opaque: Arc::new(opaque) })
    }
}

fn verifier(config: &UpstreamTls, files: &Files, provider: Arc<CryptoProvider>) -> Result<Verifier, BadKey> {
    let pins = config.pinned_sha256.clone();
    if config.danger_skip_verification {
        return Ok(Verifier::skipping(&provider, pins));
    }
    let roots = match &files.authorities {
        None => system_roots().map_err(|error| BadKey::new("ca_file", error.to_string()))?,
        Some(pem) => authorities(pem).map_err(|error| named(config.ca_file.as_deref(), "ca_file", &error))?,
    };
    Verifier::new(roots, provider, pins).map_err(|error| BadKey::new("ca_file", error.to_string()))
}

/// What is wrong with the file that a key names.
fn named(path: Option<&Path>, key: &'static str, error: &TlsConfigError) -> BadKey {
    let path = path.map(Path::display).map(|shown| shown.to_string()).unwrap_or_default();
    BadKey::new(key, format!("{path} {error}"))
}

fn authorities(pem: &[u8]) -> Result<Arc<RootCertStore>, TlsConfigError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate).map_err(|error| format!("contains an invalid CA certificate: {error}"))?;
    }
    Ok(Arc::new(roots))
}

/// The certificates of a PEM file; never empty.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| format!("is not PEM: {error}"))?;
    if found.is_empty() { Err("contains no certificate in PEM format".into()) } else { Ok(found) }
}

type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(config: &UpstreamTls, (cert, key): &(Vec<u8>, Vec<u8>)) -> Result<Shown, BadKey> {
    let paths = config.client_certificate.as_ref();
    let chain = certificates(cert);
    let chain = chain
        .map_err(|message| named(paths.map(|files| &*files.cert), "client_certificate.cert", &message))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| {
        let message = format!("contains no unencrypted key in PEM format: {error}");
        named(paths.map(|files| &*files.key), "client_certificate.key", &message.into())
    })?;
    Ok((chain, key))
}
