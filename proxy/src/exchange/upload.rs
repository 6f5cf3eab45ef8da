//! The request's way: the rest of its body, then an eye on the client until the answer is whole.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use super::{Shared, upload_reason};
use crate::body::{BodyError, Transfer, copy};
use crate::buffers::IDLE_BYTES;
use crate::config::Limits;
use crate::deadline::Deadline;
use crate::error::Reason;
use crate::stream::{Reader, Writer};

/// How often a client whose next request waits behind this one is asked whether it is still there.
const HANG_UP_CHECK: Duration = Duration::from_millis(250);

/// Passes the body on and watches the client. Resolves only when the exchange has to end.
pub(super) async fn run(
    shared: &Shared<'_>,
    reader: &mut Reader,
    upstream: &mut Writer,
    transfer: &mut Transfer,
    limits: &Limits,
) -> Reason {
    if !transfer.is_done() {
        let buffers = shared.worker.buffers();
        let copied = copy(reader, upstream, transfer, Vec::new(), shared.deadline, buffers).await;
        match copied {
            Ok(()) => {
                shared.uploaded.set(true);
                if !shared.head_received.get() {
                    shared.deadline.set(shared.policy.response_timeout_ms);
                }
            }
            // An origin may answer without reading on (413, for one); what it has said is read before
            // its connection is given up.
            Err(BodyError::Unwritable) => {}
            Err(error) => return upload_reason(error),
        }
    }
    let mut watching = pin!(watch(
        shared.deadline,
        reader,
        Duration::from_millis(limits.half_close_timeout_ms),
        Some(&shared.pipelined)
    ));
    poll_fn(|cx| {
        // The socket may have taken a part of the last piece only. If it breaks, the answer tells.
        if !upstream.is_quiet() {
            let _ = upstream.poll_settle(cx, shared.deadline);
        }
        watching.as_mut().poll(cx)
    })
    .await;
    Reason::ClientGone
}

/// Resolves when the client is gone: reset at once, or its side closed and nothing written to it for
/// `patience`. A client may shut its side down and still wait for the answer (RFC 9112 9.6 lets it),
/// which cannot be told from one that has closed, until something is written. `more` is set when the client's next
/// request has come.
pub(super) async fn watch(
    deadline: &Deadline,
    reader: &mut Reader,
    patience: Duration,
    more: Option<&Cell<bool>>,
) {
    if reader.data().is_empty() {
        reader.arm_patiently(IDLE_BYTES);
        match reader.fill(IDLE_BYTES).await {
            Ok(0) => {}
            Ok(_) => {
                more.inspect(|more| more.set(true));
                pipelined(reader).await;
            }
            Err(_) => return,
        }
    } else {
        pipelined(reader).await;
    }
    if patience.is_zero() {
        return;
    }
    loop {
        let seen = deadline.last_activity();
        tokio::time::sleep(patience).await;
        if deadline.last_activity() == seen {
            return;
        }
    }
}

/// The next request is here already, so reading would not show an end: ask the socket.
async fn pipelined(reader: &Reader) {
    while !reader.stream().is_hung_up() {
        tokio::time::sleep(HANG_UP_CHECK).await;
    }
}
