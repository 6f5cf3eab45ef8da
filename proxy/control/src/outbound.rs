//! Connections to the URLs that the configuration names: plain ones and verified TLS.

use std::io;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use sluice_config::{Address, HttpUrl};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection as hyper takes it.
pub(crate) type Connection = TokioIo<Box<dyn Duplex>>;

/// Connects; reads the CAs of this host once, when the first https URL needs them.
#[derive(Default)]
pub(crate) struct Dialer {
    tls: OnceCell<TlsConnector>,
}

impl Dialer {
    /// A new connection to the host of `url`. With https, its certificate is verified by the CAs of this host. Has no
    /// time limit of its own.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(crate) async fn connect(&self, url: &HttpUrl) -> io::Result<Connection> {
        let stream = match &url.address {
            Address::Ip(address) => TcpStream::connect(address).await?,
            Address::Name(host, port) => TcpStream::connect((host.as_str(), *port)).await?,
            Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        if !url.tls {
            return Ok(TokioIo::new(Box::new(stream)));
        }
        let tls = self.tls.get_or_try_init(connector).await?;
        Ok(TokioIo::new(Box::new(tls.connect(server_name(&url.address)?, stream).await?)))
    }
}

fn server_name(address: &Address) -> io::Result<ServerName<'static>> {
    match address {
        Address::Ip(address) => Ok(ServerName::from(address.ip())),
        Address::Name(host, _) => ServerName::try_from(host.clone()).map_err(io::Error::other),
        Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

async fn connector() -> io::Result<TlsConnector> {
    // Reads more than a hundred certificates from files.
    let roots = tokio::task::spawn_blocking(host_roots).await.map_err(io::Error::other)?;
    let roots =
        roots.ok_or_else(|| io::Error::other("this host has no trusted CAs; install ca-certificates"))?;
    let config = ClientConfig::builder_with_provider(Arc::new(sluice_core::tls::crypto::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The CAs that this host trusts, or those of the variables SSL_CERT_FILE and SSL_CERT_DIR. `None` if there are none.
/// Blocks.
pub(crate) fn host_roots() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    (!roots.is_empty()).then_some(roots)
}
