//! Responses that are kept in a cache: received whole before their client gets them, or copied as they pass.

use std::sync::Arc;

use bytes::Bytes;
use sluice_cache::{Admission, Outcome, Room, Stored};
use sluice_core::error::Reason;
use sluice_http::Framing;
use sluice_net::buffers::SMALL_BYTES;

use super::answer::Answer;
use super::download::UpstreamSide;
use super::transfer::download_reason;
use super::{Failed, SharedState, chunk_limits};
use crate::body::{BodyCopy, BodyError, Transfer};
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
pub(super) enum Kept<'a> {
    /// First all of it, and then the client gets it from the cache: a slow client does not hold up the others.
    Whole(Intake<'a>),
    /// As it passes: nobody knows how long it is.
    Along(BodyCopy),
}

/// Begins to keep a response; `None` if there is no room.
pub(super) fn begin<'a>(fill: &'a Fill, admission: Box<Admission>, framing: Framing) -> Option<Kept<'a>> {
    let known = match framing {
        Framing::None => Some(0),
        Framing::Length(length) => Some(length),
        Framing::Chunked | Framing::CloseDelimited | Framing::Stream => None,
    };
    let Some(room) = fill.room(known.unwrap_or(0)) else {
        fill.settle(Outcome::Passed);
        return None;
    };
    Some(match known {
        Some(_) => Kept::Whole(Intake { fill, admission, room }),
        None => {
            fill.begin_copy();
            Kept::Along(BodyCopy::new(admission, room))
        }
    })
}

/// Keeps what has been copied.
pub(super) fn end(fill: Option<&Fill>, copy: BodyCopy) {
    if let Some(fill) = fill {
        fill.keep(*copy.admission, Bytes::from(copy.bytes.into_boxed_slice()));
    }
}

/// A body that is received whole.
pub(super) struct Intake<'a> {
    fill: &'a Fill,
    admission: Box<Admission>,
    room: Room,
}

impl Intake<'_> {
    pub(super) async fn receive(
        self,
        shared: &SharedState<'_>,
        from: &mut UpstreamSide<'_>,
        framing: Framing,
    ) -> Result<Arc<Stored>, Failed> {
        // Memory follows what has arrived: a length alone costs an application nothing.
        let mut bytes = Vec::new();
        let mut transfer = Transfer::new(framing, framing, chunk_limits(shared.limits), self.room.bytes());
        let failed = |error: BodyError| Failed::from(download_reason(error));
        loop {
            transfer.take(from.reader, &mut bytes).map_err(failed)?;
            if transfer.is_done() {
                break;
            }
            let wanted = transfer
                .remaining()
                .map_or(SMALL_BYTES, |left| usize::try_from(left).unwrap_or(RECEIVE_BYTES));
            let received = from.reader.fill(wanted.clamp(SMALL_BYTES, RECEIVE_BYTES)).await;
            shared.deadline.touch();
            if received.map_err(|_| failed(BodyError::Incomplete))? == 0 {
                transfer.look_for_end(from.reader, &mut bytes).map_err(failed)?;
                if !transfer.is_done() {
                    return Err(failed(BodyError::Incomplete));
                }
            }
        }
        from.reader.shrink(SMALL_BYTES);
        *from.reusable = from.head.keep_alive() && !from.is_early;
        let stored = self.fill.keep(*self.admission, Bytes::from(bytes.into_boxed_slice()));
        stored.ok_or_else(|| Reason::BadResponse.into())
    }
}
