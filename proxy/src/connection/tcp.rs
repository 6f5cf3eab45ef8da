//! Connections of `tcp` listeners: one tunnel each, to an endpoint of the listener's cluster.

use std::net::IpAddr;
use std::rc::Rc;

use super::Connection;
use super::account::Account;
use crate::cluster::hash_key;
use crate::config::Balance;
use crate::error::Reason;
use crate::exchange::Progress;
use crate::proxy_protocol::{self, Header};
use crate::tunnel;
use crate::upstream;
use crate::worker::Phase;

impl Connection {
    /// Reads the PROXY protocol header that the listener expects; false when the connection must end.
    pub(super) async fn greet(&mut self) -> bool {
        let expected = self.listener.config.proxy_protocol;
        if expected == crate::config::ProxyProtocol::Off {
            return true;
        }
        self.deadline.set(self.limits().header_timeout_ms);
        loop {
            let header = match self.reader.data() {
                [] => Header::Partial,
                data => proxy_protocol::parse(data, expected),
            };
            match header {
                Header::Complete(length, client) => {
                    self.reader.consume(length);
                    self.client = client.unwrap_or(self.client);
                    self.client_text = super::client_text(self.client);
                    return true;
                }
                Header::Invalid => {
                    self.record_connection(Reason::BadProxyProtocol);
                    return false;
                }
                Header::Partial => {}
            }
            let filled = self.deadline.run(self.reader.fill(crate::buffers::IDLE_BYTES)).await;
            if !matches!(filled, Some(Ok(count)) if count > 0) {
                return false;
            }
        }
    }

    pub(super) fn record_connection(&self, reason: Reason) {
        let account = Account::new(&self.worker, self.client, &self.head);
        self.record(&account, &Progress::default(), Some(reason));
    }

    /// Tunnels this connection to its cluster until it ends.
    pub(super) async fn tunnel_connection(mut self) {
        let worker = Rc::clone(&self.worker);
        let snapshot = worker.snapshot();
        let cluster = self.listener.config.cluster.as_ref().and_then(|name| snapshot.clusters.get(name));
        let Some(cluster) = cluster else {
            return;
        };
        self.set_phase(Phase::Busy);
        let mut account = Account::new(&worker, self.client, &self.head);
        account.path = "copy";
        let mut progress = Progress::default();
        let hash = matches!(cluster.config.balance, Balance::Hash(_)).then(|| address_key(self.client));
        let mut acquired = match upstream::acquire_fresh(&worker, cluster, hash, self.client).await {
            Ok(acquired) => acquired,
            Err(reason) => {
                self.writer.stream().reset_on_close();
                return self.record(&account, &progress, Some(reason));
            }
        };
        progress.endpoint = Some(acquired.connection.endpoint.clone());
        progress.connect = acquired.connect;
        let connection = &mut acquired.connection;
        let ends = tunnel::Ends {
            downstream: (&mut self.reader, &mut self.writer),
            upstream: (&mut connection.reader, &mut connection.writer),
        };
        let outcome = tunnel::run(ends, &self.deadline, cluster.config.tunnel_idle_timeout_ms, &worker).await;
        if outcome.broken {
            self.writer.stream().reset_on_close();
        }
        account.bytes_in = outcome.bytes_up;
        progress.bytes_out = outcome.bytes_down;
        account.path = outcome.path;
        self.record(&account, &progress, outcome.reason);
    }
}

fn address_key(client: IpAddr) -> u64 {
    hash_key(client.to_string().as_bytes())
}
