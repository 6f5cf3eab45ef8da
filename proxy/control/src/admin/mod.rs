//! The admin listener: health, metrics, clusters, configuration and the status page. Read-only.
//!
//! Runs on the control thread, never on a worker. On other addresses than loopback it requires a token. On loopback it
//! serves any local client, except browsers that request it from pages of other sites (`gate`).

mod answer;
mod events;
mod gate;
mod token;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use events::Lease;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sluice_config::{Address, Config};
use sluice_core::metrics::Metrics;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::{AbortHandle, JoinSet};

use crate::status::Live;
pub(crate) use events::Streams;
pub use gate::Gate;
pub(crate) use gate::SharedToken;
use gate::is_loopback;
pub use token::{Token, TokenError};

/// Maximum number of connections; further ones wait in the backlog.
const CONNECTIONS_MAX: usize = 64;

/// Maximum bytes of a request head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// From accepting a connection to the end of its request head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Lifetime of a connection, which carries one request, so that a reader who stops cannot occupy a slot forever. A
/// stream of events lasts while they are read.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of an unread response that the kernel may buffer, and how long it waits for a peer that disappeared. With the
/// kernel's defaults a stalled reader of events would be noticed after hours.
const SEND_BUFFER_BYTES: usize = 64 << 10;
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// Delay after accepting failed, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Creates a JSON document for a request. Runs on the control thread.
pub type JsonSource = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// The data behind the paths.
pub struct AdminState {
    /// Set when the drain starts; `/healthz` is 503 from then on.
    pub draining: Arc<AtomicBool>,
    /// Shown at `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Shown at `/clusters`.
    pub clusters: JsonSource,
    /// Shown at `/config`.
    pub config: JsonSource,
    /// Shown at `/status.json` and `/events`.
    pub(crate) live: Arc<Live>,
    /// Serves only /metrics and /healthz.
    pub metrics_only: bool,
    /// Decides which requests are allowed.
    pub gate: Gate,
    /// Slots for readers of `/events`.
    pub(crate) streams: Streams,
}

/// The listener and its gate, created before privileges are dropped, because only root may be able to read the token
/// file.
#[derive(Debug)]
pub struct Admin {
    /// The socket.
    pub listener: AdminListener,
    /// Decides which requests are allowed.
    pub gate: Gate,
    /// The token that requests must contain, if any.
    pub(crate) token: Option<SharedToken>,
}

impl Admin {
    /// Binds the configured admin listener, or takes over the socket that another process passed.
    ///
    /// # Errors
    /// A sentence that names the wrong key.
    pub(crate) fn open(config: &Config, passed: Option<OwnedFd>) -> Result<Option<Self>, TokenError> {
        let Some(address) = &config.admin else {
            return Ok(None);
        };
        let token = config.admin_token_file.as_deref().map(Token::read).transpose();
        let token = token.map_err(|error| format!("admin_token_file: {error}"))?;
        let listener = match passed {
            Some(socket) => Ok(AdminListener::of(socket, address)),
            None => AdminListener::bind(address, token.is_some() || config.admin_metrics_only),
        };
        let listener = listener.map_err(|error| format!("admin: cannot listen on {address}: {error}"))?;
        let token = token.map(|token| Arc::new(ArcSwap::from_pointee(token)));
        Ok(Some(Self { gate: Gate::new(&listener, address, token.clone()), listener, token }))
    }
}

/// Whether another process listens at the configured address.
pub(crate) fn is_taken(config: &Config) -> bool {
    let address = match &config.admin {
        Some(Address::Ip(address)) => *address,
        _ => return false,
    };
    TcpListener::bind(address).is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
}

/// A bound socket, created before privileges are dropped.
#[derive(Debug)]
pub enum AdminListener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A unix socket.
    Unix(UnixListener),
}

impl AdminListener {
    /// Binds an address. A unix socket without a listening process is replaced; the new one is accessible to its owner
    /// and group only.
    ///
    /// # Errors
    /// When the name does not resolve, the address cannot be bound, or it is not a loopback address and it may not be open
    /// to everyone.
    pub fn bind(address: &Address, may_be_open: bool) -> io::Result<Self> {
        match address {
            Address::Ip(address) => bind_tcp(&[*address], may_be_open),
            Address::Name(host, port) => {
                let addresses: Vec<_> = (host.as_str(), *port).to_socket_addrs()?.collect();
                bind_tcp(&addresses, may_be_open)
            }
            Address::Unix(path) => bind_unix(path).map(Self::Unix),
        }
    }
}

impl AdminListener {
    /// A socket that another process has bound to `address`.
    pub(crate) fn of(socket: OwnedFd, address: &Address) -> Self {
        match address {
            Address::Unix(_) => Self::Unix(socket.into()),
            Address::Ip(_) | Address::Name(..) => Self::Tcp(socket.into()),
        }
    }

    /// A duplicate of its socket, to pass to another process.
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

fn bind_tcp(addresses: &[SocketAddr], may_be_open: bool) -> io::Result<AdminListener> {
    match addresses.iter().find(|address| !is_loopback(address.ip())) {
        Some(open) if !may_be_open => {
            let means = format!(
                "{} is not a loopback address, so anyone could read it; write admin_token_file, or \
                 127.0.0.1:{}",
                open.ip(),
                open.port()
            );
            Err(io::Error::new(io::ErrorKind::PermissionDenied, means))
        }
        _ => TcpListener::bind(addresses).map(AdminListener::Tcp),
    }
}

impl fmt::Display for AdminListener {
    /// The bound address: port 0 is replaced by the real port.
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

/// Whether it is a socket file without a listening process. Anything else fails differently and stays.
fn is_stale(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    is_socket
        && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Serves until dropped, which also drops its connections. Needs a tokio runtime.
///
/// # Errors
/// When the socket cannot be registered with the runtime.
pub async fn serve(listener: AdminListener, state: Arc<AdminState>) -> io::Result<Infallible> {
    match listener {
        AdminListener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let accept_one = async || {
                let (stream, _) = listener.accept().await?;
                let socket = socket2::SockRef::from(&stream);
                // If this fails, a dead stream is only noticed later.
                let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
                let _ = socket.set_tcp_user_timeout(Some(PEER_TIMEOUT));
                Ok(stream)
            };
            Ok(accept(state, accept_one).await)
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
    let mut asking = Asking::default();
    let mut failing = false;
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            asking.end_oldest();
            connections.join_next().await;
        }
        match accept().await {
            Ok(stream) => {
                failing = false;
                let has_asked = Arc::<AtomicBool>::default();
                let task = connections.spawn(connection(stream, Arc::clone(&state), Arc::clone(&has_asked)));
                asking.begin(task, has_asked);
            }
            Err(error) => {
                // Logged once per series of failures.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "the admin listener cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Connections in order of arrival. The oldest one without a request is closed first, so that idle connections do not
/// keep others out.
#[derive(Default)]
struct Asking(VecDeque<(AbortHandle, Arc<AtomicBool>)>);

impl Asking {
    fn begin(&mut self, task: AbortHandle, has_asked: Arc<AtomicBool>) {
        self.0.retain(|(task, has_asked)| !task.is_finished() && !has_asked.load(Relaxed));
        self.0.push_back((task, has_asked));
    }

    /// Closes the oldest connection that has not sent a request, if there is one.
    fn end_oldest(&mut self) {
        while let Some((task, has_asked)) = self.0.pop_front() {
            if !task.is_finished() && !has_asked.load(Relaxed) {
                return task.abort();
            }
        }
    }
}

async fn connection<S>(stream: S, state: Arc<AdminState>, has_asked: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let lease = Lease::of(CONNECTION_TIMEOUT);
    let service = service_fn(|request| {
        has_asked.store(true, Relaxed);
        let response = answer::answer(&request, &state, &lease);
        async { Ok::<_, Infallible>(response) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // Any error is the reader's; there is nothing to recover and no one to notify.
    tokio::select! {
        _ = served => {}
        () = lease.expired() => {}
    }
}

#[cfg(test)]
mod tests;
