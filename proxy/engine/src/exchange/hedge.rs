//! Sends a request that changes nothing to a second endpoint as well, once the first takes longer than nearly all requests
//! do. The one that answers first serves it; the connection to the other is closed.

use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use sluice_core::clock;
use sluice_core::cluster::{Kind, ServiceSample};
use sluice_core::error::Reason;
use sluice_http::Trailers;
use sluice_net::buffers::SMALL_BYTES;
use sluice_net::deadline::Deadline;
use tokio::time::sleep;

use super::{Downstream, Policy, Resources, client_gone};
use crate::opening::Opening;
use crate::progress::Progress;
use crate::upstream::{self, Acquired, Attempt, UpstreamConnection};

/// Maximum size of a request that is kept for a second endpoint, in bytes.
pub(super) const BYTES_MAX: usize = 16 << 10;

/// A request that was just sent, and may go to a second endpoint.
pub(super) struct Hedge {
    pub(super) first: Acquired,
    /// All of it.
    pub(super) opening: Vec<u8>,
    /// Endpoints that it does not go to.
    pub(super) tried: Vec<u32>,
}

/// What ended a wait.
enum Event<T> {
    /// The first connection has something to read (true), or has ended.
    First(bool),
    /// What was waited for besides.
    Other(T),
    /// The deadline has passed.
    Late,
}

impl Hedge {
    /// The connection whose response begins first.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) async fn first_to_answer(
        mut self,
        resources: &Resources,
        policy: &Policy<'_>,
        downstream: &mut Downstream<'_>,
        progress: &mut Progress,
    ) -> Result<Acquired, Reason> {
        let begun = Instant::now();
        let patience = policy.cluster.hedge_after();
        let waiting = async {
            match patience {
                Some(patience) => sleep(patience).await,
                None => pending().await,
            }
        };
        let event = self.until_readable(downstream, waiting).await?;
        let second = match event {
            Event::Other(()) => self.second(resources, policy, downstream).await?,
            event => return Ok(self.settle(&event, begun, policy, progress)),
        };
        let mut second = match second {
            Event::Other(Some(second)) => second,
            Event::Other(None) => {
                let event = self.until_readable(downstream, pending::<()>()).await?;
                return Ok(self.settle(&event, begun, policy, progress));
            }
            event => return Ok(self.settle(&event, begun, policy, progress)),
        };
        let mut copy = Opening::new(std::mem::take(&mut self.opening), false);
        copy.submit(&mut second.connection.writer, Some(Trailers::NONE));
        let sent = Instant::now();
        second.connection.sent(sent);
        let answering = readable(&mut second.connection, downstream.deadline);
        let event = self.until_readable(downstream, answering).await?;
        let (is_second, answers) = match event {
            Event::Other(answers) => (answers, answers),
            // The first has ended without an answer, so only the second can have one.
            Event::First(answers) => (!answers, answers),
            Event::Late => (false, false),
        };
        if !is_second {
            if matches!(event, Event::Other(false)) {
                self::ended(&second, policy);
            }
            return Ok(self.settle(&event, begun, policy, progress));
        }
        if matches!(event, Event::First(false)) {
            self::ended(&self.first, policy);
        }
        policy.cluster.note_first_byte(begun.elapsed());
        // At least as long as until now.
        self.first.in_flight.observe(ServiceSample { sent: begun, latency: begun.elapsed(), closes: false });
        progress.endpoint = Some(second.connection.endpoint.clone());
        progress.path = Some(second.connection.path());
        progress.times.connect = second.connect;
        progress.times.sent_at = Some(sent);
        progress.times.first_byte_at = answers.then(Instant::now);
        progress.retries += 1;
        Ok(second)
    }

    /// Another endpoint, if one has room now and the budget allows it: a hedge must not make a queue longer.
    async fn second(
        &mut self,
        resources: &Resources,
        policy: &Policy<'_>,
        downstream: &mut Downstream<'_>,
    ) -> Result<Event<Option<Acquired>>, Reason> {
        let (retry, client) = (policy.retry, policy.request.client);
        let mut attempt = Attempt::new(policy.cluster, Kind::Request, None, retry, client);
        attempt.tried = self.tried.clone();
        let last = self.first.connection.endpoint.id;
        attempt.tried.push(last);
        let may = || policy.cluster.take_retry(last, &self.tried, clock::now_ms());
        let acquiring = upstream::acquire_at_once(&resources.dialer, &mut attempt, may);
        let Self { first, .. } = self;
        until_readable(&mut first.connection, downstream, acquiring).await
    }

    async fn until_readable<T>(
        &mut self,
        downstream: &mut Downstream<'_>,
        other: impl Future<Output = T>,
    ) -> Result<Event<T>, Reason> {
        until_readable(&mut self.first.connection, downstream, other).await
    }

    /// Goes on with the first connection.
    fn settle<T>(
        self,
        event: &Event<T>,
        begun: Instant,
        policy: &Policy<'_>,
        progress: &mut Progress,
    ) -> Acquired {
        if matches!(event, Event::First(true)) {
            policy.cluster.note_first_byte(begun.elapsed());
            progress.times.first_byte_at = Some(Instant::now());
        }
        self.first
    }
}

/// Counts a connection that ended without an answer against its endpoint, unless it may have died unused.
fn ended(acquired: &Acquired, policy: &Policy<'_>) {
    if !acquired.connection.reused {
        acquired.connection.endpoint.record_failure(&policy.cluster.config.ejection, clock::now_ms());
    }
}

async fn until_readable<T>(
    connection: &mut UpstreamConnection,
    downstream: &mut Downstream<'_>,
    other: impl Future<Output = T>,
) -> Result<Event<T>, Reason> {
    let half_close = Duration::from_millis(downstream.limits.half_close_timeout_ms);
    let deadline = downstream.deadline;
    let mut gone = pin!(client_gone(deadline, downstream.reader, half_close));
    let (mut other, mut readable) = (pin!(other), pin!(readable(connection, deadline)));
    let event = deadline.run(poll_fn(|cx| {
        if let Poll::Ready(answers) = readable.as_mut().poll(cx) {
            return Poll::Ready(Ok(Event::First(answers)));
        }
        if gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Reason::ClientGone));
        }
        other.as_mut().poll(cx).map(|other| Ok(Event::Other(other)))
    }));
    event.await.unwrap_or(Ok(Event::Late))
}

/// Whether there is something to read; false if the connection has ended.
async fn readable(connection: &mut UpstreamConnection, deadline: &Deadline) -> bool {
    let UpstreamConnection { reader, writer, .. } = connection;
    if !reader.data().is_empty() {
        return true;
    }
    let received = poll_fn(|cx| {
        if !writer.is_quiet() {
            // A failure shows in what is read, and is reported when the writer is settled.
            let _ = writer.poll_settle(cx, deadline);
        }
        reader.poll_fill(cx, SMALL_BYTES)
    });
    matches!(received.await, Ok(count) if count > 0)
}
