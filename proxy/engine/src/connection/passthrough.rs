//! Connections of `tls-passthrough` listeners: one tunnel each, to the cluster of the server that the ClientHello
//! names.
//!
//! The TLS bytes stay unread in the reader; the tunnel takes them unchanged.

use std::rc::Rc;
use std::sync::Arc;

use sluice_config::{Passthrough, StartTls};
use sluice_core::cluster::Cluster;
use sluice_core::error::Reason;
use sluice_http::client_hello::{self, ClientHello};
use sluice_http::postgres::{self, Opening};
use sluice_net::buffers::IDLE_BYTES;

use super::Connection;
use super::account::Account;
use crate::progress::Progress;
use crate::snapshot::Snapshot;
use crate::worker::Phase;

/// Descriptions of alerts (RFC 8446 6).
const DECODE_ERROR: u8 = 50;
const UNRECOGNIZED_NAME: u8 = 112;

/// What is known of a client before its tunnel starts.
struct Asked {
    server_name: Option<String>,
    /// Whether it requested TLS with PostgreSQL's SSLRequest; the endpoint then gets one, too.
    by_request: bool,
}

/// Why there is nothing to tunnel.
enum Ended {
    /// The client closed before it sent anything.
    Silently,
    With(Reason),
}

impl From<Reason> for Ended {
    fn from(reason: Reason) -> Self {
        Self::With(reason)
    }
}

impl Connection {
    /// Tunnels TLS to the requested cluster until it ends.
    pub(super) async fn pass_through(mut self) {
        let listener = Arc::clone(&self.listener);
        let Some(config) = &listener.config.passthrough else {
            return;
        };
        let worker = Rc::clone(&self.worker);
        let mut account = Account::new(&worker, self.peer.address, &self.session.head);
        let asked = match self.asked(config).await {
            Ok(asked) => asked,
            Err(Ended::Silently) => return,
            Err(Ended::With(reason)) => return self.decline(&account, reason).await,
        };
        let snapshot = account.snapshot.clone();
        let name = asked.server_name.as_deref().unwrap_or_default();
        if let Some(reason) = self.denial(&account, name.as_bytes()) {
            return self.decline(&account, reason).await;
        }
        let cluster = self.cluster_of(config, asked.server_name.as_deref(), &snapshot);
        account.server_name = asked.server_name;
        match cluster {
            Some(cluster) => self.tunnel_to(account, cluster, asked.by_request).await,
            None => self.decline(&account, Reason::UnknownServerName).await,
        }
    }

    fn cluster_of<'s>(
        &self,
        config: &Passthrough,
        server_name: Option<&str>,
        snapshot: &'s Snapshot,
    ) -> Option<&'s Arc<Cluster>> {
        let named = server_name.and_then(|name| config.cluster_of(name));
        let name = named.or(self.listener.config.cluster.as_deref())?;
        snapshot.clusters.get(name)
    }

    /// Waits for a complete ClientHello, and for what precedes it.
    async fn asked(&mut self, config: &Passthrough) -> Result<Asked, Ended> {
        self.io.deadline.set(config.client_hello_timeout_ms);
        let by_request = match config.starttls {
            StartTls::Off => false,
            StartTls::Postgres => self.answer_requests().await?,
        };
        loop {
            match client_hello::parse(self.io.reader.data(), config.client_hello_bytes_max) {
                ClientHello::Complete(server_name) => return Ok(Asked { server_name, by_request }),
                ClientHello::Partial => self.more().await?,
                ClientHello::TooLarge => return Err(Reason::ClientHelloTooLarge.into()),
                ClientHello::NotTls => return Err(Reason::NotTls.into()),
                ClientHello::Malformed => return Err(Reason::BadClientHello.into()),
            }
        }
    }

    /// Consumes PostgreSQL's requests; returns whether one of them requested TLS.
    async fn answer_requests(&mut self) -> Result<bool, Ended> {
        let mut declined = false;
        loop {
            match postgres::opening(self.io.reader.data()) {
                Opening::Direct => return Ok(false),
                Opening::Ssl => {
                    self.answer_request(postgres::YES).await?;
                    return Ok(true);
                }
                // The client requests TLS next. A client that repeats this request could continue for ever.
                Opening::Gssapi if !declined => {
                    declined = true;
                    self.answer_request(postgres::NO).await?;
                }
                Opening::Gssapi | Opening::Other => return Err(Reason::NotTls.into()),
                Opening::Partial => self.more().await?,
            }
        }
    }

    async fn answer_request(&mut self, answer: u8) -> Result<(), Ended> {
        self.io.reader.consume(postgres::REQUEST_BYTES);
        let settled = self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await;
        let mut out = self.io.writer.spare();
        out.push(answer);
        self.io.writer.submit(out, 0);
        if matches!(settled, Some(Ok(()))) { Ok(()) } else { Err(Reason::ClientGone.into()) }
    }

    /// Waits for more bytes from the client.
    async fn more(&mut self) -> Result<(), Ended> {
        let begun = !self.io.reader.data().is_empty();
        let filled = match begun {
            true => self.io.deadline.run(self.io.reader.fill(IDLE_BYTES)).await,
            false => self.first_bytes(IDLE_BYTES).await,
        };
        match filled {
            Some(Ok(count)) if count > 0 => {
                self.set_phase(Phase::Busy);
                Ok(())
            }
            None => Err(Reason::ClientHelloTimeout.into()),
            _ if begun => Err(Reason::ClientGone.into()),
            _ => Err(Ended::Silently),
        }
    }

    /// Ends a connection without a tunnel. A TLS client gets an alert.
    async fn decline(mut self, account: &Account, reason: Reason) {
        self.record(account, &Progress::default(), Some(reason));
        let alert = match reason {
            Reason::UnknownServerName => UNRECOGNIZED_NAME,
            Reason::BadClientHello | Reason::ClientHelloTooLarge => DECODE_ERROR,
            _ => return,
        };
        self.set_phase(Phase::Busy);
        if matches!(self.io.deadline.run(self.io.writer.settle(&self.io.deadline)).await, Some(Ok(()))) {
            self.io.writer.submit(vec![21, 3, 3, 0, 2, 2, alert], 0);
            self.close(true).await;
        }
    }
}
