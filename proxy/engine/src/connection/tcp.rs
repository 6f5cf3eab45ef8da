//! Connections of `tcp` listeners: one tunnel each, to an endpoint of the listener's cluster; also the tunnels of other
//! listeners.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_config::{Balance, ProxyProtocol};
use sluice_core::cluster::{Cluster, hash_key};
use sluice_core::error::Reason;
use sluice_core::record::BodyPath;
use sluice_http::postgres;
use sluice_http::proxy_protocol::{self, Expected, Header};
use sluice_net::buffers;
use sluice_net::deadline::Deadline;

use super::Connection;
use super::account::Account;
use crate::progress::Progress;
use crate::tunnel;
use crate::upstream::{self, Acquired, UpstreamConnection};
use crate::worker::Phase;

/// The headers that a listener expects first, if any.
fn expected(protocol: ProxyProtocol) -> Option<Expected> {
    match protocol {
        ProxyProtocol::Off => None,
        ProxyProtocol::V1 => Some(Expected { text: true, binary: false }),
        ProxyProtocol::V2 => Some(Expected { text: false, binary: true }),
        ProxyProtocol::Any => Some(Expected { text: true, binary: true }),
    }
}

impl Connection {
    /// Reads the PROXY protocol header that the listener expects; returns false when the connection must end.
    pub(super) async fn greet(&mut self) -> bool {
        let Some(expected) = expected(self.listener.config.proxy_protocol) else { return true };
        self.io.deadline.set(self.limits().header_timeout_ms);
        loop {
            let header = match self.io.reader.data() {
                [] => Header::Partial,
                data => proxy_protocol::parse(data, expected),
            };
            match header {
                Header::Complete(length, client) => {
                    self.io.reader.consume(length);
                    if let Some(client) = client {
                        (self.peer.address, self.peer.port) = (client.ip(), client.port());
                    }
                    self.peer.text = super::text_of(self.peer.address);
                    return self.enter();
                }
                Header::Invalid => {
                    self.record_connection(Reason::BadProxyProtocol);
                    return false;
                }
                Header::Partial => {}
            }
            let filled = match self.io.reader.data() {
                [] => self.first_bytes(buffers::IDLE_BYTES).await,
                _ => self.io.deadline.run(self.io.reader.fill(buffers::IDLE_BYTES)).await,
            };
            if !matches!(filled, Some(Ok(count)) if count > 0) {
                return false;
            }
            self.set_phase(Phase::Busy);
        }
    }

    /// Counts the connection for the client that the header names; false if it has too many.
    fn enter(&mut self) -> bool {
        let client = self.peer.address.to_canonical();
        if self.worker.snapshot().trusts(&client) {
            return true;
        }
        match self.listener.enter(client) {
            Ok(place) => {
                self.client_place = place.map(Box::new);
                true
            }
            Err(_) => {
                self.record_connection(Reason::TooManyConnections);
                false
            }
        }
    }

    pub(super) fn record_connection(&self, reason: Reason) {
        let account = Account::new(&self.worker, self.peer.address, &self.session.head);
        self.record(&account, &Progress::default(), Some(reason));
    }

    /// Tunnels this connection to its listener's cluster until it ends.
    pub(super) async fn tunnel_connection(self) {
        let account = Account::new(&self.worker, self.peer.address, &self.session.head);
        let name = self.peer.tls.as_deref().map_or("", |facts| &facts.server_name);
        if let Some(reason) = self.denial(&account, name.as_bytes()) {
            self.io.writer.stream().reset_on_close();
            return self.record(&account, &Progress::default(), Some(reason));
        }
        let snapshot = account.snapshot.clone();
        let cluster = self.listener.config.cluster.as_ref().and_then(|name| snapshot.clusters.get(name));
        if let Some(cluster) = cluster {
            self.tunnel_to(account, cluster, false).await;
        }
    }

    /// Tunnels this connection to a cluster until it ends. If `by_request`, first requests TLS from the endpoint with
    /// PostgreSQL's SSLRequest.
    pub(super) async fn tunnel_to(mut self, mut account: Account, cluster: &Arc<Cluster>, by_request: bool) {
        let worker = Rc::clone(&self.worker);
        self.set_phase(Phase::Busy);
        account.chosen = Some(Arc::clone(cluster));
        let mut progress = Progress { path: Some(BodyPath::Copy), ..Progress::default() };
        let mut acquired = match self.endpoint_of(cluster, &mut progress, by_request).await {
            Ok(acquired) => acquired,
            Err(reason) => {
                self.io.writer.stream().reset_on_close();
                return self.record(&account, &progress, Some(reason));
            }
        };
        let connection = &mut acquired.connection;
        let ends = tunnel::Ends {
            downstream: (&mut self.io.reader, &mut self.io.writer),
            upstream: (&mut connection.reader, &mut connection.writer),
        };
        let outcome =
            tunnel::run(ends, &self.io.deadline, cluster.config.tunnel_idle_timeout_ms, worker.tunnels())
                .await;
        if outcome.broken {
            self.io.writer.stream().reset_on_close();
        }
        progress.bytes_in = outcome.bytes_up;
        progress.bytes_out = outcome.bytes_down;
        progress.path = Some(outcome.path);
        self.record(&account, &progress, outcome.reason);
    }

    /// Opens a connection to an endpoint that is ready for the bytes of the tunnel.
    async fn endpoint_of(
        &self,
        cluster: &Arc<Cluster>,
        progress: &mut Progress,
        by_request: bool,
    ) -> Result<Acquired, Reason> {
        let hash = matches!(cluster.config.balance, Balance::Hash(_)).then(|| address_key(self.peer.address));
        let mut acquired =
            upstream::acquire_fresh(&self.worker.resources().dialer, cluster, hash, self.peer.address)
                .await?;
        progress.endpoint = Some(acquired.connection.endpoint.clone());
        progress.times.connect = acquired.connect;
        if by_request {
            let patience = Duration::from_millis(cluster.config.connect_timeout_ms);
            let asked =
                tokio::time::timeout(patience, ask_for_tls(&mut acquired.connection, &self.io.deadline));
            asked.await.unwrap_or(Err(Reason::ConnectTimeout))?;
        }
        Ok(acquired)
    }
}

/// Sends PostgreSQL's SSLRequest. The response is exactly one byte; more bytes are refused.
async fn ask_for_tls(connection: &mut UpstreamConnection, deadline: &Deadline) -> Result<(), Reason> {
    connection.writer.submit(postgres::SSL_REQUEST.to_vec(), 0);
    connection.writer.settle(deadline).await.map_err(|_| Reason::UpstreamClosed)?;
    match connection.reader.fill(buffers::IDLE_BYTES).await {
        Ok(count) if count > 0 => {}
        _ => return Err(Reason::UpstreamClosed),
    }
    if connection.reader.data() != [postgres::YES] {
        return Err(Reason::StartTlsRefused);
    }
    connection.reader.consume(1);
    Ok(())
}

fn address_key(client: IpAddr) -> u64 {
    hash_key(client.to_string().as_bytes())
}
