//! The data of an exchange for its record: client, times, names.

use std::borrow::Cow;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use sluice_core::cluster::Cluster;
use sluice_core::error::Reason;
use sluice_core::forwarded;
use sluice_core::record::ExchangeRecord;
use sluice_core::spans::Trace;
use sluice_http::{RequestHead, forwarded_request_id};

use super::Connection;
use super::auth::Identity;
use crate::debug::{self, DebugRequest};
use crate::progress::Progress;
use crate::snapshot::{Current, RouteEntry, Snapshot, Target};
use crate::worker::Worker;

/// The facts of one exchange that do not change while it runs.
///
/// Many fields: each step finds out one of them, and the record at the end needs most.
pub(super) struct Account {
    /// The configuration it uses.
    pub(super) snapshot: Current,
    pub(super) started: SystemTime,
    pub(super) clock: Instant,
    /// The client, determined through trusted proxies.
    pub(super) client: IpAddr,
    /// Whether what the peer says of the client in X-Forwarded-* and the like is kept.
    pub(super) trusted: bool,
    /// Whether the peer is one of `trusted_proxies`, which alone may say what certificate a client has shown.
    pub(super) is_proxy: bool,
    /// Shared with the exchange, which names it in the response.
    pub(super) request_id: Rc<[u8]>,
    /// Index of the route, once found.
    pub(super) route: Option<u32>,
    /// The cluster that a service has chosen, or that a tunnel goes to.
    pub(super) chosen: Option<Arc<Cluster>>,
    /// The server name that a TLS client requested.
    pub(super) server_name: Option<String>,
    /// Who sent the request, if the route asks for it.
    pub(super) identity: Option<Box<Identity>>,
    /// Whether the response includes debug information.
    pub(super) debug: DebugRequest,
    /// Its position in a trace, if exchanges are traced.
    pub(super) trace: Option<Trace>,
    /// Whether no client has sent it: then it is no exchange that is counted or logged.
    pub(super) is_behind: bool,
}

impl Account {
    pub(super) fn new(worker: &Worker, peer: IpAddr, head: &RequestHead) -> Self {
        let snapshot = worker.snapshot();
        let (client, trusted) = forwarded::client(peer, &snapshot.config.trusted_proxies, head);
        let request_id = match forwarded_request_id(head, trusted) {
            Some(id) => Rc::from(id),
            None => Rc::from(&worker.with_random(forwarded::make_request_id)[..]),
        };
        Self {
            snapshot,
            started: SystemTime::now(),
            clock: Instant::now(),
            client,
            trusted,
            is_proxy: trusted,
            request_id,
            route: None,
            chosen: None,
            server_name: None,
            identity: None,
            debug: DebugRequest::Disabled,
            trace: None,
            is_behind: false,
        }
    }

    /// The account of a request that sluice sends by itself, because of this one.
    pub(super) fn behind(&self) -> Self {
        Self {
            snapshot: self.snapshot.clone(),
            started: SystemTime::now(),
            clock: Instant::now(),
            client: self.client,
            trusted: self.trusted,
            is_proxy: self.is_proxy,
            request_id: Rc::clone(&self.request_id),
            route: self.route,
            chosen: None,
            server_name: None,
            identity: self.identity.clone(),
            debug: DebugRequest::Disabled,
            trace: None,
            is_behind: true,
        }
    }

    /// The debug information for the response, if requested.
    pub(super) fn facts<'s>(&self, snapshot: &'s Snapshot) -> Option<debug::Facts<'s>> {
        if self.debug != DebugRequest::Trusted {
            return None;
        }
        let route = self.route.map(|index| &snapshot.routes[index as usize]);
        let cluster = route.and_then(|entry| match &entry.target {
            Target::Cluster(cluster) => Some(Cow::from(cluster.name.as_str())),
            Target::Service(_) => self.chosen.as_ref().map(|cluster| Cow::from(cluster.name.clone())),
            Target::Local => None,
        });
        let (request_id, clock) = (Rc::clone(&self.request_id), self.clock);
        Some(debug::Facts {
            route: route.map(|entry| entry.config.name.as_str()),
            cluster,
            request_id,
            clock,
        })
    }
}

impl Connection {
    /// Records the exchange in metrics and access log.
    pub(super) fn record(&self, account: &Account, progress: &Progress, reason: Option<Reason>) {
        if account.is_behind {
            return;
        }
        let now = progress.times.ended_at.unwrap_or_else(Instant::now);
        let route = account.route.map(|index| &account.snapshot.routes[index as usize]);
        let cluster = match route.map(|entry| &entry.target) {
            Some(Target::Cluster(cluster)) => Some(cluster.name.as_str()),
            Some(Target::Service(_)) | None => account.chosen.as_ref().map(|cluster| cluster.name.as_str()),
            Some(Target::Local) => None,
        };
        let mut fields = match route.map(|entry| &entry.target) {
            Some(Target::Service(one)) => one.logged.of(self.session.head.fields(), &progress.logged),
            _ => Vec::new(),
        };
        let logged = &account.snapshot.logged;
        if !logged.is_empty() {
            fields.extend(self.logged_variables(logged, route, account));
        }
        let record = ExchangeRecord {
            started: account.started,
            duration: now - account.clock,
            queue: route.and(cluster).map(|_| progress.times.queue),
            connect: progress.times.connect,
            upstream: progress.times.sent_at.map(|sent| progress.times.first_byte_at.unwrap_or(now) - sent),
            transfer: progress.times.first_byte_at.map(|first| now - first),
            client: account.client,
            listener: &self.listener.config.name,
            route: route.map(|entry| (entry.id, entry.config.name.as_str())),
            cluster,
            endpoint: progress.endpoint.as_ref().map(|endpoint| (endpoint.id, endpoint.label.as_str())),
            method: self.session.head.method_bytes(),
            host: account.server_name.as_deref().map_or(self.session.head.host(), str::as_bytes),
            target: self.session.head.target(),
            version: self.session.head.version().name(),
            status: progress.status,
            bytes_in: progress.bytes_in,
            bytes_out: progress.bytes_out,
            retries: progress.retries,
            reason,
            path: progress.path,
            request_id: &account.request_id,
            user: account.identity.as_ref().and_then(|identity| identity.user.as_deref()).unwrap_or_default(),
            user_agent: self.session.head.get(b"user-agent").unwrap_or_default(),
            referer: self.session.head.get(b"referer").unwrap_or_default(),
            fields: &fields,
        };
        let path = self.session.head.path();
        let excluded =
            |entry: &RouteEntry| matches!(&entry.target, Target::Service(one) if one.excludes(path));
        self.worker.record(&record, !route.is_some_and(excluded));
        self.hand_over(account, progress, &record, route);
    }
}
