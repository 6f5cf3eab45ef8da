//! Acquires an upstream connection for an exchange, reports what its use shows about the endpoint, and releases it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use sluice_core::cluster::ServiceSample;
use sluice_core::error::Reason;

use super::{Downstream, Failed, Finish, Policy, Resources, download, upload};
use crate::progress::Progress;
use crate::upstream::{self, Acquired, Attempt};

/// Acquires a connection, unless the client disconnects. While a request body is still to come, the client is not read:
/// its bytes would accumulate here. A stream's reset is noticed nevertheless, and must be: its place among the
/// connection's streams is then free.
pub(super) async fn acquire(
    resources: &Resources,
    attempt: &mut Attempt<'_>,
    downstream: &mut Downstream<'_>,
) -> Result<Acquired, Reason> {
    let mut acquiring = pin!(upstream::acquire(&resources.dialer, attempt));
    // Nearly always there is an idle connection, and nothing to wait for.
    if let Poll::Ready(acquired) = poll_fn(|cx| Poll::Ready(acquiring.as_mut().poll(cx))).await {
        return acquired;
    }
    if !downstream.transfer.is_done() {
        let stream = downstream.reader.stream();
        return poll_fn(|cx| match acquiring.as_mut().poll(cx) {
            Poll::Ready(acquired) => Poll::Ready(acquired),
            Poll::Pending => stream.poll_broken(cx).map(|()| Err(Reason::ClientGone)),
        })
        .await;
    }
    let patience = Duration::from_millis(downstream.limits.half_close_timeout_ms);
    let mut gone = pin!(upload::watch(downstream.deadline, downstream.reader, patience, None));
    poll_fn(|cx| match acquiring.as_mut().poll(cx) {
        Poll::Ready(acquired) => Poll::Ready(acquired),
        Poll::Pending => gone.as_mut().poll(cx).map(|()| Err(Reason::ClientGone)),
    })
    .await
}

/// Reports the response to a request that was sent in one piece to the endpoint's limit.
pub(super) fn observe(
    acquired: &Acquired,
    outcome: &Result<download::ReceivedResponse, Failed>,
    progress: &Progress,
) {
    let timed_out = matches!(outcome, Err(Failed { reason: Reason::ResponseTimeout, .. }));
    let Some(sent) = progress.times.sent_at.filter(|_| outcome.is_ok() || timed_out) else {
        return;
    };
    let latency = progress.times.first_byte_at.unwrap_or_else(Instant::now) - sent;
    let connection = &acquired.connection;
    let is_answer =
        matches!(outcome, Ok(received) if !matches!(received, download::ReceivedResponse::Upgrade));
    let closes = is_answer && !connection.reusable && !connection.head.keep_alive();
    acquired.in_flight.observe(ServiceSample { sent, latency, closes });
}

/// Releases the connection after a complete response.
pub(super) fn finish(
    resources: &Resources,
    policy: &Policy<'_>,
    acquired: Acquired,
    received: download::ReceivedResponse,
    downstream: &Downstream<'_>,
) -> Finish {
    acquired.connection.endpoint.record_success();
    match received {
        download::ReceivedResponse::Upgrade => {
            Finish::Upgraded(Acquired { in_flight: acquired.in_flight.into_tunnel(), ..acquired })
        }
        received => {
            let Acquired { mut connection, in_flight, .. } = acquired;
            // An incomplete request leaves the connection in the middle of a body.
            connection.reusable &=
                !downstream.has_rest() && connection.writer.try_settle(downstream.deadline);
            connection.carried_body = downstream.transfer.has_carried();
            resources.dialer.pool.release(connection, policy.cluster.config.pool);
            // The next request at the endpoint then finds the connection in the pool.
            drop(in_flight);
            match received {
                download::ReceivedResponse::Whole { keep_alive } => Finish::Answered { keep_alive },
                download::ReceivedResponse::Held(answer) => Finish::Held(answer),
                download::ReceivedResponse::Cached(stored, status) => Finish::Cached(stored, status),
                download::ReceivedResponse::Replaced(replaced) => Finish::Replaced(replaced),
                _ => Finish::Answered { keep_alive: downstream.keep_alive },
            }
        }
    }
}
