//! TLS sessions, and QUIC connections, with a listener whose certificate was created for this run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// The name in the certificate.
pub(super) const NAME: &str = "storm.test";

/// Creates sessions that negotiate HTTP/1.1, HTTP/2 or HTTP/3.
#[derive(Clone)]
pub(in super::super) struct Connector {
    http1: TlsConnector,
    http2: TlsConnector,
    http3: quinn::ClientConfig,
}

/// The files of the listener's certificate and key.
pub(in super::super) struct Files {
    pub(in super::super) certificate: PathBuf,
    pub(in super::super) key: PathBuf,
}

impl Connector {
    /// A certificate, written to `folder`, and a connector that trusts it.
    ///
    /// # Errors
    /// When it cannot be created or written.
    pub(in super::super) fn make(folder: &Path) -> Result<(Self, Files)> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).context("create a certificate")?;
        let files = Files { certificate: folder.join("site.pem"), key: folder.join("site.key") };
        fs::write(&files.certificate, made.cert.pem())?;
        fs::write(&files.key, made.signing_key.serialize_pem())?;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).context("trust the certificate")?;
        let config = |protocol: &[u8]| {
            let mut config =
                ClientConfig::builder().with_root_certificates(roots.clone()).with_no_client_auth();
            config.alpn_protocols = vec![protocol.to_vec()];
            config
        };
        let connector = |protocol| TlsConnector::from(Arc::new(config(protocol)));
        let quic = QuicClientConfig::try_from(config(b"h3"))?;
        let http3 = quinn::ClientConfig::new(Arc::new(quic));
        Ok((Self { http1: connector(b"http/1.1"), http2: connector(b"h2"), http3 }, files))
    }

    pub(super) async fn connect(&self, stream: TcpStream, http2: bool) -> Result<TlsStream<TcpStream>> {
        let connector = if http2 { &self.http2 } else { &self.http1 };
        Ok(connector.connect(ServerName::try_from(NAME)?, stream).await?)
    }

    /// What a QUIC endpoint needs to know.
    pub(super) fn quic(&self) -> quinn::ClientConfig {
        self.http3.clone()
    }
}
