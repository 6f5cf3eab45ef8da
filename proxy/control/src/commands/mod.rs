//! The control socket: a small HTTP API with JSON over a unix socket, through which commands such as `sluice reload`
//! change the running process. `config/openapi.yaml` is its contract, and is tested against it.
//!
//! Runs on the control thread. The socket has mode 0600, and a client must be the user that sluice runs as, or root. It
//! is not reachable over a network, so no web page can use it.

mod api;
mod client;
mod operations;
mod socket;

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

pub(crate) use api::{Api, Failure, Upgrade, read};
pub use api::{BANS, CACHES, FLEET};
pub use client::{ClientError, call, request};
pub(crate) use socket::answers;
pub use socket::default_path;
pub(crate) use socket::{Listener, SecondName};

/// Maximum number of connections; further ones wait in the backlog.
const CONNECTIONS_MAX: usize = 32;
/// Maximum bytes of a request head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// From accepting a connection to the end of its request head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay after accepting failed, usually for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until dropped. Must run on the control plane's local task set.
pub(crate) async fn serve(listener: Listener, api: Rc<impl Api + 'static>) {
    let listener = match listener.to_tokio() {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the control socket failed"),
    };
    let mut connections = JoinSet::new();
    let mut failing = false;
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) if socket::is_ours(&stream) => {
                failing = false;
                connections.spawn_local(connection(stream, Rc::clone(&api)));
            }
            Ok(_) => tracing::warn!("refused a connection of another user to the control socket"),
            Err(error) => {
                // Logged once per series of failures.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "the control socket cannot accept connections");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, api: Rc<impl Api>) {
    let service = service_fn(|request| {
        let api = Rc::clone(&api);
        async move { Ok::<_, Infallible>(api::answer(&*api, request).await) }
    });
    // A command completes even if its client disconnects: operations that must not be interrupted run in their own
    // tasks.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

#[cfg(test)]
mod tests;
