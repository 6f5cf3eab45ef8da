//! Direct return within an exchange: whether it may be used, and what became of it.

use std::future::poll_fn;
use std::task::Poll;

use sluice_core::error::Reason;
use sluice_core::metrics::{Event, Missed, Unarmed};
use sluice_core::record::BodyPath;
use sluice_ebpf::slot::Line;
use sluice_http::{Expect, Framing, Method, Version};
use sluice_net::buffers::{IDLE_BYTES, SMALL_BYTES};
use sluice_net::stream::{Reader, Writer};

use super::Resources;
use super::answer::Answer;
use super::transfer::download_reason;
use super::{Downstream, Failed, Policy, SharedState, chunk_limits, download};
use crate::body::{Transfer, copy};
use crate::direct::{Armed, Claimed, Direct, DirectAnswer, PathIndex, Rest};
use crate::progress::{Progress, Sent};
use crate::upstream::UpstreamConnection;

/// Directs the response to the next request to the client, if direct return may be used.
pub(super) fn arm<'a>(
    resources: &'a Resources,
    policy: &Policy<'_>,
    downstream: &mut Downstream<'_>,
    connection: &UpstreamConnection,
) -> Option<Armed<'a>> {
    let direct = resources.dialer.direct()?;
    let joined = connection.joined.as_ref()?;
    let checked = check(direct, policy, downstream).and_then(|place| {
        // An endpoint with TLS sends records that only sluice can read.
        if !connection.reader.stream().is_socket() {
            return Err(Unarmed::Tls);
        }
        let lease = joined.lease().ok_or(Unarmed::Slot)?;
        let line = line(direct, policy)?;
        let client = downstream.client.socket(direct, downstream.writer, downstream.exchanges)?;
        Ok((place, lease, client, line))
    });
    match checked {
        Ok((place, lease, client, line)) => {
            let sent = downstream.writer.sent_in_all();
            let received = lease.received_before().wrapping_add(connection.reader.received());
            let armed = Armed::new(direct, lease, policy.cluster, place, client, sent, received, line);
            // A request that was queued in the meantime has called the workers, or is seen here.
            if policy.cluster.is_waited_for() {
                armed.want();
            }
            Some(armed)
        }
        Err(unarmed) => {
            resources.dialer.metrics().count_missed(unarmed.into());
            None
        }
    }
}

/// What sluice adds to the response, if the program can add it, too.
fn line(direct: &Direct, policy: &Policy<'_>) -> Result<Line, Unarmed> {
    match &policy.request.request_id {
        None => Ok(Line::default()),
        Some(_) if !direct.adds_lines() => Err(Unarmed::Route),
        // A longer id is one that a trusted peer has sent.
        Some(id) => Line::of_field(b"X-Request-Id", id).ok_or(Unarmed::Request),
    }
}

fn check(
    direct: &Direct,
    policy: &Policy<'_>,
    downstream: &mut Downstream<'_>,
) -> Result<PathIndex, Unarmed> {
    if !policy.direct_return {
        return Err(Unarmed::Route);
    }
    let head = downstream.head;
    if head.version() != Version::Http11
        || head.method() == Method::Head
        || head.expect() != Expect::None
        || !downstream.keep_alive
        || !downstream.reader.data().is_empty()
    {
        return Err(Unarmed::Request);
    }
    if policy.cluster.is_waited_for() {
        return Err(Unarmed::Line);
    }
    let place = direct.place(policy.cluster, head.path());
    if !direct.is_likely(place) {
        return Err(Unarmed::Unlikely);
    }
    if downstream.writer.is_sent(downstream.deadline) { Ok(place) } else { Err(Unarmed::Socket) }
}

/// Evaluates the outcome of an exchange that was armed.
#[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end at different times")]
pub(super) async fn conclude(
    armed: &Armed<'_>,
    resources: &Resources,
    outcome: Result<download::ReceivedResponse, Failed>,
    connection: &mut UpstreamConnection,
    downstream: &mut Downstream<'_>,
    progress: &mut Progress,
) -> Result<download::ReceivedResponse, Failed> {
    let missed = armed.missed();
    downstream.client.keep_slack(armed.slack());
    match &outcome {
        Ok(download::ReceivedResponse::Direct(answered)) => {
            complete(answered, connection, downstream, progress);
            resources.dialer.metrics().count(Event::DirectReturned);
            // A client that sends another request has received everything. For other clients it is only known that the
            // bytes were queued.
            if downstream.reader.is_silent(IDLE_BYTES)
                && downstream.writer.settle(downstream.deadline).await.is_err()
            {
                return Err(Reason::ClientGone.into());
            }
        }
        // A connection that was closed before the request arrived has not responded.
        Err(Failed { silent: true, .. }) => {}
        _ => resources.dialer.metrics().count_missed(missed.unwrap_or(Unarmed::Failed.into())),
    }
    armed.note(missed.is_none_or(Missed::is_passing));
    let Err(mut failed) = outcome else {
        return outcome;
    };
    if !progress.is_answered() && armed.has_begun() {
        let partial = armed.partial();
        progress.sent = Sent::Head;
        progress.bytes_out = partial.sent;
        progress.times.first_byte_at = (partial.sent > 0).then_some(partial.first_byte_at);
        failed.silent = false;
        failed.reason = match failed.reason {
            Reason::UpstreamClosed => Reason::ResponseTruncated,
            Reason::ResponseTimeout => Reason::ResponseStalled,
            reason => reason,
        };
        // The response may be on its way without being recorded yet.
        progress.status = if partial.status == 0 { failed.reason.status() } else { partial.status };
    }
    Err(failed)
}

fn complete(
    answered: &DirectAnswer,
    connection: &mut UpstreamConnection,
    downstream: &mut Downstream<'_>,
    progress: &mut Progress,
) {
    downstream.writer.pass(answered.bytes);
    connection.reusable = true;
    connection.idle_since = Some(answered.ended_at);
    if let Some(joined) = &connection.joined {
        joined.answered();
    }
    progress.path = Some(BodyPath::Direct);
    progress.sent = Sent::Head;
    progress.status = answered.status;
    progress.bytes_out += answered.bytes;
    progress.times.first_byte_at = Some(answered.first_byte_at);
    progress.times.ended_at = Some(answered.ended_at);
}

/// Receives more, or waits for a held head that was left to sluice. Returns false at the end of the stream.
pub(super) async fn receive(reader: &mut Reader, armed: Option<&Armed<'_>>) -> bool {
    poll_fn(|cx| {
        if armed.is_some_and(Armed::has_left_head) {
            return Poll::Ready(true);
        }
        reader.poll_fill(cx, SMALL_BYTES).map(|received| matches!(received, Ok(count) if count > 0))
    })
    .await
}

/// Determines what the received bytes are; waits while this is undecided.
pub(super) async fn claim(armed: &Armed<'_>) -> Claimed {
    loop {
        if let Some(claimed) = armed.claim() {
            return claimed;
        }
        // If the whole response was sent, this future is dropped instead.
        tokio::task::yield_now().await;
    }
}

/// Copies the rest of a response.
#[expect(clippy::too_many_arguments, reason = "the parts of one exchange, which end at different times")]
pub(super) async fn go_on(
    shared: &SharedState<'_>,
    answer: &Answer<'_>,
    from: &mut download::UpstreamSide<'_>,
    writer: &mut Writer,
    progress: &mut Progress,
    rest: Rest,
) -> Result<download::ReceivedResponse, Failed> {
    let gone = |_| Failed::from(Reason::ClientGone);
    shared.note_head();
    shared.deadline.set(shared.policy.body_idle_timeout_ms);
    progress.status = rest.status;
    progress.sent = Sent::Head;
    progress.times.first_byte_at = Some(rest.first_byte_at);
    progress.bytes_out = rest.sent;
    writer.pass(rest.sent);
    writer.settle(shared.deadline).await.map_err(gone)?;
    let framing = Framing::Length(rest.remaining);
    let mut transfer = Transfer::new(framing, framing, chunk_limits(shared.limits), u64::MAX);
    let buffers = &shared.resources.buffers;
    let copied = copy(from.reader, writer, &mut transfer, Vec::new(), shared.deadline, buffers).await;
    progress.bytes_out += transfer.bytes();
    copied.map_err(download_reason)?;
    if !writer.is_quiet() {
        writer.quieten(shared.deadline).await.map_err(gone)?;
        writer.shrink(SMALL_BYTES);
    }
    *from.reusable = true;
    Ok(download::ReceivedResponse::Whole { keep_alive: answer.keep_alive })
}
