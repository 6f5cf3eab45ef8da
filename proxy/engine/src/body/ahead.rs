//! Copies a body that is kept: it is received as fast as it comes, and sent as fast as its receiver takes it.

use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use sluice_cache::Room;
use sluice_net::buffers::SMALL_BYTES;
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};

use super::{BodyError, Transfer, read_error};

/// Bytes that are received or sent at once.
const STEP_BYTES: usize = 64 * 1024;

/// What has arrived of a body.
enum Arrival {
    /// All of it so far, and the room that it may take.
    Growing(Vec<u8>, Room),
    /// All of it.
    Whole(Bytes),
    /// What is not sent yet: it is too large to be kept.
    Passing(Vec<u8>),
}

/// A body on its way.
struct Backlog {
    arrival: Arrival,
    /// Bytes of it that were handed to the sender.
    sent: usize,
}

impl Backlog {
    fn pending(&self) -> &[u8] {
        let bytes = match &self.arrival {
            Arrival::Growing(bytes, _) | Arrival::Passing(bytes) => &bytes[..],
            Arrival::Whole(bytes) => bytes,
        };
        &bytes[self.sent..]
    }

    /// Whether more may be received before something is sent.
    fn has_room(&self) -> bool {
        match &self.arrival {
            Arrival::Growing(..) => true,
            Arrival::Whole(_) => false,
            Arrival::Passing(_) => self.pending().len() < STEP_BYTES,
        }
    }

    /// Takes what the reader has; returns whether the body is too large to be kept, from now on.
    fn take(&mut self, reader: &mut Reader, receiving: &mut Transfer) -> Result<bool, BodyError> {
        let (Arrival::Growing(bytes, _) | Arrival::Passing(bytes)) = &mut self.arrival else {
            return Ok(false);
        };
        receiving.take(reader, bytes)?;
        let Arrival::Growing(bytes, room) = &mut self.arrival else { return Ok(false) };
        if room.grow(bytes.len() as u64) {
            return Ok(false);
        }
        let rest = bytes.split_off(self.sent);
        self.sent = 0;
        self.arrival = Arrival::Passing(rest);
        Ok(true)
    }

    /// What is kept, once the last byte has arrived.
    fn end(&mut self) -> Option<(Bytes, Room)> {
        match std::mem::replace(&mut self.arrival, Arrival::Passing(Vec::new())) {
            Arrival::Growing(bytes, room) => {
                let bytes = Bytes::from(bytes.into_boxed_slice());
                self.arrival = Arrival::Whole(bytes.clone());
                Some((bytes, room))
            }
            other => {
                self.arrival = other;
                None
            }
        }
    }

    /// Hands the next piece to the sender.
    fn give(&mut self, sending: &mut Transfer, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let pending = self.pending();
        let piece = &pending[..pending.len().min(STEP_BYTES)];
        let count = piece.len();
        sending.push(piece, out)?;
        self.sent += count;
        if let Arrival::Passing(bytes) = &mut self.arrival
            && self.sent == bytes.len()
        {
            bytes.clear();
            self.sent = 0;
        }
        Ok(())
    }
}

/// What a copy waits for.
enum Progress {
    Received(usize),
    Sent,
}

/// Receives a body of unknown length with `receiving`, and sends it with `sending`, after the bytes in `out`. `first`
/// is what has arrived of it. When the
/// last byte has arrived, `keep` gets the body; when it is too large for its room, `keep` gets nothing, and the rest
/// is copied piece by piece. The last piece may still be in flight on return.
#[expect(clippy::too_many_arguments, reason = "both ends, the transfers, and what is done with the body")]
pub(crate) async fn copy_ahead(
    (reader, writer): (&mut Reader, &mut Writer),
    (receiving, sending): (&mut Transfer, &mut Transfer),
    first: (Vec<u8>, Room),
    mut out: Vec<u8>,
    deadline: &Deadline,
    mut keep: impl FnMut(Option<(Bytes, Room)>) -> Result<(), BodyError>,
) -> Result<(), BodyError> {
    let (first, room) = first;
    let mut backlog = Backlog { arrival: Arrival::Growing(first, room), sent: 0 };
    let mut is_sending = false;
    loop {
        if !receiving.is_done() && backlog.take(reader, receiving)? {
            keep(None)?;
        }
        if receiving.is_done()
            && let Some(kept) = backlog.end()
        {
            keep(Some(kept))?;
        }
        if !is_sending {
            backlog.give(sending, &mut out)?;
            let is_last = receiving.is_done() && backlog.pending().is_empty();
            match is_last {
                true => sending.end(&mut out)?,
                false if backlog.pending().is_empty() => sending.flush(&mut out)?,
                false => {}
            }
            if !out.is_empty() || sending.owes_end(writer) {
                sending.submit(writer, std::mem::take(&mut out), 0);
                is_sending = true;
            }
            if is_last {
                reader.shrink(SMALL_BYTES);
                return Ok(());
            }
        }
        let may_receive = !receiving.is_done() && backlog.has_room();
        let ends = (&mut *reader, &mut *writer);
        match progress(ends, is_sending, deadline, may_receive).await? {
            Progress::Received(0) => {
                let mut end = Vec::new();
                receiving.look_for_end(reader, &mut end)?;
                receiving.end(&mut end)?;
            }
            Progress::Received(_) => deadline.touch(),
            Progress::Sent => {
                is_sending = false;
                out = writer.spare();
            }
        }
    }
}

async fn progress(
    (reader, writer): (&mut Reader, &mut Writer),
    is_sending: bool,
    deadline: &Deadline,
    may_receive: bool,
) -> Result<Progress, BodyError> {
    poll_fn(|cx| {
        if is_sending && let Poll::Ready(settled) = writer.poll_settle(cx, deadline) {
            return Poll::Ready(settled.map(|()| Progress::Sent).map_err(|_| BodyError::Unwritable));
        }
        if !may_receive {
            return Poll::Pending;
        }
        reader.poll_fill(cx, STEP_BYTES).map(|outcome| outcome.map(Progress::Received).map_err(read_error))
    })
    .await
}
