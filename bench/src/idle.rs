//! Connections that ask once and then wait: what they cost the server in memory.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use rustls::ClientConfig;

use super::client::{Client, get};
use super::server::Server;

/// Every so many connections one is asked again at the end.
const ASK_AGAIN: usize = 100;
/// Who fails so often in a row will not do it any more.
const FAILURES_MAX: usize = 100;

/// What was found.
pub(super) struct Idle {
    /// Memory added by all of them.
    pub(super) added_kib: f64,
    /// Connections that were open at the end.
    pub(super) open: usize,
    /// Those that failed, or did not answer again.
    pub(super) errors: usize,
}

/// Opens the connections, each with one request, and sees what `server` has grown by.
///
/// # Errors
/// When the server's memory cannot be read.
pub(super) fn measure(
    server: &Server,
    (address, tls): (SocketAddr, Option<&Arc<ClientConfig>>),
    path: &str,
    count: usize,
) -> Result<Idle> {
    let request = get(address, path, "keep-alive");
    let before = server.resident_kib()?;
    let mut open = Vec::with_capacity(count);
    let mut errors = 0;
    for _ in 0..count {
        let client = match tls {
            Some(config) => Client::secure(address, config),
            None => Client::connect(address),
        };
        let client = client.and_then(|mut client| {
            client.ask(&request)?;
            Ok(client)
        });
        match client {
            Ok(client) => open.push(client),
            Err(_) => errors += 1,
        }
        if errors > FAILURES_MAX && open.len() < errors {
            break;
        }
    }
    let added_kib = server.resident_kib()? as f64 - before as f64;
    for client in open.iter_mut().step_by(ASK_AGAIN) {
        if client.ask(&request).is_err() {
            errors += 1;
        }
    }
    Ok(Idle { added_kib, open: open.len(), errors })
}
