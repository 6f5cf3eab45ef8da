//! Clusters and certificates for the metrics and the status page.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_core::clock;
use sluice_core::cluster::{EndpointAddress, QueueCounts};
use sluice_core::metrics::Row;
use sluice_core::metrics::{
    CacheDiskStatus, CacheSize, CertificateStatus, DiscoveryCounts, EndpointStatus, QueueStatus, Status,
};
use sluice_core::tls::{Certificate, Terminators, now_unix_s};
use sluice_engine::snapshot::Snapshot;

use super::accept_queue::AcceptQueues;
use crate::acme::{self, Acme};
use crate::status::document;

/// Maximum number of certificates on the status page; those that expire first come first.
const CERTIFICATES_MAX: usize = 100;
const DAY_S: i64 = 86_400;

/// Endpoints and queues of a snapshot.
pub(super) fn status(snapshot: &Snapshot) -> Status {
    let now_ms = clock::now_ms();
    let limits = snapshot.limiters.values().map(|limiter| limiter.counts()).collect();
    let caches = snapshot.caches.values().map(|store| CacheSize {
        name: store.name.clone(),
        bytes: store.bytes(),
        resources: store.resources(),
        disk: store.on_disk().map(|disk| CacheDiskStatus {
            bytes: disk.bytes,
            files: disk.files,
            events: [disk.read, disk.written, disk.damaged, disk.failed],
        }),
    });
    let caches = caches.collect();
    let mut status = Status { limits, caches, bans: snapshot.bans.counts(now_ms), ..Status::default() };
    let queues = AcceptQueues::read();
    for cluster in snapshot.clusters.values() {
        status.endpoints.extend(cluster.endpoints().iter().map(|endpoint| EndpointStatus {
            cluster: cluster.name.clone(),
            endpoint: endpoint.label.clone(),
            weight: if endpoint.is_disabled() { 0 } else { endpoint.weight().into() },
            healthy: endpoint.health(now_ms).takes_requests(),
            in_flight: u64::from(endpoint.in_flight()),
            accept_queue: match &endpoint.address {
                EndpointAddress::Ip(address) => queues.at(*address),
                EndpointAddress::Unix(_) => None,
            },
            saturated: endpoint.saturated(),
            limit: (endpoint.limit_now() != u32::MAX).then(|| u64::from(endpoint.limit_now())),
        }));
        let QueueCounts { length, entered, full, timed_out } = cluster.queue_counts();
        status.queues.push(QueueStatus {
            cluster: cluster.name.clone(),
            length: length as u64,
            entered,
            full,
            timed_out,
        });
        if cluster.config.discover.is_some() {
            let (cluster, seen) = (cluster.name.clone(), cluster.discovery().snapshot());
            status.discoveries.push(DiscoveryCounts { cluster, seen });
        }
    }
    status
}

/// Every served certificate.
pub(super) fn certificate_statuses(terminators: &Terminators) -> Vec<CertificateStatus> {
    let status = |(listener, certificate): (String, Arc<Certificate>)| CertificateStatus {
        listener,
        name: certificate.first_name().to_owned(),
        not_after: certificate.not_after,
    };
    terminators.certificates().into_iter().map(status).collect()
}

/// The certificates that expire first.
pub(super) fn certificates(terminators: &Terminators, acme: &Acme) -> Vec<document::Certificate> {
    let rows = acme.board.rows();
    let mut all = terminators.certificates();
    all.sort_by_key(|(_, certificate)| certificate.not_after);
    let now = now_unix_s();
    let shown = |(listener, certificate): (String, Arc<Certificate>)| document::Certificate {
        listener,
        next_attempt_s: row(&rows, &certificate).map(|row| row.next_ms / 1000),
        failure: row(&rows, &certificate).and_then(|row| row.failure.clone()),
        names: certificate.names.clone(),
        source: certificate.source.clone(),
        not_after_s: certificate.not_after,
        days_left: (certificate.not_after - now).div_euclid(DAY_S),
        is_valid: certificate.is_valid_at(now),
    };
    all.into_iter().take(CERTIFICATES_MAX).map(shown).collect()
}

/// The state of the next certificate for the same name; `None` for one from a file.
fn row<'r>(rows: &'r BTreeMap<String, Row>, certificate: &Certificate) -> Option<&'r Row> {
    rows.get(certificate.first_name()).filter(|_| acme::is_source(&certificate.source))
}
