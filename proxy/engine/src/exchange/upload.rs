//! The path of the request: the rest of its body; then watches the client until the response is complete.

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use sluice_core::error::Reason;
use sluice_net::buffers::IDLE_BYTES;
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};

use super::{SharedState, upload_reason};
use crate::body::{BodyError, Transfer, copy};
use crate::spool::{Message, SendError};

/// How often to check whether a client with a pipelined request is still connected.
const HANG_UP_CHECK: Duration = Duration::from_millis(250);

/// The part of a request that is not sent with its head.
pub(super) struct Body<'a> {
    /// The part that the client still sends.
    pub(super) transfer: &'a mut Transfer,
    /// The buffered part, if the request was buffered.
    pub(super) held: Option<&'a mut Message>,
}

/// Forwards the body and watches the client. Resolves only when the exchange has to end.
pub(super) async fn run(
    shared: &SharedState<'_>,
    reader: &mut Reader,
    upstream: &mut Writer,
    body: Body<'_>,
) -> Reason {
    let transfer = body.transfer;
    if !transfer.is_done() {
        let buffers = &shared.resources.buffers;
        let copied = copy(reader, upstream, transfer, Vec::new(), shared.deadline, buffers).await;
        match copied {
            Ok(()) => uploaded(shared),
            // An origin may respond without reading on (for example with 413); its response is read before its
            // connection is given up.
            Err(BodyError::Unwritable) => {}
            Err(error) => return upload_reason(error),
        }
    }
    let mut watching = pin!(watch(
        shared.deadline,
        reader,
        Duration::from_millis(shared.limits.half_close_timeout_ms),
        Some(&shared.pipelined)
    ));
    let mut sending = pin!(send(shared, upstream, body.held));
    poll_fn(|cx| match sending.as_mut().poll(cx) {
        Poll::Ready(reason) => Poll::Ready(reason),
        Poll::Pending => watching.as_mut().poll(cx).map(|()| Reason::ClientGone),
    })
    .await
}

/// Sends the buffered part, and what the socket has not taken of the last piece. Resolves only if the file fails: if
/// the connection breaks, the response side notices.
async fn send(shared: &SharedState<'_>, upstream: &mut Writer, held: Option<&mut Message>) -> Reason {
    if let Some(message) = held.filter(|message| message.has_rest()) {
        let buffers = &shared.resources.buffers;
        match Box::pin(message.send_rest(upstream, shared.deadline, buffers, true)).await {
            Ok(()) => uploaded(shared),
            Err(SendError::Unwritable) => {}
            Err(SendError::Disk) => return Reason::RequestSpoolFailed,
        }
    }
    let _ = upstream.quieten(shared.deadline).await;
    pending().await
}

/// Records that the whole request is on its way.
fn uploaded(shared: &SharedState<'_>) {
    shared.uploaded.set(true);
    if !shared.head_received.get() {
        shared.deadline.set(shared.policy.response_timeout_ms);
    }
}

/// Resolves when the client is gone: reset, or its side closed and nothing written to it for `patience`. A client may
/// half-close and still wait for the response (RFC 9112 9.6 allows it). This cannot be distinguished from a full close
/// until something is written. `more` is set when the client's next request has arrived. Both rare waits are boxed, so
/// that other exchanges do not carry their memory.
pub(super) async fn watch(
    deadline: &Deadline,
    reader: &mut Reader,
    patience: Duration,
    more: Option<&Cell<bool>>,
) {
    if reader.data().is_empty() {
        reader.arm_patiently(IDLE_BYTES);
        let mut received = reader.fill(IDLE_BYTES).await;
        if matches!(received, Ok(0)) && reader.has_ended() {
            // This was the end of an unread message, not of the stream.
            received = reader.fill(IDLE_BYTES).await;
        }
        match received {
            Ok(0) => {}
            Ok(_) => {
                more.inspect(|more| more.set(true));
                Box::pin(pipelined(reader)).await;
            }
            Err(_) => return,
        }
    } else {
        Box::pin(pipelined(reader)).await;
    }
    if !patience.is_zero() {
        Box::pin(silence(deadline, patience)).await;
    }
}

/// Resolves when nothing has happened for `patience`.
async fn silence(deadline: &Deadline, patience: Duration) {
    loop {
        let seen = deadline.last_activity();
        tokio::time::sleep(patience).await;
        if deadline.last_activity() == seen {
            return;
        }
    }
}

/// The next request, or the rest of an upload, has already arrived, so reading would not show an end: query the socket.
/// A channel reports it itself.
async fn pipelined(reader: &Reader) {
    let stream = reader.stream();
    while !stream.is_hung_up() {
        let broken = poll_fn(|cx| stream.poll_broken(cx));
        if tokio::time::timeout(HANG_UP_CHECK, broken).await.is_ok() {
            return;
        }
    }
}
