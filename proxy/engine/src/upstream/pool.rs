//! Idle upstream connections of one dialer, by endpoint.

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

/// Idle connections wait with a receive under way: it sees the end of the connection as it comes, and
/// brings the next response without another system call.
pub(crate) struct Pool {
    /// By endpoint, joined ones apart from others.
    idle: RefCell<HashMap<(u32, bool), Idle>>,
    /// Whether there is no other worker to share with.
    alone: bool,
    joiner: Option<Rc<Joiner>>,
    multiplexed: Connections,
    metrics: Rc<WorkerRecorder>,
}

#[derive(Default)]
struct Idle {
    /// The one released last is at the end, but for those whose last request had a body: they are taken last, so that an
    /// answer that nobody asked for has the most time to come and be seen.
    connections: VecDeque<IdleConnection>,
    timeout: Duration,
}

struct IdleConnection {
    connection: UpstreamConnection,
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

    /// The same for the next request: what an endpoint has sent behind its answer would be taken for the answer to that.
    /// The receive under way may have brought it without our having seen its completion, or may be about to.
    fn is_usable(&mut self, timeout: Duration) -> bool {
        self.is_fresh(timeout)
            && self.connection.reader.stream().is_quiet()
            // The kernel has completed on the way what could be completed.
            && self.connection.reader.is_still_silent(SMALL_BYTES)
    }
}

impl Pool {
    /// An empty pool.
    pub(crate) fn new(alone: bool, joiner: Option<Rc<Joiner>>, metrics: Rc<WorkerRecorder>) -> Self {
        Self { idle: RefCell::default(), alone, joiner, multiplexed: Connections::default(), metrics }
    }

    /// Connections that several exchanges have at once.
    pub(crate) fn shared_connections(&self) -> &Connections {
        &self.multiplexed
    }

    /// Where connections to `endpoint` wait that any worker may take.
    fn shared<'a>(&self, endpoint: &'a Endpoint) -> Option<&'a IdleSockets> {
        if self.alone { None } else { endpoint.shared_idle() }
    }

    /// Takes the connection to `endpoint` that was released last and is still silent; a joined one, or one that is
    /// not.
    pub(crate) fn acquire(
        &self,
        endpoint: &Arc<Endpoint>,
        joined: bool,
        limits: config::Pool,
    ) -> Option<UpstreamConnection> {
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
        // One is opened. Both kinds together are no more than the endpoint may have in use.
        if let Some(Idle { connections, .. }) = idle.get_mut(&(endpoint.id, !joined)) {
            let surplus = connections.len().saturating_sub(endpoint.room());
            connections.drain(..surplus);
        }
        None
    }

    /// Keeps a connection whose exchange has ended cleanly, in place of the oldest one when there are
    /// as many as allowed. One that holds bytes nobody asked for is closed, and one more than the endpoint may
    /// now have in use: a server would wait on it, perhaps with a thread.
    pub(crate) fn release(&self, mut connection: UpstreamConnection, limits: config::Pool) {
        let silent = connection.reader.data().is_empty();
        if connection.reader.stream().is_channel() {
            return;
        }
        let endpoint = Arc::clone(&connection.endpoint);
        let needed = limits.idle_max_per_endpoint > 0 && !endpoint.is_over_limit() && !endpoint.is_draining();
        if !connection.reusable || !silent || !needed {
            return;
        }
        if let Some(shared) = self.shared(&endpoint).filter(|_| connection.reader.stream().is_socket()) {
            return self.park_shared(connection, shared, limits);
        }
        connection.scanner.reset();
        connection.writer.shrink(SMALL_BYTES);
        connection.reader.shrink(SMALL_BYTES);
        connection.reader.arm_patiently(SMALL_BYTES);
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

    /// Ends the receive that is under way on a connection whose answer went past us, if other workers are to have it.
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
    ) -> Option<UpstreamConnection> {
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
        let mut connection = UpstreamConnection::new(Arc::clone(endpoint), stream, joined, Some(open));
        connection.reused = true;
        Some(connection)
    }

    fn park_shared(&self, connection: UpstreamConnection, shared: &IdleSockets, limits: config::Pool) {
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

    /// Idle connections that were closed.
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
