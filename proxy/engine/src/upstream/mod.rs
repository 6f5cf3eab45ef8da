//! Upstream connections: picks an endpoint, and acquires an idle connection to it or opens one.

mod connect;
mod dialer;
mod multiplexed;
mod place;
mod pool;
mod secure;

use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_config::{Retry, UpstreamProtocol};
use sluice_core::cluster::{Cluster, Endpoint, InFlight, Kind};
use sluice_core::error::{Reason, Side};
use sluice_core::metrics::Counted;
use sluice_core::metrics::Event;
use sluice_core::record::BodyPath;
use sluice_core::tls::upstream::Purpose;
use sluice_http::{HeadScanner, ResponseHead};
use sluice_kernel::program::Lease;
use sluice_net::stream::{self, Reader, Stream, Verdict, Writer};
use tokio::task::yield_now;

use crate::bypass::{Candidate, Joined, Plan};
use crate::direct::Direct;
use crate::endpoint::LocalEndpoint;

pub use connect::Connector;
#[cfg(test)]
pub(crate) use connect::Network;
pub(crate) use dialer::Dialer;

pub(crate) use pool::Pool;

/// One connection to an endpoint, used for one exchange at a time.
///
/// Two connections are interchangeable if their endpoint is the same, and both are joined or neither is. A connection
/// with an error, or with unsolicited bytes, is never used again.
pub(crate) struct UpstreamConnection {
    pub(crate) endpoint: LocalEndpoint,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) head: ResponseHead,
    pub(crate) scanner: HeadScanner,
    /// Whether it has served an exchange before: then it may die during the next one without anybody's fault.
    pub(crate) reused: bool,
    /// Whether more exchanges may follow; set by the response.
    pub(crate) reusable: bool,
    /// Whether its last request had a body. An endpoint that left the body unread would parse it as another request,
    /// and respond.
    pub(crate) carried_body: bool,
    /// Set if it is joined past loopback TCP.
    pub(crate) joined: Option<Rc<Joined>>,
    /// When its last response ended, if it used direct return and sluice noticed only now.
    pub(crate) idle_since: Option<Instant>,
    /// `None` for one of several streams on a connection that is counted itself.
    open: Option<Counted>,
}

impl UpstreamConnection {
    fn new(
        endpoint: LocalEndpoint,
        stream: Stream,
        joined: Option<Rc<Joined>>,
        open: Option<Counted>,
    ) -> Box<Self> {
        let (reader, writer) = stream::halves(stream);
        Box::new(Self {
            endpoint,
            reader,
            writer,
            head: ResponseHead::new(),
            scanner: HeadScanner::for_response(),
            reused: false,
            reusable: false,
            carried_body: false,
            joined,
            idle_since: None,
            open,
        })
    }

    /// The path of an exchange's bytes over this connection.
    pub(crate) fn path(&self) -> BodyPath {
        if self.joined.is_some() { BodyPath::Bypass } else { BodyPath::Copy }
    }

    /// Records that a request was sent.
    pub(crate) fn sent(&self, at: Instant) {
        if let Some(joined) = &self.joined {
            joined.sent(at);
        }
    }

    /// Whether the endpoint reported that it did nothing about the request.
    pub(crate) fn is_refused(&self) -> bool {
        self.reader.stream().verdict() == Some(Verdict::Refused)
    }

    /// Whether the endpoint has left the request unread, as some do with bytes that bypass loopback TCP.
    pub(crate) fn is_unread(&self) -> bool {
        self.joined.as_ref().is_some_and(|joined| joined.is_unread())
    }

    /// Whether the endpoint received nothing that it could act on.
    pub(crate) fn took_nothing(&self) -> bool {
        self.is_refused() || self.writer.took_nothing()
    }

    /// The bare socket and its slot, if no operation is pending on it and nobody else holds it.
    fn into_socket(self: Box<Self>) -> Option<(OwnedFd, Option<Arc<Lease>>)> {
        let Self { reader, writer, joined, open, .. } = *self;
        if !reader.data().is_empty() || reader.is_receiving() {
            return None;
        }
        let lease = joined.as_ref().and_then(|joined| joined.lease().cloned());
        if let Some(lease) = &lease {
            lease.hand_on(reader.received());
        }
        drop((writer, joined));
        let stream = reader.stream().clone();
        drop(reader);
        let socket = stream.into_socket()?;
        open.into_iter().for_each(Counted::hand_on);
        Some((socket, lease))
    }
}

/// Where one exchange, over all its attempts, may be sent.
pub(crate) struct Attempt<'a> {
    pub(crate) cluster: &'a Arc<Cluster>,
    /// Key of a hashing balancer.
    pub(crate) hash: Option<u64>,
    pub(crate) retry: Retry,
    /// Use no idle connection: one has just died under this request.
    pub(crate) fresh: bool,
    /// The request, if it may use a joined connection.
    pub(crate) candidate: Option<Candidate>,
    /// Endpoints that could not be reached.
    pub(crate) tried: Vec<u32>,
    /// The last of them.
    pub(crate) unreached: Option<LocalEndpoint>,
    /// What it will occupy: a request's or a tunnel's place.
    pub(crate) kind: Kind,
    /// The purpose of a new connection.
    purpose: Purpose,
    /// The client's address.
    pub(crate) client: IpAddr,
    /// Time of completed waits in the queue.
    waited: Duration,
    /// Start of the current wait in the queue, if it is waiting.
    waiting_since: Option<Instant>,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(
        cluster: &'a Arc<Cluster>,
        kind: Kind,
        hash: Option<u64>,
        retry: Retry,
        client: IpAddr,
    ) -> Self {
        let fresh = kind == Kind::Tunnel;
        let purpose = if fresh { Purpose::Opaque } else { Purpose::Http1 };
        let (tried, waited) = (Vec::new(), Duration::ZERO);
        let (candidate, waiting_since, unreached) = (None, None, None);
        Self {
            cluster,
            hash,
            retry,
            fresh,
            candidate,
            tried,
            unreached,
            kind,
            purpose,
            client,
            waited,
            waiting_since,
        }
    }

    /// Whether it uses a connection that exchanges share. A tunnel has a separate connection, whatever its protocol.
    fn is_multiplexed(&self) -> bool {
        self.cluster.config.protocol == UpstreamProtocol::H2 && self.kind == Kind::Request
    }

    /// Time spent in the queue so far.
    pub(crate) fn queued(&self) -> Duration {
        self.waited + self.waiting_since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// A connection with its place among the endpoint's requests under way.
pub(crate) struct Acquired {
    /// Boxed, because it passes through many hands: from the pool to the exchange and back.
    pub(crate) connection: Box<UpstreamConnection>,
    pub(crate) in_flight: InFlight,
    /// Time spent connecting; `None` for a reused connection.
    pub(crate) connect: Option<Duration>,
}

/// Picks an endpoint and acquires a connection to it, after a wait in the queue if there is no room. An unreachable
/// endpoint counts as failed, and another one is tried, as often as the retry policy allows.
pub(crate) async fn acquire(dialer: &Dialer, attempt: &mut Attempt<'_>) -> Result<Acquired, Reason> {
    let mut failure = None;
    for _ in 0..=attempt.retry.connect_attempts_max {
        let in_flight = match place::begin(dialer, attempt).await {
            Ok(in_flight) => in_flight,
            // The reason why the last endpoint was unreachable is more useful than that there is no other.
            Err(reason) => return Err(failure.unwrap_or(reason)),
        };
        match use_place(dialer, attempt, in_flight).await {
            Ok(acquired) => return Ok(acquired),
            Err(reason) => failure = Some(reason),
        }
    }
    Err(failure.unwrap_or(Reason::NoEndpoint))
}

/// A connection to another endpoint than those tried, without a wait in the queue; `None` if there is no room, or none can
/// be reached. `may` is asked once there is a place.
pub(crate) async fn acquire_at_once(
    dialer: &Dialer,
    attempt: &mut Attempt<'_>,
    may: impl FnOnce() -> bool,
) -> Option<Acquired> {
    let in_flight = place::try_begin(dialer, attempt).ok().filter(|_| may())?;
    use_place(dialer, attempt, in_flight).await.ok()
}

/// A connection to the endpoint of a place. One that cannot be reached counts as failed.
async fn use_place(
    dialer: &Dialer,
    attempt: &mut Attempt<'_>,
    in_flight: InFlight,
) -> Result<Acquired, Reason> {
    let endpoint = in_flight.endpoint();
    let plan = plan(dialer, attempt, endpoint);
    if !attempt.fresh
        && let Some(connection) = take_idle(dialer, attempt, endpoint, plan).await
    {
        dialer.metrics().count(Event::UpstreamReused);
        return Ok(Acquired { connection, in_flight, connect: None });
    }
    let started = Instant::now();
    // Boxed, because nearly always there is an idle connection, and such exchanges would carry its memory.
    match Box::pin(open(dialer, attempt, endpoint, plan)).await {
        Ok(connection) => Ok(Acquired { connection, in_flight, connect: Some(started.elapsed()) }),
        Err(reason) => {
            // Running out of descriptors is not the endpoint's fault.
            if reason.side() == Side::Upstream {
                endpoint.joinable.forget();
                endpoint.record_failure(&attempt.cluster.config.ejection, sluice_core::clock::now_ms());
            }
            attempt.tried.push(endpoint.id);
            attempt.unreached = Some(endpoint.into());
            Err(reason)
        }
    }
}

/// An idle connection, possibly one whose last response has just ended by direct return.
async fn take_idle(
    dialer: &Dialer,
    attempt: &Attempt<'_>,
    endpoint: &Arc<Endpoint>,
    plan: Option<Plan>,
) -> Option<Box<UpstreamConnection>> {
    if attempt.is_multiplexed() {
        return multiplexed::take(dialer, endpoint);
    }
    let take = || {
        let taken = dialer.pool.acquire(endpoint, plan.is_some(), attempt.cluster.config.pool);
        taken.inspect(|connection| begin_trial(plan, connection.joined.as_deref()))
    };
    if let Some(connection) = take() {
        return Some(connection);
    }
    if plan.is_none() || !dialer.direct().is_some_and(Direct::reap) {
        return None;
    }
    // The tasks of those exchanges release what they hold.
    yield_now().await;
    take()
}

/// How a connection for this attempt is to be marked, if it is to be joined.
fn plan(dialer: &Dialer, attempt: &Attempt<'_>, endpoint: &Endpoint) -> Option<Plan> {
    // A shared connection is not a pair of sockets of one exchange.
    let joiner = dialer.joiner().filter(|_| !attempt.is_multiplexed())?;
    joiner.plan(endpoint, attempt.candidate?)
}

fn begin_trial(plan: Option<Plan>, joined: Option<&Joined>) {
    if plan.is_some_and(|plan| plan.is_trial) {
        joined.into_iter().for_each(Joined::begin_trial);
    }
}

async fn open(
    dialer: &Dialer,
    attempt: &Attempt<'_>,
    endpoint: &Arc<Endpoint>,
    plan: Option<Plan>,
) -> Result<Box<UpstreamConnection>, Reason> {
    let cluster = attempt.cluster;
    if attempt.is_multiplexed() {
        return multiplexed::open(dialer, cluster, endpoint).await;
    }
    let opening = async {
        let connected = connect(dialer, endpoint, plan).await;
        let (stream, joined) = connected.map_err(|error| connect::reason(&error))?;
        Ok((secure::secure(cluster, endpoint, stream, attempt.purpose).await?, joined))
    };
    let patience = Duration::from_millis(cluster.config.connect_timeout_ms);
    let opened = tokio::time::timeout(patience, opening).await;
    let (stream, joined) = opened.unwrap_or(Err(Reason::ConnectTimeout))?;
    secure::event(&stream).into_iter().for_each(|event| dialer.metrics().count(event));
    let open = dialer.count_while(Event::UpstreamOpened, Event::UpstreamClosed);
    Ok(UpstreamConnection::new(endpoint.into(), stream, joined, Some(open)))
}

/// A joined connection if one is wanted and possible, otherwise an ordinary one.
async fn connect(
    dialer: &Dialer,
    endpoint: &Arc<Endpoint>,
    plan: Option<Plan>,
) -> io::Result<(Stream, Option<Rc<Joined>>)> {
    let connector = &dialer.connector;
    if let Some((joiner, plan)) = dialer.joiner().zip(plan) {
        let mut marked = None;
        let mark = |socket: BorrowedFd<'_>| marked = joiner.mark(socket, plan, endpoint);
        let stream = connector.connect(&endpoint.address, mark).await?;
        let Some(marked) = marked else {
            return Ok((stream, None));
        };
        if let Some(joined) = joiner.confirm(&stream, marked, endpoint).await {
            begin_trial(Some(plan), Some(&joined));
            return Ok((stream, Some(joined)));
        }
        // Nothing was sent on it, so nothing is lost with it.
    }
    Ok((connector.connect(&endpoint.address, |_| {}).await?, None))
}

/// Opens a separate connection for a tunnel of a `tcp` listener.
pub(crate) async fn acquire_fresh(
    dialer: &Dialer,
    cluster: &Arc<Cluster>,
    hash: Option<u64>,
    client: IpAddr,
) -> Result<Acquired, Reason> {
    let retry = cluster.config.retry;
    acquire(dialer, &mut Attempt::new(cluster, Kind::Tunnel, hash, retry, client)).await
}
