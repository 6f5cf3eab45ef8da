//! Sends an idempotent request to a second endpoint as well, once the first takes longer than nearly all requests do. The
//! one that answers first serves it; the connection to the other is closed.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use sluice_core::clock;
use sluice_http::Trailers;
use sluice_net::buffers::SMALL_BYTES;
use sluice_net::deadline::Deadline;
use tokio::time::sleep;

use super::{Downstream, Policy, Resources, client_gone};
use crate::opening::Opening;
use crate::progress::Progress;
use crate::upstream::{self, Acquired, Attempt, UpstreamConnection};

/// What ended a wait.
enum Event<T> {
    /// The connection has something to read (true), or has ended.
    First(bool),
    /// What was waited for besides.
    Other(T),
    /// The client is gone, or the deadline has passed: the exchange itself will notice.
    Over,
}

/// Waits for the response to the request that was just sent over `first`; returns the connection whose response began
/// first. `opening` is the whole request.
#[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end at different times")]
pub(super) async fn first_to_answer(
    resources: &Resources,
    policy: &Policy<'_>,
    downstream: &mut Downstream<'_>,
    attempt: &mut Attempt<'_>,
    mut first: Acquired,
    opening: Vec<u8>,
    progress: &mut Progress,
) -> Acquired {
    let begun = Instant::now();
    let patience = policy.cluster.hedge_after();
    let waiting = async {
        match patience {
            Some(patience) => sleep(patience).await,
            None => std::future::pending().await,
        }
    };
    match until_readable(&mut first.connection, downstream, waiting).await {
        Event::Other(()) => {}
        Event::First(true) => {
            policy.cluster.note_first_byte(begun.elapsed());
            return first;
        }
        Event::First(false) | Event::Over => return first,
    }
    let last = first.connection.endpoint.id;
    if !policy.cluster.take_retry(last, &attempt.tried, clock::now_ms()) {
        wait_for(&mut first.connection, downstream, policy, begun).await;
        return first;
    }
    attempt.tried.push(last);
    let second = {
        let acquiring = upstream::acquire(&resources.dialer, attempt);
        until_readable(&mut first.connection, downstream, acquiring).await
    };
    let mut second = match second {
        Event::Other(Ok(second)) => second,
        Event::Other(Err(_)) => {
            wait_for(&mut first.connection, downstream, policy, begun).await;
            return first;
        }
        Event::First(_) | Event::Over => return first,
    };
    let mut copy = Opening::new(opening, false);
    copy.submit(&mut second.connection.writer, Some(Trailers::NONE));
    second.connection.sent(Instant::now());
    let answering = readable(&mut second.connection, downstream.deadline);
    let is_second = match until_readable(&mut first.connection, downstream, answering).await {
        Event::Other(answers) => answers,
        // The first has ended without an answer, so only the second can have one.
        Event::First(answers) => !answers,
        Event::Over => false,
    };
    policy.cluster.note_first_byte(begun.elapsed());
    if !is_second {
        return first;
    }
    progress.endpoint = Some(second.connection.endpoint.clone());
    progress.times.connect = second.connect;
    progress.path = Some(second.connection.path());
    progress.retries += 1;
    second
}

/// Waits for the response of the only connection.
async fn wait_for(
    connection: &mut UpstreamConnection,
    downstream: &mut Downstream<'_>,
    policy: &Policy<'_>,
    begun: Instant,
) {
    let never = std::future::pending::<()>();
    let _ = until_readable(connection, downstream, never).await;
    policy.cluster.note_first_byte(begun.elapsed());
}

async fn until_readable<T>(
    connection: &mut UpstreamConnection,
    downstream: &mut Downstream<'_>,
    other: impl Future<Output = T>,
) -> Event<T> {
    let half_close = Duration::from_millis(downstream.limits.half_close_timeout_ms);
    let deadline = downstream.deadline;
    let mut gone = pin!(client_gone(deadline, downstream.reader, half_close));
    let (mut other, mut readable) = (pin!(other), pin!(readable(connection, deadline)));
    let event = deadline.run(poll_fn(|cx| {
        if let Poll::Ready(answers) = readable.as_mut().poll(cx) {
            return Poll::Ready(Event::First(answers));
        }
        if gone.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Event::Over);
        }
        other.as_mut().poll(cx).map(Event::Other)
    }));
    event.await.unwrap_or(Event::Over)
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
