//! Connections that send one request and then wait: the memory they cost the server.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use rustls::ClientConfig;

use super::client::{Client, get};
use super::server::Server;

/// At the end, one in this many connections sends another request.
const ASK_AGAIN: usize = 100;
/// After this many failures, with more failures than open connections, the measurement stops.
const FAILURES_MAX: usize = 100;

/// The result.
pub(super) struct Idle {
    /// Memory added by all of them.
    pub(super) added_kib: f64,
    /// Connections that were open at the end.
    pub(super) open: usize,
    /// Connections that failed, or did not respond again.
    pub(super) errors: usize,
}

/// Opens the connections, sends one request on each, and measures by how much `server` has grown.
///
/// # Errors
/// The server's memory cannot be read.
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
