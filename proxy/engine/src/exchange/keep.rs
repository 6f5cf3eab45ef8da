//! Responses that are kept in a cache: received whole before their client gets them, or copied as they pass.

use std::sync::Arc;

use bytes::Bytes;
use sluice_cache::{Admission, Outcome, Room, StoredResponse};
use sluice_core::error::Reason;
use sluice_http::Framing;
use sluice_net::buffers::SMALL_BYTES;
use sluice_net::stream::Writer;

use super::answer::Answer;
use super::download::UpstreamSide;
use super::transfer::download_reason;
use super::{Failed, SharedState, chunk_limits, hold};
use crate::body::{BodyError, Transfer, copy_ahead};
use crate::cache::{Fill, Judgement};

/// The largest receive.
const RECEIVE_BYTES: usize = 256 * 1024;

/// What is done with a response. One that the client does not get either is not kept.
pub(super) fn judge(
    shared: &SharedState<'_>,
    fill: &Fill,
    answer: &Answer<'_>,
    from: &UpstreamSide<'_>,
    is_replaced: bool,
) -> Judgement {
    match fill.judge(answer.request, from.head, shared.policy.request_edits) {
        Judgement::Keep(_) if is_replaced => {
            fill.settle(Outcome::Passed);
            Judgement::Pass
        }
        judgement => judgement,
    }
}

/// How a response is kept.
pub(super) enum KeepMode<'a> {
    /// First all of it, and then the client gets it from the cache.
    Whole(WholeBody<'a>),
    /// As it passes: nobody knows how long it is.
    Along(PassingBody<'a>),
}

/// Begins to keep a response; `None` if there is no room.
pub(super) fn begin<'a>(fill: &'a Fill, admission: Box<Admission>, framing: Framing) -> Option<KeepMode<'a>> {
    let known = match framing {
        Framing::None => Some(0),
        Framing::Length(length) => Some(length),
        Framing::Chunked | Framing::CloseDelimited | Framing::Stream => None,
    };
    let Some(room) = fill.room(known) else {
        fill.give_up();
        return None;
    };
    Some(match known {
        Some(_) => KeepMode::Whole(WholeBody { fill, admission, room }),
        None => {
            fill.begin_copy();
            KeepMode::Along(PassingBody { fill, admission, room })
        }
    })
}

/// A body that is kept as it passes.
pub(super) struct PassingBody<'a> {
    fill: &'a Fill,
    admission: Box<Admission>,
    room: Room,
}

impl PassingBody<'_> {
    /// Receives it, and sends it with `sending` after the bytes in `out`.
    pub(super) async fn pass(
        self,
        shared: &SharedState<'_>,
        (from, writer): (&mut UpstreamSide<'_>, &mut Writer),
        (first, mut receiving, sending): (Vec<u8>, Transfer, &mut Transfer),
        out: Vec<u8>,
    ) -> Result<(), BodyError> {
        let Self { fill, admission, room } = self;
        let mut admission = Some(admission);
        let mut keep = |body: Option<(Bytes, Room)>| {
            if let (Some((body, room)), Some(admission)) = (body, admission.take()) {
                return Ok(fill.keep(*admission, body, room));
            }
            fill.give_up();
            // Nobody is there to get the rest.
            if fill.is_detached() { Err(BodyError::Unwritable) } else { Ok(None) }
        };
        let ends = (&mut *from.reader, writer);
        let limits = (shared.deadline, &shared.resources.buffers);
        copy_ahead(ends, (&mut receiving, sending), (first, room), out, limits, &mut keep).await
    }
}

/// A body that is received whole.
pub(super) struct WholeBody<'a> {
    fill: &'a Fill,
    admission: Box<Admission>,
    room: Room,
}

impl WholeBody<'_> {
    pub(super) async fn receive(
        self,
        shared: &SharedState<'_>,
        from: &mut UpstreamSide<'_>,
        framing: Framing,
    ) -> Result<Arc<StoredResponse>, Failed> {
        // Memory follows what has arrived: a length alone costs an application nothing.
        let mut bytes = Vec::new();
        let transfer = Transfer::new(framing, framing, chunk_limits(shared.limits), u64::MAX);
        let mut transfer = hold::limited(shared, transfer)?;
        let failed = |error: BodyError| Failed::from(download_reason(error));
        loop {
            transfer.take(from.reader, &mut bytes).map_err(failed)?;
            if transfer.is_done() {
                break;
            }
            let left =
                transfer.remaining().and_then(|left| usize::try_from(left).ok()).unwrap_or(SMALL_BYTES);
            let received = from.reader.fill(left.clamp(SMALL_BYTES, RECEIVE_BYTES)).await;
            shared.deadline.touch();
            if received.map_err(|_| failed(BodyError::Incomplete))? == 0 {
                return Err(failed(BodyError::Incomplete));
            }
        }
        from.reader.shrink(SMALL_BYTES);
        *from.reusable = from.head.keep_alive() && !from.is_early;
        let stored = self.fill.keep(*self.admission, Bytes::from(bytes.into_boxed_slice()), self.room);
        stored.ok_or_else(|| Reason::BadResponse.into())
    }
}
