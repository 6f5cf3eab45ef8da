//! A small origin inside the program, so that a first run has something to proxy to. Not for production traffic.

mod body;
mod pages;
#[cfg(test)]
mod tests;
mod websocket;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use body::DemoBody;

/// Which parameter of a request is wrong, and its valid range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, derive_more::From)]
#[error("{0}")]
#[from(String, &'static str)]
pub(crate) struct BadParameter(String);

/// Maximum number of connections; further ones wait in the backlog. Upgraded connections do not count.
const CONNECTIONS_MAX: usize = 4096;

/// From accepting a connection, or from the end of an exchange on it, to the next complete request head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(90);

/// Delay after accepting failed, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A running demo origin.
#[derive(Debug)]
pub struct Origin {
    /// Its address.
    pub address: SocketAddr,
    /// A duplicate of its socket, to pass to another process.
    pub socket: OwnedFd,
}

/// Starts the demo origin on its own thread, which runs until the process exits.
///
/// # Errors
/// When the thread cannot be started.
pub fn start(listener: std::net::TcpListener) -> io::Result<Origin> {
    listener.set_nonblocking(true)?;
    let (address, socket) = (listener.local_addr()?, listener.try_clone()?.into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let listener = {
        let _context = runtime.enter();
        TcpListener::from_std(listener)?
    };
    std::thread::Builder::new()
        .name("demo-origin".into())
        .spawn(move || match runtime.block_on(serve(listener)) {})?;
    Ok(Origin { address, socket })
}

async fn serve(listener: TcpListener) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(connection(stream, place));
            }
            Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

async fn connection(stream: TcpStream, _place: OwnedSemaphorePermit) {
    // Small pieces of a stream should be sent at once.
    let _ = stream.set_nodelay(true);
    let service = service_fn(async |request| Ok::<_, Infallible>(pages::answer(request).await));
    // An error means that the client went away; there is no one to notify.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades()
        .await;
}

fn plain(status: StatusCode, body: DemoBody) -> Response<DemoBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<DemoBody> {
    let mut response = plain(status, DemoBody::Whole(body.into()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
