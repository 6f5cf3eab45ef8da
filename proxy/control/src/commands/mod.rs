//! The control socket: a small HTTP API with JSON over a unix socket, by which commands such as `sluice reload` change
//! what is in force. `config/openapi.yaml` is its contract, tested against it.
//!
//! It runs on the control-plane thread. The socket has mode 0600, and whoever connects must be the user that sluice
//! runs as, or root. It has no address on any network, so no web page can reach it.

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
pub use client::{ClientError, call, request};
pub(crate) use socket::answers;
pub use socket::default_path;
pub(crate) use socket::{Listener, SecondName};

/// Connections served at once; further ones wait in the backlog.
const CONNECTIONS_MAX: usize = 32;
/// Bytes of a request head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// From a connection's begin to the end of its request head.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after accepting failed, which is for want of descriptors as a rule.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until dropped. To be run on the control plane's own set of tasks.
pub(crate) async fn serve(listener: Listener, api: Rc<impl Api + 'static>) {
    let listener = match listener.to_tokio() {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the control socket has failed"),
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
            Ok(_) => tracing::warn!("another user has tried the control socket"),
            Err(error) => {
                // Once in a row: each attempt would log another line.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "the control socket cannot accept");
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
    // One that goes away before its answer still gets what it asked for done: requests are carried out by tasks of
    // their own where they must not break off.
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
