//! Opaque bytes in both directions after a 101 or on a `tcp` listener, copied through the ring.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::body::{BodyError, Transfer, copy};
use crate::deadline::Deadline;
use crate::error::Reason;
use crate::metrics::Event;
use crate::stream::{Reader, Writer};
use crate::worker::Worker;

/// The two connections, each with its directions.
pub(crate) struct Ends<'a> {
    pub(crate) downstream: (&'a mut Reader, &'a mut Writer),
    pub(crate) upstream: (&'a mut Reader, &'a mut Writer),
}

/// How a tunnel ended.
pub(crate) struct Outcome {
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// Why, unless both sides had ended properly.
    pub(crate) reason: Option<Reason>,
    /// One side broke off, so the other must be reset rather than closed.
    pub(crate) broken: bool,
}

/// Copies until both sides have ended, one has broken off, or nothing has moved for `idle_ms`.
pub(crate) async fn run(ends: Ends<'_>, deadline: &Deadline, idle_ms: u64, worker: &Worker) -> Outcome {
    let _open = worker.count_while(Event::TunnelOpened, Event::TunnelClosed);
    deadline.set(idle_ms);
    let mut up = Transfer::opaque();
    let mut down = Transfer::opaque();
    let result = {
        let upwards = pin!(direction(ends.downstream.0, ends.upstream.1, &mut up, deadline, worker));
        let downwards = pin!(direction(ends.upstream.0, ends.downstream.1, &mut down, deadline, worker));
        both(upwards, downwards, deadline).await
    };
    let (reason, broken) = match result {
        Some(Ok(())) => (None, false),
        Some(Err(side)) => (Some(side), true),
        None => (Some(Reason::TunnelIdle), true),
    };
    if broken {
        ends.upstream.1.stream().reset_on_close();
    }
    worker.metrics().add(Event::TunnelBytesToUpstream, up.bytes());
    worker.metrics().add(Event::TunnelBytesToDownstream, down.bytes());
    Outcome { bytes_up: up.bytes(), bytes_down: down.bytes(), reason, broken }
}

/// Copies one direction to its end, and carries the end across.
async fn direction(
    reader: &mut Reader,
    writer: &mut Writer,
    transfer: &mut Transfer,
    deadline: &Deadline,
    worker: &Worker,
) -> Result<(), BodyError> {
    copy(reader, writer, transfer, Vec::new(), deadline, worker.buffers()).await?;
    writer.settle(deadline).await.map_err(|_| BodyError::Unwritable)?;
    writer.stream().shutdown_write();
    Ok(())
}

/// Runs both directions; the first fault ends both. `None` is the deadline.
async fn both(
    mut up: std::pin::Pin<&mut impl Future<Output = Result<(), BodyError>>>,
    mut down: std::pin::Pin<&mut impl Future<Output = Result<(), BodyError>>>,
    deadline: &Deadline,
) -> Option<Result<(), Reason>> {
    let (mut up_done, mut down_done) = (false, false);
    poll_fn(|cx| {
        if !up_done && let Poll::Ready(ended) = up.as_mut().poll(cx) {
            match ended {
                Ok(()) => up_done = true,
                // The client has all that there was; a reset could cost it what is still on its way.
                Err(_) if down_done => return Poll::Ready(Some(Ok(()))),
                Err(BodyError::Unwritable) => return Poll::Ready(Some(Err(Reason::UpstreamClosed))),
                Err(_) => return Poll::Ready(Some(Err(Reason::ClientGone))),
            }
        }
        if !down_done && let Poll::Ready(ended) = down.as_mut().poll(cx) {
            match ended {
                Ok(()) => down_done = true,
                Err(BodyError::Unwritable) => return Poll::Ready(Some(Err(Reason::ClientGone))),
                Err(_) => return Poll::Ready(Some(Err(Reason::ResponseTruncated))),
            }
        }
        if up_done && down_done {
            return Poll::Ready(Some(Ok(())));
        }
        deadline.poll_elapsed(cx).map(|()| None)
    })
    .await
}
