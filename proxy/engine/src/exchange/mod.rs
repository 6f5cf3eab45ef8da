//! One request and its response over one upstream connection; decides whether to retry.
//!
//! The request's body is sent while the response is received: two futures in one task, raced against one deadline. When
//! either ends the exchange, both end.

mod acquire;
mod answer;
mod direct;
mod discard;
mod encoded;
mod hedge;
mod download;
mod hold;
mod keep;
mod race;
mod resources;
mod retry;
mod stamp;
mod transfer;
mod upload;

use std::cell::Cell;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_cache::StoredResponse;
use sluice_config::{Buffering, Buffers, Compress, Compression, Limits, Retry};
use sluice_core::clock;
use sluice_core::cluster::{Cluster, Kind};
use sluice_core::error::{Reason, Side};
use sluice_core::service::logged::LoggedField;
use sluice_core::service::slot::Entered;
use sluice_http::{FieldEdits, ListenerFields, RequestHead, ResponseHead, end_to_end};
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};

use crate::authority::Fields;
use crate::body::Transfer;
use crate::bypass::Candidate;
use crate::cache::{CachePart, CacheStatus, Change};
use crate::debug;
use crate::direct::{Armed, Client, Direct, WaitCount};
use crate::files::{Handoff, NamedFile, is_of_body};
use crate::opening::Opening;
use crate::progress::Progress;
use crate::spool::Message;
use crate::upstream::{Acquired, Attempt, UpstreamConnection};
pub(crate) use encoded::{EncodedAnswer, Encoding};
pub(crate) use hold::HeldAnswer;
pub(crate) use race::until_cut;
use retry::{Facts, RetryVerdict, may_retry};
pub(crate) use stamp::Stamp;
use stamp::StampWriter;
use transfer::chunk_limits;
pub(crate) use transfer::{request_transfer, upload_reason};

pub(crate) use resources::Resources;

/// The policy of one exchange: the route's settings, or else the cluster's.
///
/// Many fields: one for each decision that a route may take about an exchange.
pub(crate) struct Policy<'a> {
    pub(crate) cluster: &'a Arc<Cluster>,
    pub(crate) retry: Retry,
    pub(crate) response_timeout_ms: u64,
    pub(crate) body_idle_timeout_ms: u64,
    /// Edits of the request head.
    pub(crate) request_edits: Option<&'a FieldEdits>,
    pub(crate) response_edits: Option<&'a FieldEdits>,
    /// Statuses, in order, of responses that are replaced by an error page.
    pub(crate) replaced: &'a [u16],
    /// Files that the application may name in place of a body.
    pub(crate) handoff: Option<&'a Handoff>,
    /// Which responses are encoded, what that may cost, and how many workers share it.
    pub(crate) compress: Option<(&'a Compress, &'a Compression, usize)>,
    /// What the cache of the route has to do with it.
    pub(crate) cache: CachePart<'a>,
    pub(crate) via: bool,
    /// Whether direct return may be used.
    pub(crate) direct_return: bool,
    /// Which bodies the route buffers.
    pub(crate) buffering: Buffering,
    /// The limits of all buffered bodies.
    pub(crate) buffers: &'a Buffers,
    pub(crate) request: RequestContext<'a>,
}

/// What one request adds to the policy of its route.
pub(crate) struct RequestContext<'a> {
    /// The client's address.
    pub(crate) client: IpAddr,
    /// Key of a hashing balancer.
    pub(crate) hash: Option<u64>,
    /// The debug information for the response, if requested.
    pub(crate) debug: Option<debug::Facts<'a>>,
    /// The field that names the endpoint to the application.
    pub(crate) stamp: Option<&'a Stamp>,
    /// The id that every response names, if that is on.
    pub(crate) request_id: Option<Rc<[u8]>>,
    /// Fields of the response to log.
    pub(crate) logged: &'a [LoggedField],
    /// Its place at a service's targets, which a drain may end.
    pub(crate) entered: Option<&'a Entered>,
}

impl Policy<'_> {
    /// The values of a response's logged fields; nearly always none, which costs nothing.
    fn logged_values(&self, head: &ResponseHead) -> Vec<Vec<u8>> {
        self.request.logged.iter().map(|field| field.value(head.fields())).collect()
    }
}

/// The downstream side of one exchange.
pub(crate) struct Downstream<'a> {
    /// What the request changes in caches.
    pub(crate) change: Option<Change<'a>>,
    pub(crate) head: &'a RequestHead,
    pub(crate) reader: &'a mut Reader,
    pub(crate) writer: &'a mut Writer,
    pub(crate) deadline: &'a Deadline,
    pub(crate) limits: &'a Limits,
    /// The request body; the part received with the head is already in the opening.
    pub(crate) transfer: &'a mut Transfer,
    /// The request, if its body was buffered. The part in memory is in the opening.
    pub(crate) held: Option<&'a mut Message>,
    /// Whether the client may send another request after this one.
    pub(crate) keep_alive: bool,
    /// What the listener says in its responses.
    pub(crate) listener: ListenerFields<'a>,
    /// Whether the client's socket can be used for direct return.
    pub(crate) client: &'a mut Client,
    /// The number of this exchange on its connection, from 1.
    pub(crate) exchanges: u64,
}

/// How an exchange succeeded.
pub(crate) enum Finish {
    /// The response has been sent, or is being sent.
    Answered {
        /// Whether the connection may serve another request.
        keep_alive: bool,
    },
    /// The origin switched protocols as requested; the following bytes belong to the tunnel.
    Upgraded(Acquired),
    /// The response was an error of the application, and the client gets an error page instead.
    Replaced(Box<ReplacedAnswer>),
    /// The response is complete, and the client has received nothing of it yet.
    Held(Box<HeldAnswer>),
    /// The client gets a stored response.
    Cached(Arc<StoredResponse>, CacheStatus),
}

/// Where a request does not go if it is sent to another endpoint.
#[derive(Clone, Copy)]
struct Elsewhere<'a> {
    /// Where it is now.
    last: u32,
    /// Where it was before.
    before: &'a [u32],
}

impl Elsewhere<'_> {
    fn take_retry(self, policy: &Policy<'_>) -> bool {
        policy.cluster.take_retry(self.last, self.before, clock::now_ms())
    }
}

/// State that the two directions share.
struct SharedState<'a> {
    deadline: &'a Deadline,
    policy: &'a Policy<'a>,
    resources: &'a Resources,
    limits: &'a Limits,
    /// The whole request was received before the exchange started.
    received: bool,
    /// The whole request was passed to the upstream connection.
    uploaded: Cell<bool>,
    /// The final response head was received.
    head_received: Cell<bool>,
    /// Present until then, if there is direct return.
    wait_count: Cell<Option<WaitCount<'a>>>,
    /// The client's next request has already arrived.
    pipelined: Cell<bool>,
    /// If an error of the application sends the request to another endpoint.
    elsewhere: Option<Elsewhere<'a>>,
}

impl SharedState<'_> {
    /// Records that the final response head was received.
    fn note_head(&self) {
        self.head_received.set(true);
        drop(self.wait_count.take());
    }

    /// Whether a response with this status is dropped, and the request goes to another endpoint.
    fn is_turned_back(&self, status: u16) -> bool {
        let is_wanted = self.policy.retry.statuses.contains(status) && self.uploaded.get();
        is_wanted && self.elsewhere.is_some_and(|elsewhere| elsewhere.take_retry(self.policy))
    }

    /// Whether the whole request was read from the client's connection.
    fn is_received(&self) -> bool {
        self.received || self.uploaded.get()
    }
}

impl Downstream<'_> {
    /// Whether there is more of the request than the part that is sent first.
    fn has_rest(&self) -> bool {
        !self.transfer.is_done() || self.held.as_ref().is_some_and(|held| held.has_rest())
    }
}

/// Why one attempt failed.
struct Failed {
    reason: Reason,
    /// Nothing was received, so another connection may be tried if the request allows it.
    silent: bool,
    /// The response was an error with which the request goes to another endpoint.
    turned_back: bool,
}

impl From<Reason> for Failed {
    fn from(reason: Reason) -> Self {
        Self { reason, silent: false, turned_back: false }
    }
}

/// What is left of a response whose body is replaced: by an error page, or by a file.
pub(crate) struct ReplacedAnswer {
    /// The file that the application named.
    pub(crate) file: Option<NamedFile>,
    pub(crate) status: u16,
    /// Fields that mean something without the body.
    pub(crate) fields: Fields,
}

impl ReplacedAnswer {
    fn of(head: &ResponseHead) -> Box<Self> {
        let is_kept = |name: &[u8]| {
            let name = name.to_ascii_lowercase();
            KEPT.contains(&&name[..]) || name.starts_with(b"access-control-")
        };
        let kept = head.fields().filter(|field| is_kept(field.name));
        let fields = kept.map(|field| (field.name.to_vec(), field.value.to_vec())).collect();
        Box::new(Self { file: None, status: head.status(), fields })
    }

    /// The same with a file that the application named.
    fn with_file(head: &ResponseHead, file: NamedFile) -> Box<Self> {
        let kept = end_to_end(head).filter(|field| !is_of_body(field.name));
        let fields = kept.map(|field| (field.name.to_vec(), field.value.to_vec())).collect();
        Box::new(Self { file: Some(file), status: head.status(), fields })
    }
}

impl ReplacedAnswer {
    /// Whether it has a field of this name.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        self.fields.iter().any(|(own, _)| own.eq_ignore_ascii_case(name))
    }

    /// Its Content-Type.
    pub(crate) fn content_type(&self) -> Option<&[u8]> {
        let mut fields = self.fields.iter();
        fields.find(|(name, _)| name.eq_ignore_ascii_case(b"content-type")).map(|(_, value)| &value[..])
    }
}

/// Fields that stay with an error page, in lower case.
const KEPT: [&[u8]; 6] =
    [b"allow", b"cache-control", b"retry-after", b"set-cookie", b"vary", b"www-authenticate"];

/// Sends `opening` (the request head and the part of its body received with it) to an endpoint of the cluster, then
/// forwards the rest of the body, and the response.
pub(crate) async fn forward(
    resources: &Resources,
    policy: &Policy<'_>,
    downstream: &mut Downstream<'_>,
    mut opening: Opening,
    progress: &mut Progress,
) -> Result<Finish, Reason> {
    let replayable = downstream.transfer.is_done();
    let RequestContext { hash, client, stamp, .. } = policy.request;
    let mut attempt = Attempt::new(policy.cluster, Kind::Request, hash, policy.retry, client);
    // Requests that may become a tunnel, or that are incomplete, use TCP: see `bypass`.
    let in_memory = !downstream.has_rest();
    let is_idempotent = replayable && downstream.head.method().is_idempotent();
    let may_upgrade = downstream.head.upgrade().is_some();
    // A change that goes on at the first endpoint could overwrite the next one, and another endpoint does not know a
    // client that is kept at its own.
    let hedges = policy.retry.hedge
        && replayable
        && in_memory
        && hash.is_none()
        && downstream.head.method().is_safe()
        && !may_upgrade
        && stamp.is_none()
        && opening.is_text()
        && opening.bytes.len() <= hedge::BYTES_MAX;
    attempt.candidate = (in_memory && !hedges && !may_upgrade).then(|| Candidate {
        bytes: opening.bytes.len() + stamp.map_or(0, Stamp::room),
        repeatable: downstream.head.method().is_idempotent(),
    });
    let mut stamped = StampWriter::new(stamp);
    // An error does not say that the application has not acted.
    let may_repeat = is_idempotent && !policy.retry.statuses.is_empty();
    if may_repeat || hedges {
        policy.cluster.earn_retry(policy.retry.budget_percent);
    }
    loop {
        let acquired = {
            let acquiring = pin!(acquire::acquire(resources, &mut attempt, downstream));
            until_cut(policy, acquiring).await
        };
        progress.times.queue = attempt.queued();
        let mut acquired = acquired.inspect_err(|_| progress.endpoint = attempt.unreached.take())?;
        progress.endpoint = Some(acquired.connection.endpoint.clone());
        progress.times.connect = acquired.connect;
        progress.path = Some(acquired.connection.path());
        stamped.put(&mut opening, &acquired.connection.endpoint);
        // The head of what changes something is looked at.
        let armed = match downstream.change {
            Some(_) => None,
            None => direct::arm(resources, policy, downstream, &acquired.connection),
        };
        let hedged = (hedges && progress.retries == 0).then(|| opening.bytes.clone());
        start(&mut acquired.connection, &mut opening, policy, downstream, progress);
        if let Some(opening) = hedged {
            let hedge = hedge::Hedge { first: acquired, opening, tried: attempt.tried.clone() };
            acquired = Box::pin(hedge.first_to_answer(resources, policy, downstream, progress)).await?;
        }
        let connection = &mut acquired.connection;
        let retries_left = policy.retry.attempts_max.saturating_sub(progress.retries);
        let elsewhere = (may_repeat && retries_left > 0)
            .then_some(Elsewhere { last: connection.endpoint.id, before: &attempt.tried });
        let mut outcome =
            run(resources, policy, downstream, connection, progress, (armed.as_ref(), elsewhere)).await;
        if let Some(armed) = armed {
            outcome = direct::conclude(&armed, resources, outcome, connection, downstream, progress).await;
            resources.dialer.pool.make_parkable(connection, downstream.deadline).await;
        }
        if in_memory {
            acquire::observe(&acquired, &outcome, progress);
        }
        let failed = match outcome {
            Ok(received) => return Ok(acquire::finish(resources, policy, acquired, received, downstream)),
            Err(failed) => failed,
        };
        let connection = &mut acquired.connection;
        if failed.turned_back || failed.silent && connection.reused {
            // The end of the connection may be known a moment before the result of the send.
            let _ = downstream.deadline.run(connection.writer.settle(downstream.deadline)).await;
        }
        let settled = connection.writer.try_settle(downstream.deadline);
        let begun = downstream.held.as_ref().is_some_and(|held| held.has_begun_rest());
        // A dead connection that took no byte had nothing to act on, whatever the method.
        let untouched = connection.took_nothing() && !begun;
        let verdict = may_retry(Facts {
            silent: failed.silent,
            reused: connection.reused,
            refused: connection.is_refused(),
            unread: connection.is_unread(),
            replayable,
            repeatable: downstream.head.method().is_idempotent() || untouched,
            settled,
            retries_left,
            turned_back: failed.turned_back,
        });
        let verdict = match verdict {
            RetryVerdict::Final if settled && breaks(&failed, policy, elsewhere) => RetryVerdict::Elsewhere,
            verdict => verdict,
        };
        if verdict == RetryVerdict::Final {
            return Err(blame(policy.cluster, connection, &failed));
        }
        opening.bytes = match &mut downstream.held {
            Some(held) if begun => held.take_first(),
            _ => connection.writer.take_sent(),
        };
        if verdict == RetryVerdict::Elsewhere {
            if !failed.turned_back {
                blame(policy.cluster, connection, &failed);
            }
            attempt.tried.push(connection.endpoint.id);
        }
        attempt.fresh = true;
        match verdict {
            // Other endpoints of the cluster may be relays as well: a request waits for one trial only.
            RetryVerdict::AgainUnjoined => attempt.candidate = None,
            _ => progress.retries += 1,
        }
    }
}

/// Whether the endpoint broke the connection before it responded, and the request goes to another one.
fn breaks(failed: &Failed, policy: &Policy<'_>, elsewhere: Option<Elsewhere<'_>>) -> bool {
    let is_broken = failed.silent && failed.reason == Reason::UpstreamClosed;
    is_broken
        && policy.retry.statuses.contains(502)
        && elsewhere.is_some_and(|elsewhere| elsewhere.take_retry(policy))
}

/// Why the exchange failed. Counts it against the endpoint if it is the endpoint's fault.
fn blame(cluster: &Cluster, connection: &UpstreamConnection, failed: &Failed) -> Reason {
    let reason = connection.refusal(cluster, failed.silent).unwrap_or(failed.reason);
    let reason = connection.unless_cancelled(reason);
    if reason.side() == Side::Upstream && reason != Reason::UpstreamCancelled {
        connection.endpoint.record_failure(&cluster.config.ejection, clock::now_ms());
    }
    reason
}

/// Starts sending the request, and its deadline.
fn start(
    connection: &mut UpstreamConnection,
    opening: &mut Opening,
    policy: &Policy<'_>,
    downstream: &Downstream<'_>,
    progress: &mut Progress,
) {
    let trailers = || match &downstream.held {
        Some(held) => held.trailers(),
        None => downstream.transfer.trailers(),
    };
    opening.submit(&mut connection.writer, (!downstream.has_rest()).then(trailers));
    let now = Instant::now();
    connection.sent(now);
    progress.times.sent_at = Some(now);
    progress.times.first_byte_at = None;
    let patience_ms =
        if downstream.has_rest() { policy.body_idle_timeout_ms } else { policy.response_timeout_ms };
    downstream.deadline.set(patience_ms);
}

/// Runs both directions until the response is complete.
#[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end at different times")]
async fn run(
    resources: &Resources,
    policy: &Policy<'_>,
    downstream: &mut Downstream<'_>,
    connection: &mut UpstreamConnection,
    progress: &mut Progress,
    (armed, elsewhere): (Option<&Armed<'_>>, Option<Elsewhere<'_>>),
) -> Result<download::ReceivedResponse, Failed> {
    let shared = SharedState {
        deadline: downstream.deadline,
        policy,
        resources,
        limits: downstream.limits,
        received: downstream.transfer.is_done(),
        uploaded: Cell::new(!downstream.has_rest()),
        head_received: Cell::new(false),
        wait_count: Cell::new(resources.dialer.direct().map(Direct::count_wait)),
        pipelined: Cell::new(false),
        elsewhere,
    };
    let UpstreamConnection { endpoint, reader, writer, head, scanner, reusable, joined, .. } = connection;
    let outcome = {
        let answer = answer::Answer {
            request: downstream.head,
            change: downstream.change.as_ref(),
            keep_alive: downstream.keep_alive,
            endpoint,
            listener: downstream.listener,
        };
        let mut from = download::UpstreamSide {
            reader,
            head,
            scanner,
            reusable,
            is_early: false,
            joined: joined.as_deref(),
            armed,
        };
        let download = pin!(download::run(&shared, &answer, &mut from, downstream.writer, progress));
        let body = upload::Body { transfer: downstream.transfer, held: downstream.held.as_deref_mut() };
        let upload = pin!(upload::run(&shared, downstream.reader, writer, body));
        let interruption = pin!(race::interrupted(resources, policy, joined.as_deref(), armed));
        race::race(download, upload, interruption, &shared, armed).await
    };
    outcome.map_err(|failed| failed.unwrap_or_else(|| race::elapsed(&shared, downstream, writer)))
}

/// Resolves when the client is gone, before its request is sent; see [`upload::watch`].
pub(crate) async fn client_gone(deadline: &Deadline, reader: &mut Reader, patience: Duration) {
    upload::watch(deadline, reader, patience, None).await;
}
