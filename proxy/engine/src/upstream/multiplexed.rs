//! Exchanges with endpoints that use HTTP/2: each is a stream of a shared connection.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::cluster::{Cluster, Endpoint};
use sluice_core::error::Reason;
use sluice_core::metrics::Counted;
use sluice_core::metrics::Event;
use sluice_core::tls::upstream::Purpose;
use sluice_net::stream::{Stream, Verdict};

use super::{Dialer, UpstreamConnection, connect, secure};
use crate::endpoint::LocalEndpoint;
use crate::http2::upstream::{Channel, SharedConnection, Terms, drive};

impl UpstreamConnection {
    /// The final reason of an exchange that broke off for `reason`: the endpoint may have cancelled it on purpose.
    pub(crate) fn unless_cancelled(&self, reason: Reason) -> Reason {
        let broken_off = matches!(reason, Reason::UpstreamClosed | Reason::ResponseTruncated);
        let cancelled = broken_off && self.reader.stream().verdict() == Some(Verdict::Cancelled);
        if cancelled { Reason::UpstreamCancelled } else { reason }
    }
}

/// A stream of a connection that has room for one.
pub(super) fn take(dialer: &Dialer, endpoint: &Arc<Endpoint>) -> Option<Box<UpstreamConnection>> {
    let (endpoint, channel) = dialer.pool.shared_connections().begin(endpoint)?;
    let mut connection = new(endpoint, channel);
    // It may die during the exchange without anybody's fault.
    connection.reused = true;
    Some(connection)
}

/// As [`take`], after waiting for a connection that is being opened; starts to open one if there is none.
///
/// # Errors
/// Why it could not be opened.
pub(super) async fn open(
    dialer: &Dialer,
    cluster: &Arc<Cluster>,
    endpoint: &Arc<Endpoint>,
) -> Result<Box<UpstreamConnection>, Reason> {
    let connections = dialer.pool.shared_connections();
    let opening = async {
        loop {
            if let Some((endpoint, channel)) = connections.begin(endpoint) {
                return Ok(new(endpoint, channel));
            }
            let shared = connections.opening(endpoint);
            shared.unwrap_or_else(|| begin(dialer, cluster, endpoint)).opened().await?;
        }
    };
    let patience = Duration::from_millis(cluster.config.connect_timeout_ms);
    tokio::time::timeout(patience, opening).await.unwrap_or(Err(Reason::ConnectTimeout))
}

fn new(endpoint: LocalEndpoint, channel: Rc<Channel>) -> Box<UpstreamConnection> {
    UpstreamConnection::new(endpoint, Stream::Channel(channel), None, None)
}

/// Opens a connection in a separate task: others may wait for it when the first exchange has been dropped.
fn begin(dialer: &Dialer, cluster: &Arc<Cluster>, endpoint: &Arc<Endpoint>) -> Rc<SharedConnection> {
    let shared = SharedConnection::opening(cluster.config.tls.is_some());
    dialer.pool.shared_connections().add(endpoint, &shared);
    let (connector, metrics) = (dialer.connector.clone(), Rc::clone(dialer.metrics()));
    let (cluster, endpoint, terms) = (Arc::clone(cluster), Arc::clone(endpoint), Terms::of(&cluster.config));
    let patience = Duration::from_millis(cluster.config.connect_timeout_ms);
    let opening = Rc::clone(&shared);
    tokio::task::spawn_local(async move {
        let connecting = async {
            let connected = connector.connect(&endpoint.address, |_| {}).await;
            let stream = connected.map_err(|error| connect::reason(&error))?;
            secure::secure(&cluster, &endpoint, stream, Purpose::Http2).await
        };
        match tokio::time::timeout(patience, connecting).await {
            Ok(Ok(stream)) => {
                secure::event(&stream).into_iter().for_each(|event| metrics.count(event));
                let _open = Counted::new(&metrics, Event::UpstreamOpened, Event::UpstreamClosed);
                drive(stream, opening, terms).await;
            }
            Ok(Err(reason)) => opening.fail(reason),
            Err(_) => opening.fail(Reason::ConnectTimeout),
        }
    });
    shared
}
