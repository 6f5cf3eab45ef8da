//! Receives a complete body.

use sluice_config as config;
use sluice_core::budget::{Medium, Share};
use sluice_http::{Framing, Trailers, Version, encode_last_chunk};
use sluice_net::buffers::{Appetite, SMALL_BYTES};
use sluice_net::deadline::Deadline;
use sluice_net::stream::Reader;

use super::file::File;
use super::message::Message;
use super::{HoldError, Spool};
use crate::body::Transfer;

/// A body being received.
pub(crate) struct Intake<'a> {
    spool: &'a Spool,
    bounds: &'a config::Buffers,
    memory: Vec<u8>,
    /// Bytes of the body that may be in memory; lowered when the total for all bodies is used up.
    memory_max: usize,
    share: Share,
    /// Bytes that are about to be written to the file.
    tail: Vec<u8>,
    file: Option<File>,
}

/// A complete body.
pub(crate) struct BufferedBody {
    memory: Vec<u8>,
    share: Share,
    file: Option<File>,
    trailers: Trailers,
}

impl<'a> Intake<'a> {
    /// Receives a body with at most `memory_max` bytes in memory.
    pub(crate) fn new(spool: &'a Spool, bounds: &'a config::Buffers, memory_max: usize) -> Self {
        let share = Share::new(&spool.budget, Medium::Memory);
        Self { spool, bounds, memory: Vec::new(), memory_max, share, tail: Vec::new(), file: None }
    }

    /// Receives the body of `transfer` to its end. Each receive counts as activity on `deadline`.
    pub(crate) async fn run(
        mut self,
        reader: &mut Reader,
        transfer: &mut Transfer,
        deadline: &Deadline,
    ) -> Result<BufferedBody, HoldError> {
        transfer.unframe();
        let mut appetite = Appetite::new(&self.spool.buffers, transfer.remaining(), SMALL_BYTES);
        loop {
            self.take(reader, transfer).await?;
            if transfer.is_done() {
                break;
            }
            reader.shrink(appetite.bytes());
            let asked = transfer.asked().map_err(HoldError::Body)?;
            let received = reader.fill(appetite.bytes()).await;
            transfer.arrived(asked);
            let received = received.map_err(|_| HoldError::Body(crate::body::BodyError::Incomplete))?;
            appetite.observe(received);
            deadline.touch();
            if received == 0 {
                // A plain body's end is not marked by bytes.
                transfer.look_for_end(reader, &mut Vec::new()).map_err(HoldError::Body)?;
                transfer.end(&mut Vec::new()).map_err(HoldError::Body)?;
            }
        }
        reader.shrink(SMALL_BYTES);
        let trailers = transfer.trailers().clone();
        Ok(BufferedBody { memory: self.memory, share: self.share, file: self.file, trailers })
    }

    /// Takes the received bytes.
    async fn take(&mut self, reader: &mut Reader, transfer: &mut Transfer) -> Result<(), HoldError> {
        while !reader.data().is_empty() && !transfer.is_done() {
            let room = self.room(reader.data().len());
            // Framing takes bytes too, so this may be less than the room, but never more.
            let taken = match room {
                0 => transfer.push(reader.data(), &mut self.tail),
                _ => transfer.push(&reader.data()[..room], &mut self.memory),
            };
            reader.consume(taken.map_err(HoldError::Body)?);
            self.spill().await?;
        }
        transfer.look_for_end(reader, &mut Vec::new()).map_err(HoldError::Body)
    }

    /// How many of `wanted` bytes may go into memory.
    fn room(&mut self, wanted: usize) -> usize {
        let (length, capacity) = (self.memory.len(), self.memory.capacity());
        let wanted = wanted.min(self.memory_max - length);
        if wanted > capacity - length {
            // Doubled each time: moving the whole content for every piece would take long.
            let target = (length + wanted).max(capacity * 2).min(self.memory_max).max(SMALL_BYTES);
            if self.share.grow((target - capacity) as u64, self.bounds.memory_bytes_max) {
                self.memory.reserve_exact(target - length);
            } else if capacity == length {
                self.memory_max = length;
            }
        }
        wanted.min(self.memory.capacity() - length)
    }

    /// Writes the part that does not fit into memory to the file.
    async fn spill(&mut self) -> Result<(), HoldError> {
        if self.tail.is_empty() {
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::create(self.spool, self.bounds).await?),
        };
        self.tail = file.append(std::mem::take(&mut self.tail), self.bounds).await?;
        Ok(())
    }
}

impl BufferedBody {
    fn bytes(&self) -> u64 {
        self.memory.len() as u64 + self.file.as_ref().map_or(0, File::bytes)
    }

    /// The framing when it is sent: a length, unless it has trailers that a receiver of this version supports.
    pub(crate) fn framing(&self, version: Version) -> Framing {
        match version {
            Version::Http11 | Version::Http2 | Version::Http3 if !self.trailers.is_empty() => {
                Framing::Stream.towards(version)
            }
            _ => Framing::Length(self.bytes()),
        }
    }

    /// The body after `head`, as one message to send, with the framing declared in the head.
    pub(crate) fn behind(mut self, head: &[u8], framing: Framing) -> Message {
        let mut before = head.to_vec();
        let mut after = Vec::new();
        if framing == Framing::Chunked {
            // The length is known, so one chunk is enough; an empty chunk would be the last one.
            if self.bytes() > 0 {
                before.extend_from_slice(format!("{:x}\r\n", self.bytes()).as_bytes());
                after.extend_from_slice(b"\r\n");
            }
            encode_last_chunk(&mut after, &self.trailers);
        }
        put_in_front(&mut self.memory, &before);
        if self.file.is_none() {
            self.memory.append(&mut after);
        }
        Message::new(self.memory, self.share, (self.file, after), self.trailers)
    }
}

/// Moves the content instead of copying it.
fn put_in_front(memory: &mut Vec<u8>, before: &[u8]) {
    let length = memory.len();
    memory.resize(length + before.len(), 0);
    memory.copy_within(..length, before.len());
    memory[..before.len()].copy_from_slice(before);
}
