//! Races both directions of an exchange, direct return, and the deadline: whichever ends first ends the exchange.

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use sluice_core::error::Reason;
use sluice_net::stream::Writer;

use super::{Downstream, Failed, Policy, Resources, SharedState, download};
use crate::bypass::Joined;
use crate::direct::Armed;

/// `Err(None)` means that the deadline elapsed.
pub(super) async fn race(
    mut download: Pin<&mut impl Future<Output = Result<download::ReceivedResponse, Failed>>>,
    mut upload: Pin<&mut impl Future<Output = Reason>>,
    mut interruption: Pin<&mut impl Future<Output = Failed>>,
    shared: &SharedState<'_>,
    armed: Option<&Armed<'_>>,
) -> Result<download::ReceivedResponse, Option<Failed>> {
    poll_fn(|cx| {
        if let Some(armed) = armed {
            if shared.pipelined.take() {
                armed.want();
            }
            if let Poll::Ready(answered) = armed.poll(cx, shared.deadline, shared.policy.body_idle_timeout_ms)
            {
                return Poll::Ready(Ok(download::ReceivedResponse::Direct(answered)));
            }
        }
        if let Poll::Ready(outcome) = download.as_mut().poll(cx) {
            return Poll::Ready(outcome.map_err(Some));
        }
        if let Poll::Ready(reason) = upload.as_mut().poll(cx) {
            return Poll::Ready(Err(Some(reason.into())));
        }
        if let Poll::Ready(failed) = interruption.as_mut().poll(cx) {
            return Poll::Ready(Err(Some(failed)));
        }
        if armed.is_some() && shared.pipelined.get() {
            // The request has arrived just now, and nothing else signals that the response has ended.
            cx.waker().wake_by_ref();
        }
        std::task::ready!(shared.deadline.poll_elapsed(cx));
        if armed.is_some_and(Armed::take_head) {
            // The response has arrived in time; only its head waited for its body.
            shared.deadline.touch();
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Err(None))
    })
    .await
}

/// Resolves when something else ends the exchange: its request stays unread, or a drain of its targets has run out of
/// patience.
pub(super) async fn interrupted(
    resources: &Resources,
    policy: &Policy<'_>,
    joined: Option<&Joined>,
    armed: Option<&Armed<'_>>,
) -> Failed {
    if policy.request.entered.is_none() && !joined.is_some_and(Joined::is_on_trial) {
        return pending().await;
    }
    // Boxed, so that other exchanges do not carry its memory.
    let unread = Box::pin(unread(resources, joined));
    tokio::select! {
        biased;
        () = unread => Failed { silent: true, ..Reason::ResponseTimeout.into() },
        reason = cut(policy, armed) => reason.into(),
    }
}

/// Resolves when a drain has run out of patience with the exchange. When a drain starts, the response is taken over
/// from direct return, because its end would not be noticed otherwise.
async fn cut(policy: &Policy<'_>, armed: Option<&Armed<'_>>) -> Reason {
    let Some(entered) = policy.request.entered else { return pending().await };
    // Boxed, so that other exchanges do not carry its memory.
    let cut = Box::pin(async {
        if let Some(armed) = armed {
            entered.drained().await;
            armed.want();
        }
        entered.cut().await;
    });
    cut.await;
    Reason::TargetDrained
}

/// Runs a part of an exchange before its request is sent, unless a drain of its targets runs out of patience. Takes it by
/// reference, because an async function keeps two places for a future that it is given.
pub(crate) async fn until_cut<T>(
    policy: &Policy<'_>,
    part: Pin<&mut impl Future<Output = Result<T, Reason>>>,
) -> Result<T, Reason> {
    tokio::select! {
        biased;
        outcome = part => outcome,
        reason = cut(policy, None) => Err(reason),
    }
}

/// Resolves if an endpoint on trial does not read the joined bytes of the request.
async fn unread(resources: &Resources, joined: Option<&Joined>) {
    match resources.dialer.joiner().zip(joined.filter(|joined| joined.is_on_trial())) {
        Some((joiner, joined)) => joiner.unread(joined).await,
        None => pending().await,
    }
}

/// Which silence caused the deadline to elapse.
pub(super) fn elapsed(
    shared: &SharedState<'_>,
    downstream: &mut Downstream<'_>,
    upstream: &mut Writer,
) -> Failed {
    let reason = match (shared.head_received.get(), shared.uploaded.get()) {
        (true, _) if !downstream.writer.try_settle(downstream.deadline) => Reason::ClientStalled,
        (true, _) => Reason::ResponseStalled,
        (false, true) => Reason::ResponseTimeout,
        // The whole request was received: the missing part is in the file.
        (false, false) if shared.received && upstream.try_settle(shared.deadline) => {
            Reason::RequestSpoolFailed
        }
        // The client's bytes are still here: the origin does not read.
        (false, false) if !upstream.try_settle(shared.deadline) => Reason::ResponseTimeout,
        (false, false) => Reason::BodyTimeout,
    };
    reason.into()
}
