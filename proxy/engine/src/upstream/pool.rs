//! Idle upstream connections of one worker, by endpoint.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config as config;
use sluice_core::cluster::{Attached, Cluster, Endpoint, IdleSocket, IdleSockets, closed_with_endpoints};
use sluice_core::metrics::Counted;
use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_net::buffers::SMALL_BYTES;
use sluice_net::deadline::Deadline;
use sluice_net::stream::Stream;

use super::UpstreamConnection;
use crate::bypass::Joiner;
use crate::http2::upstream::Connections;

/// Idle connections wait with a pending receive: it reports the end of the connection at once, and receives the next
/// response without another system call.
pub(crate) struct Pool {
    /// By endpoint; joined connections are separate from others.
    idle: RefCell<HashMap<(u32, bool), Idle>>,
    /// Whether there is no other worker to share with.
    alone: bool,
    joiner: Option<Rc<Joiner>>,
    multiplexed: Connections,
    metrics: Rc<WorkerRecorder>,
}

#[derive(Default)]
struct Idle {
    /// Acquired from the end, where the connection released last is. Connections whose last request had a body are at
    /// the front: an unsolicited response then has the most time to arrive and be noticed.
    connections: VecDeque<IdleConnection>,
    timeout: Duration,
}

struct IdleConnection {
    connection: Box<UpstreamConnection>,
    since: Instant,
    _counted: Counted,
}

impl IdleConnection {
    /// Whether the connection may still be used, as far as is known.
    fn is_fresh(&mut self, timeout: Duration) -> bool {
        self.since.elapsed() < timeout
            && !self.connection.endpoint.is_draining()
            && self.connection.reader.is_silent(SMALL_BYTES)
    }

    /// As [`Self::is_fresh`], checked for the next request: bytes that an endpoint has sent after its response would be
    /// taken for the response to that request. The pending receive may have received them without its completion being
    /// processed, or may be about to.
    fn is_usable(&mut self, timeout: Duration) -> bool {
        self.is_fresh(timeout) && self.connection.reader.is_still_silent(SMALL_BYTES)
    }
}

impl Pool {
    /// An empty pool.
    pub(crate) fn new(alone: bool, joiner: Option<Rc<Joiner>>, metrics: Rc<WorkerRecorder>) -> Self {
        Self { idle: RefCell::default(), alone, joiner, multiplexed: Connections::default(), metrics }
    }

    /// Connections that several exchanges share.
    pub(crate) fn shared_connections(&self) -> &Connections {
        &self.multiplexed
    }

    /// The pool of connections to `endpoint` that any worker may use, if there is one.
    fn shared<'a>(&self, endpoint: &'a Endpoint) -> Option<&'a IdleSockets> {
        if self.alone { None } else { endpoint.shared_idle() }
    }

    /// Acquires the connection to `endpoint` that was released last and is still silent; a joined one, or one that is
    /// not.
    pub(crate) fn acquire(
        &self,
        endpoint: &Arc<Endpoint>,
        joined: bool,
        limits: config::Pool,
    ) -> Option<Box<UpstreamConnection>> {
        if let Some(shared) = self.shared(endpoint)
            && let Some(connection) = self.take_shared(endpoint, shared, joined, limits)
        {
            return Some(connection);
        }
        let mut idle = self.idle.borrow_mut();
        if let Some(Idle { connections, timeout }) = idle.get_mut(&(endpoint.id, joined)) {
            while let Some(mut parked) = connections.pop_back() {
                if parked.is_usable(*timeout) {
                    let mut connection = parked.connection;
                    connection.reused = true;
                    connection.reusable = false;
                    return Some(connection);
                }
            }
        }
        // A connection will be opened. Both kinds together must not exceed what the endpoint may have in use.
        if let Some(Idle { connections, .. }) = idle.get_mut(&(endpoint.id, !joined)) {
            let surplus = connections.len().saturating_sub(endpoint.room());
            connections.drain(..surplus);
        }
        None
    }

    /// Releases a connection whose exchange has ended cleanly. When the pool is full, it replaces the one that would be
    /// acquired last. A connection with unsolicited bytes is closed, and so is one more than the endpoint may have in
    /// use now: a server would wait on it, perhaps with a thread.
    pub(crate) fn release(&self, mut connection: Box<UpstreamConnection>, limits: config::Pool) {
        let silent = connection.reader.data().is_empty();
        if connection.reader.stream().is_channel() {
            return;
        }
        let endpoint = connection.endpoint.clone();
        let needed = limits.idle_max_per_endpoint > 0 && !endpoint.is_over_limit() && !endpoint.is_draining();
        if !connection.reusable || !silent || !needed {
            return;
        }
        if let Some(shared) = self.shared(&endpoint).filter(|_| connection.reader.stream().is_socket()) {
            return self.park_shared(connection, shared, limits);
        }
        connection.scanner.reset();
        connection.writer.shrink(SMALL_BYTES);
        connection.reader.rest();
        let mut idle = self.idle.borrow_mut();
        let idle = idle.entry((connection.endpoint.id, connection.joined.is_some())).or_default();
        idle.timeout = Duration::from_millis(limits.idle_timeout_ms);
        if idle.connections.len() >= limits.idle_max_per_endpoint {
            idle.connections.pop_front();
        }
        let counted = Counted::new(&self.metrics, Event::UpstreamParked, Event::UpstreamUnparked);
        let since = connection.idle_since.take().unwrap_or_else(Instant::now);
        let carried_body = connection.carried_body;
        let parked = IdleConnection { connection, since, _counted: counted };
        if carried_body { idle.connections.push_front(parked) } else { idle.connections.push_back(parked) }
    }

    /// Ends the pending receive on a connection whose response used direct return, if other workers may use the
    /// connection.
    pub(crate) async fn make_parkable(&self, connection: &mut UpstreamConnection, deadline: &Deadline) {
        let shared = connection.reusable && self.shared(&connection.endpoint).is_some();
        if shared && connection.reader.is_receiving() {
            connection.reusable =
                connection.writer.is_sent(deadline) && connection.reader.stop().await.is_ok();
        }
    }

    fn take_shared(
        &self,
        endpoint: &Arc<Endpoint>,
        shared: &IdleSockets,
        joined: bool,
        limits: config::Pool,
    ) -> Option<Box<UpstreamConnection>> {
        let (socket, closed) =
            shared.take(joined, Duration::from_millis(limits.idle_timeout_ms), endpoint.room());
        self.count_closed(closed);
        let (socket, attached) = socket?;
        let lease = attached.and_then(|attached| attached.downcast().ok());
        self.metrics.count(Event::UpstreamUnparked);
        let open = Counted::resume(&self.metrics, Event::UpstreamClosed);
        let stream = Stream::from_socket(socket);
        let joiner = self.joiner.as_ref().filter(|_| joined);
        let joined = joiner.map(|joiner| joiner.watch(&stream, lease, endpoint));
        let mut connection = UpstreamConnection::new(endpoint.into(), stream, joined, Some(open));
        connection.reused = true;
        Some(connection)
    }

    fn park_shared(&self, connection: Box<UpstreamConnection>, shared: &IdleSockets, limits: config::Pool) {
        let joined = connection.joined.is_some();
        let since = connection.idle_since.unwrap_or_else(Instant::now);
        let carried_body = connection.carried_body;
        if let Some((socket, lease)) = connection.into_socket() {
            self.metrics.count(Event::UpstreamParked);
            let attached = lease.map(|lease| lease as Attached);
            let parked = IdleSocket { socket, joined, attached, since };
            self.count_closed(shared.park(parked, carried_body, limits.idle_max_per_endpoint));
        }
    }

    /// Counts idle connections that were closed.
    fn count_closed(&self, closed: usize) {
        self.metrics.add(Event::UpstreamUnparked, closed as u64);
        self.metrics.add(Event::UpstreamClosed, closed as u64);
    }

    /// Closes connections that have ended or have been idle too long; called on the worker's tick.
    pub(crate) fn reap(&self, clusters: &BTreeMap<String, Arc<Cluster>>) {
        self.count_closed(usize::try_from(closed_with_endpoints()).unwrap_or(usize::MAX));
        for cluster in clusters.values() {
            let timeout = Duration::from_millis(cluster.config.pool.idle_timeout_ms);
            for shared in cluster.endpoints().iter().filter_map(|endpoint| endpoint.shared_idle()) {
                self.count_closed(shared.reap(timeout));
            }
        }
        self.multiplexed.reap();
        self.idle.borrow_mut().retain(|_, Idle { connections, timeout }| {
            connections.retain_mut(|parked| parked.is_fresh(*timeout));
            !connections.is_empty()
        });
    }

    /// Closes all.
    pub(crate) fn clear(&self) {
        self.idle.borrow_mut().clear();
        self.multiplexed.clear();
    }
}
