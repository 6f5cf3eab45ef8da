//! The admin listener: health, metrics, clusters and configuration, to read only.
//!
//! Runs on the control-plane thread, never on a worker. It has no secrets to tell and nothing to change,
//! so it asks for no credentials; the default configuration binds it to loopback.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;

use crate::config::Address;
use crate::metrics::{self, Metrics};

/// Connections served at once; further ones wait in the backlog.
const CONNECTIONS_MAX: usize = 64;

/// Bytes buffered of a request head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// From a connection's begin to the end of its request head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The whole of a connection, which carries one request: a reader who stops cannot hold a place for good.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause after accepting failed, which is for want of descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const METRICS: HeaderValue = HeaderValue::from_static(metrics::CONTENT_TYPE);

const INDEX: &str = "\
sluice admin

/healthz    ok, or 503 while draining
/metrics    OpenMetrics text
/clusters   clusters and their endpoints, JSON
/config     the configuration in force, JSON
";

/// Makes a JSON document at the time of a request. Runs on the control-plane thread.
pub type JsonSource = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// What the endpoints tell of.
pub struct AdminState {
    /// Set when the drain begins; `/healthz` is 503 from then on.
    pub draining: Arc<AtomicBool>,
    /// Rendered at `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Asked at `/clusters`.
    pub clusters: JsonSource,
    /// Asked at `/config`.
    pub config: JsonSource,
}

/// A bound socket, to be made before privileges are dropped.
#[derive(Debug)]
pub enum AdminListener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

impl AdminListener {
    /// Binds an address. A unix socket that nobody listens on any more is replaced; a new one is open to its
    /// owner and group only.
    ///
    /// # Errors
    /// When the name does not resolve or the address cannot be bound.
    pub fn bind(address: &Address) -> io::Result<Self> {
        match address {
            Address::Ip(address) => Ok(Self::Tcp(TcpListener::bind(address)?)),
            Address::Name(host, port) => {
                let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
                Ok(Self::Tcp(TcpListener::bind(&addresses[..])?))
            }
            Address::Unix(path) => bind_unix(path).map(Self::Unix),
        }
    }
}

impl AdminListener {
    /// One that another process has bound to `address`.
    pub(crate) fn of(socket: OwnedFd, address: &Address) -> Self {
        match address {
            Address::Unix(_) => Self::Unix(socket.into()),
            Address::Ip(_) | Address::Name(..) => Self::Tcp(socket.into()),
        }
    }

    /// Another hold on its socket, to pass it on by.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn hold(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Tcp(listener) => Ok(listener.try_clone()?.into()),
            Self::Unix(listener) => Ok(listener.try_clone()?.into()),
        }
    }
}

impl fmt::Display for AdminListener {
    /// The address as bound: a port of 0 has become a real one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(listener) => listener.local_addr().map_err(|_| fmt::Error)?.fmt(f),
            Self::Unix(listener) => {
                let address = listener.local_addr().map_err(|_| fmt::Error)?;
                write!(f, "unix:{}", address.as_pathname().unwrap_or(Path::new("")).display())
            }
        }
    }
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
            std::fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        other => other?,
    };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))?;
    Ok(listener)
}

/// A socket file whose listener is gone. Anything that is no socket refuses in another way, and stays.
fn is_stale(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Serves until dropped, which drops its connections as well. To be run on a tokio runtime.
///
/// # Errors
/// When the socket cannot be handed to the runtime.
pub async fn serve(listener: AdminListener, state: Arc<AdminState>) -> io::Result<Infallible> {
    match listener {
        AdminListener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            Ok(accept(state, async || listener.accept().await.map(|(stream, _)| stream)).await)
        }
        AdminListener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::UnixListener::from_std(listener)?;
            Ok(accept(state, async || listener.accept().await.map(|(stream, _)| stream)).await)
        }
    }
}

async fn accept<S>(state: Arc<AdminState>, accept: impl AsyncFn() -> io::Result<S>) -> Infallible
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut failing = false;
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        match accept().await {
            Ok(stream) => {
                failing = false;
                connections.spawn(connection(stream, Arc::clone(&state)));
            }
            Err(error) => {
                // Once in a row: each attempt would log another line.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "the admin listener cannot accept");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection<S>(stream: S, state: Arc<AdminState>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let response = answer(&request, &state);
        async { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // Whatever went wrong is the reader's; there is nothing to recover and nobody else to tell.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, served).await;
}

fn answer<B>(request: &Request<B>, state: &AdminState) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if !matches!(path, "/" | "/healthz" | "/metrics" | "/clusters" | "/config") {
        return response(StatusCode::NOT_FOUND, TEXT, "not found; / lists what there is\n".into());
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/healthz" if state.draining.load(Relaxed) => {
            response(StatusCode::SERVICE_UNAVAILABLE, TEXT, "draining\n".into())
        }
        "/healthz" => response(StatusCode::OK, TEXT, "ok\n".into()),
        "/metrics" => response(StatusCode::OK, METRICS, state.metrics.render()),
        "/clusters" => json(&(state.clusters)()),
        "/config" => json(&(state.config)()),
        _ => response(StatusCode::OK, TEXT, INDEX.into()),
    }
}

fn json(value: &serde_json::Value) -> Response<Full<Bytes>> {
    response(StatusCode::OK, JSON, format!("{value:#}\n"))
}

fn response(status: StatusCode, content_type: HeaderValue, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests;
