//! An upstream connection for an exchange, what its use says of the endpoint, and its release.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use sluice_core::error::Reason;

use super::{Downstream, Failed, Finish, Policy, Resources, download, upload};
use crate::progress::Progress;
use crate::upstream::{self, Acquired, Attempt};

/// Gets a connection, unless the client goes away meanwhile. While a request body is still to come, the
/// client is not read: its bytes would pile up here. But a stream's reset is seen all the same, and must be: its place
/// among the connection's streams is free by then.
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

/// Tells the endpoint's limit how long a request took that was sent in one piece.
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
    acquired.in_flight.observe(sent, latency);
}

/// Releases the connection behind a response that was received whole.
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
            Finish::Upgraded(Box::new(Acquired { in_flight: acquired.in_flight.into_tunnel(), ..acquired }))
        }
        received => {
            let Acquired { mut connection, in_flight, .. } = acquired;
            // A request that is not whole leaves the connection in the middle of a body.
            connection.reusable &=
                !downstream.has_rest() && connection.writer.try_settle(downstream.deadline);
            connection.carried_body = downstream.transfer.has_carried();
            resources.dialer.pool.release(connection, policy.cluster.config.pool);
            // Whoever is next at the endpoint finds the connection there.
            drop(in_flight);
            match received {
                download::ReceivedResponse::Whole { keep_alive } => Finish::Answered { keep_alive },
                download::ReceivedResponse::Held(answer) => Finish::Held(answer),
                _ => Finish::Answered { keep_alive: downstream.keep_alive },
            }
        }
    }
}
