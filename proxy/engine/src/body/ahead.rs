//! Copies a body that is kept: it is received as fast as it comes, and sent as fast as its receiver takes it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use sluice_cache::{Room, StoredResponse};
use sluice_net::buffers::{Appetite, Buffers, SMALL_BYTES};
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};

use super::{BodyError, Transfer, read_error};

/// Bytes that are sent at once, and that may wait of a body that is not kept.
const STEP_BYTES: usize = 64 * 1024;

/// What has arrived of a body, with what counts its memory.
enum Arrival {
    /// All of it so far.
    Growing(Vec<u8>, Room),
    /// All of it, which is kept.
    Kept(Arc<StoredResponse>),
    /// All of it.
    Whole(Bytes),
    /// What is not sent yet: it is too large to be kept.
    Passing(Vec<u8>, Room),
}

/// A body on its way.
struct Backlog {
    arrival: Arrival,
    /// Bytes of it that were handed to the sender.
    sent: usize,
}

/// What is done with a body once it has arrived, or once it is too large.
pub(crate) type BodyKeeper<'k> =
    &'k mut dyn FnMut(Option<(Bytes, Room)>) -> Result<Option<Arc<StoredResponse>>, BodyError>;

impl Backlog {
    fn pending(&self) -> &[u8] {
        let bytes = match &self.arrival {
            Arrival::Growing(bytes, _) | Arrival::Passing(bytes, _) => &bytes[..],
            Arrival::Kept(stored) => stored.body(),
            Arrival::Whole(bytes) => bytes,
        };
        &bytes[self.sent..]
    }

    /// Whether more may be received before something is sent.
    fn has_room(&self) -> bool {
        match &self.arrival {
            Arrival::Growing(..) => true,
            Arrival::Kept(_) | Arrival::Whole(_) => false,
            Arrival::Passing(..) => self.pending().len() < STEP_BYTES,
        }
    }

    /// Takes what the reader has.
    fn take(&mut self, reader: &mut Reader, receiving: &mut Transfer) -> Result<(), BodyError> {
        match &mut self.arrival {
            Arrival::Growing(bytes, _) | Arrival::Passing(bytes, _) => receiving.take(reader, bytes),
            Arrival::Kept(_) | Arrival::Whole(_) => Ok(()),
        }
    }

    /// Counts what has arrived. A body that is too large is not kept from now on.
    fn count(&mut self, keep: BodyKeeper<'_>) -> Result<(), BodyError> {
        let Arrival::Growing(bytes, room) = &mut self.arrival else { return Ok(()) };
        if room.grow(bytes.len() as u64) {
            return Ok(());
        }
        let rest = bytes.split_off(self.sent);
        self.sent = 0;
        let arrival = std::mem::replace(&mut self.arrival, Arrival::Whole(Bytes::new()));
        if let Arrival::Growing(_, room) = arrival {
            self.arrival = Arrival::Passing(rest, room);
        }
        keep(None).map(drop)
    }

    /// Keeps the body, whose last byte has arrived.
    fn end(&mut self, keep: BodyKeeper<'_>) -> Result<(), BodyError> {
        match std::mem::replace(&mut self.arrival, Arrival::Whole(Bytes::new())) {
            Arrival::Growing(bytes, room) => {
                let bytes = Bytes::from(bytes.into_boxed_slice());
                let kept = keep(Some((bytes.clone(), room)))?;
                self.arrival = kept.map_or(Arrival::Whole(bytes), Arrival::Kept);
            }
            arrival => self.arrival = arrival,
        }
        Ok(())
    }

    /// Hands the next piece to the sender.
    fn give(&mut self, sending: &mut Transfer, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let pending = self.pending();
        let piece = &pending[..pending.len().min(STEP_BYTES)];
        let count = piece.len();
        sending.push(piece, out)?;
        self.sent += count;
        if let Arrival::Passing(bytes, room) = &mut self.arrival
            && self.sent * 2 >= bytes.len()
        {
            bytes.drain(..self.sent);
            bytes.shrink_to(2 * STEP_BYTES);
            room.fit(bytes.len() as u64);
            self.sent = 0;
        }
        Ok(())
    }

    /// Hands over as many pieces as it takes until there is something to send: an encoder may hold them back.
    fn give_some(&mut self, sending: &mut Transfer, out: &mut Vec<u8>) -> Result<(), BodyError> {
        loop {
            self.give(sending, out)?;
            if !out.is_empty() || self.pending().is_empty() {
                return Ok(());
            }
        }
    }
}

/// What a copy waits for.
enum Progress {
    Received(usize),
    Sent,
}

/// Receives a body of unknown length with `receiving`, of which `first` has arrived, and sends it with `sending`, after
/// the bytes in `out`. When the last byte has arrived, `keep` gets the body. When it is too large for its room, `keep` gets
/// nothing, and the rest is copied piece by piece. What has arrived is sent also if the rest never comes. The last
/// piece may still be in flight on return.
#[expect(clippy::too_many_arguments, reason = "both ends, the transfers, and what is done with the body")]
pub(crate) async fn copy_ahead(
    (reader, writer): (&mut Reader, &mut Writer),
    (receiving, sending): (&mut Transfer, &mut Transfer),
    first: (Vec<u8>, Room),
    mut out: Vec<u8>,
    (deadline, buffers): (&Deadline, &Buffers),
    keep: BodyKeeper<'_>,
) -> Result<(), BodyError> {
    let (first, room) = first;
    let mut backlog = Backlog { arrival: Arrival::Growing(first, room), sent: 0 };
    let mut appetite = Appetite::new(buffers, None, SMALL_BYTES);
    let (mut is_sending, mut broken) = (false, None);
    backlog.count(keep)?;
    loop {
        if receiving.is_done() {
            backlog.end(keep)?;
        }
        if !is_sending {
            backlog.give_some(sending, &mut out)?;
            let has_all = backlog.pending().is_empty();
            let is_last = has_all && receiving.is_done();
            match broken {
                Some(error) if has_all && out.is_empty() => return Err(error),
                _ if is_last => sending.end(&mut out)?,
                _ if has_all => sending.flush(&mut out)?,
                _ => {}
            }
            if !out.is_empty() || sending.owes_end(writer) {
                sending.submit(writer, std::mem::take(&mut out), 0);
                is_sending = true;
            }
            if is_last {
                reader.shrink(SMALL_BYTES);
                return Ok(());
            }
            if broken.is_some() && !is_sending {
                continue;
            }
        }
        let may_receive = !receiving.is_done() && broken.is_none() && backlog.has_room();
        let wanted = may_receive.then(|| appetite.bytes());
        let received = match progress((&mut *reader, &mut *writer), is_sending, deadline, wanted).await {
            Ok(Progress::Sent) => {
                is_sending = false;
                out = writer.spare();
                continue;
            }
            Ok(Progress::Received(count)) => count,
            Err(BodyError::Unwritable) => return Err(BodyError::Unwritable),
            Err(error) => {
                broken = Some(error);
                continue;
            }
        };
        appetite.observe(received);
        if !is_sending {
            // Otherwise the receiver would be given time by bytes that are not for it.
            deadline.touch();
        }
        let taken = match received {
            0 => {
                let mut end = Vec::new();
                receiving.look_for_end(reader, &mut end).and_then(|()| receiving.end(&mut end))
            }
            _ => backlog.take(reader, receiving),
        };
        match taken {
            Ok(()) => backlog.count(keep)?,
            Err(error) => broken = Some(error),
        }
    }
}

async fn progress(
    (reader, writer): (&mut Reader, &mut Writer),
    is_sending: bool,
    deadline: &Deadline,
    wanted: Option<usize>,
) -> Result<Progress, BodyError> {
    poll_fn(|cx| {
        if is_sending && let Poll::Ready(settled) = writer.poll_settle(cx, deadline) {
            return Poll::Ready(settled.map(|()| Progress::Sent).map_err(|_| BodyError::Unwritable));
        }
        let Some(capacity) = wanted else { return Poll::Pending };
        reader.poll_fill(cx, capacity).map(|outcome| outcome.map(Progress::Received).map_err(read_error))
    })
    .await
}
