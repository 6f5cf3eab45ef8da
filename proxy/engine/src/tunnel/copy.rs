//! One direction of a tunnel, copied through the ring.

use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};

use super::{Context, Fault, Stop};
use crate::body::{BodyError, Transfer, copy};

/// Copies one direction to its end and forwards the end, or until the transfer pauses.
pub(super) async fn direction(
    reader: &mut Reader,
    writer: &mut Writer,
    transfer: &mut Transfer,
    deadline: &Deadline,
    with: &Context<'_>,
) -> Result<Stop, Fault> {
    copy(reader, writer, transfer, Vec::new(), deadline, with.buffers).await.map_err(fault)?;
    if !transfer.is_done() {
        return Ok(Stop::Paused);
    }
    writer.settle(deadline).await.map_err(|_| Fault::Target)?;
    writer.stream().shutdown_write();
    Ok(Stop::Ended)
}

/// Which side failed.
pub(super) fn fault(error: BodyError) -> Fault {
    if error == BodyError::Unwritable { Fault::Target } else { Fault::Source }
}
