//! Buffered responses, received completely before the client gets any of them: which responses, and how they become one
//! message.

use sluice_config::Switch;
use sluice_core::error::Reason;
use sluice_http::{Framing, ResponseHead};

use super::answer::Answer;
use super::download::UpstreamSide;
use super::{Failed, SharedState, chunk_limits};
use crate::body::{BodyError, Transfer};
use crate::opening::Opening;
use crate::progress::Progress;
use crate::spool::{HoldError, Intake, Message};

/// A complete response; its upstream connection is free.
pub(crate) struct HeldAnswer {
    /// Its status.
    pub(crate) status: u16,
    /// Its head, unless the head is part of the message.
    pub(crate) opening: Opening,
    /// The body to send.
    pub(crate) message: Message,
    /// Whether the client may send another request.
    pub(crate) keep_alive: bool,
}

/// Whether the response is to be buffered. A response without a body is already complete; an event stream is useful
/// only while it arrives.
pub(super) fn is_held(shared: &SharedState<'_>, head: &ResponseHead, framing: Framing) -> bool {
    shared.policy.buffering.buffer_responses == Switch::On && !framing.is_empty() && !head.is_event_stream()
}

/// Maximum size of a response body on this route, in bytes.
pub(super) fn bytes_max(shared: &SharedState<'_>) -> u64 {
    match shared.policy.buffering.response_body_bytes_max {
        0 => u64::MAX,
        bytes => bytes,
    }
}

/// Receives the body.
pub(super) async fn hold(
    shared: &SharedState<'_>,
    answer: &Answer<'_>,
    (from, is_framed): (&mut UpstreamSide<'_>, bool),
    progress: &Progress,
    framing: Framing,
) -> Result<HeldAnswer, Failed> {
    let policy = shared.policy;
    shared.note_head();
    shared.deadline.set(policy.body_idle_timeout_ms);
    let mut transfer = Transfer::new(framing, framing, chunk_limits(shared.limits), u64::MAX);
    let failed = |error: HoldError| Failed::from(error.of_response());
    transfer.limit(bytes_max(shared)).map_err(|error| failed(HoldError::Body(error)))?;
    let intake = Intake::new(&shared.resources.spool, policy.buffers, policy.buffering.buffer_memory_bytes);
    let held = intake.run(from.reader, &mut transfer, shared.deadline).await.map_err(failed)?;
    let keep_alive = answer.keep_alive && shared.is_received() && !shared.resources.ends_connections();
    let towards = held.framing(answer.request.version());
    let mut opening = Opening::new(Vec::new(), is_framed);
    answer.encode_final(&mut opening, from.head, policy, progress, (towards, keep_alive), None);
    let message = held.behind(&std::mem::take(&mut opening.bytes), towards);
    *from.reusable = from.head.keep_alive() && !from.is_early && framing != Framing::CloseDelimited;
    Ok(HeldAnswer { status: from.head.status(), opening, message, keep_alive })
}

/// Rejects a body whose declared size exceeds the route's limit, before any of it is sent.
pub(super) fn limited(shared: &SharedState<'_>, mut transfer: Transfer) -> Result<Transfer, Failed> {
    match transfer.limit(bytes_max(shared)) {
        Err(BodyError::TooLarge) => Err(Reason::ResponseTooLarge.into()),
        _ => Ok(transfer),
    }
}
