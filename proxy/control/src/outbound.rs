//! Connections to the URLs that the configuration names: plain ones and verified TLS.

use std::fmt::Write;
use std::io;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use sluice_config::{Address, HttpUrl};
use sluice_core::tls::{crypto, system_roots};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection as hyper takes it.
pub(crate) type Connection = TokioIo<Box<dyn Duplex>>;

/// A new connection to the host of `url`. With https, its certificate is verified by the CAs of this host. Has no time
/// limit of its own.
///
/// # Errors
/// Why there is no connection.
pub(crate) async fn connect(url: &HttpUrl) -> io::Result<Connection> {
    if !url.tls {
        return connect_by(url, None).await;
    }
    // The first call reads more than a hundred certificates from files.
    let roots = tokio::task::spawn_blocking(system_roots).await.map_err(io::Error::other)?;
    let roots = roots.map_err(io::Error::other)?;
    let config = Arc::new(client_config(roots).map_err(io::Error::other)?);
    connect_by(url, Some(&config)).await
}

/// The same with these settings for https.
///
/// # Errors
/// Why there is no connection; https without settings is one.
pub(crate) async fn connect_by(url: &HttpUrl, tls: Option<&Arc<ClientConfig>>) -> io::Result<Connection> {
    let stream = match &url.address {
        Address::Ip(address) => TcpStream::connect(address).await?,
        Address::Name(host, port) => TcpStream::connect((host.as_str(), *port)).await?,
        Address::Unix(_) => return Err(io::ErrorKind::Unsupported.into()),
    };
    if !url.tls {
        return Ok(TokioIo::new(Box::new(stream)));
    }
    let tls = TlsConnector::from(Arc::clone(tls.ok_or(io::ErrorKind::Unsupported)?));
    Ok(TokioIo::new(Box::new(tls.connect(server_name(&url.address)?, stream).await?)))
}

fn server_name(address: &Address) -> io::Result<ServerName<'static>> {
    match address {
        Address::Ip(address) => Ok(ServerName::from(address.ip())),
        Address::Name(host, _) => ServerName::try_from(host.clone()).map_err(io::Error::other),
        Address::Unix(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// TLS of a client that trusts these CAs.
///
/// # Errors
/// The cryptography of this build offers no protocol version.
pub(crate) fn client_config(roots: Arc<RootCertStore>) -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::default_provider()));
    Ok(builder.with_safe_default_protocol_versions()?.with_root_certificates(roots).with_no_client_auth())
}

/// An error with its causes, without repetitions.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            let _ = write!(text, ": {said}");
        }
        source = cause.source();
    }
    text
}
