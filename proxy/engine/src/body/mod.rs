//! Moves one message body from its sender to its receiver, in bounded memory.
//!
//! [`Transfer`] is pure: received bytes go in, bytes to send come out. [`copy`] drives it between a reader and a
//! writer, with at most two buffers in flight.

mod ahead;
mod pace;

use std::future::poll_fn;
use std::io;
use std::task::Poll;

pub(crate) use ahead::copy_ahead;
use pace::Pace;
use sluice_http::{
    ChunkDecoder, ChunkLimits, Framing, Piece, TrailerReader, Trailers, Version, encode_chunk,
    encode_last_chunk,
};
use sluice_net::buffers::{Appetite, Buffers, SMALL_BYTES};
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};
use tokio::time::Instant;

use crate::compress::Encoder;

/// Size of a receive of a quiet tunnel.
const TUNNEL_BYTES: usize = 4 * 1024;

/// How the received body is delimited.
enum Source {
    None,
    Length(u64),
    Chunked(Box<ChunkDecoder>),
    UntilClose,
    /// Until the reader reports the end of its message; trailers follow.
    Stream(Box<TrailerReader>),
}

/// Why a body cannot be forwarded completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// Malformed chunk framing or trailers.
    Malformed,
    /// More bytes than the limit.
    TooLarge,
    /// The sender's connection ended or was lost before the end of the body.
    Incomplete,
    /// The sender is slower than it must be.
    TooSlow,
    /// The receiver is gone.
    Unwritable,
    /// The encoder has failed.
    Unencodable,
}

/// Appends what is sent for a piece of a body.
fn emit(
    encoder: &mut Option<Box<Encoder>>,
    chunked: bool,
    data: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), BodyError> {
    let data = match encoder {
        Some(encoder) => encoder.write(data).map_err(|_| BodyError::Unencodable)?,
        None => data,
    };
    frame(chunked, data, out);
    Ok(())
}

/// Appends what is sent at the end of a body.
fn emit_end(
    encoder: &mut Option<Box<Encoder>>,
    chunked: bool,
    trailers: &Trailers,
    out: &mut Vec<u8>,
) -> Result<(), BodyError> {
    if let Some(encoder) = encoder {
        frame(chunked, encoder.finish().map_err(|_| BodyError::Unencodable)?, out);
    }
    if chunked {
        encode_last_chunk(out, trailers);
    }
    Ok(())
}

fn frame(chunked: bool, data: &[u8], out: &mut Vec<u8>) {
    if chunked {
        encode_chunk(out, data);
    } else {
        out.extend_from_slice(data);
    }
}

/// The state of one body: how it is received, how it is sent, and how much has passed.
pub(crate) struct Transfer {
    source: Source,
    /// Whether it is sent in chunks; otherwise without framing.
    chunked: bool,
    done: bool,
    bytes: u64,
    bytes_max: u64,
    /// How fast it must arrive; nearly always however it likes.
    pace: Option<Pace>,
    /// Size of a receive while the body arrives in small pieces.
    small_bytes: usize,
    /// A copy pauses once this many bytes have passed.
    pause_at: u64,
    /// Whether a receiver must still be notified of the end, because the end is not marked by bytes.
    end_is_owed: bool,
    /// Encodes what is sent; nearly always nothing does.
    encoder: Option<Box<Encoder>>,
}

impl Transfer {
    /// A body that is received with the framing `from` and sent with the framing `to`, of at most `bytes_max` bytes.
    pub(crate) fn new(from: Framing, to: Framing, limits: ChunkLimits, bytes_max: u64) -> Self {
        let source = match from {
            Framing::None => Source::None,
            Framing::Length(length) => Source::Length(length),
            Framing::Chunked => Source::Chunked(Box::new(ChunkDecoder::new(limits))),
            Framing::CloseDelimited => Source::UntilClose,
            Framing::Stream => Source::Stream(Box::new(TrailerReader::new(limits.trailer_bytes_max))),
        };
        // The head has already declared an empty body.
        let done = from.is_empty();
        Self {
            source,
            chunked: to == Framing::Chunked,
            done,
            bytes: 0,
            bytes_max,
            pace: None,
            small_bytes: SMALL_BYTES,
            pause_at: u64::MAX,
            end_is_owed: !done,
            encoder: None,
        }
    }

    /// The same, encoded before it is sent.
    pub(crate) fn encoded(self, encoder: Option<Box<Encoder>>) -> Self {
        Self { encoder, ..self }
    }

    /// Opaque bytes until the sender ends. Many of these wait for long at the same time, so they use small buffers.
    pub(crate) fn opaque() -> Self {
        let limits = ChunkLimits { line_bytes_max: 0, trailer_bytes_max: 0 };
        let opaque = Self::new(Framing::CloseDelimited, Framing::CloseDelimited, limits, u64::MAX);
        Self { small_bytes: TUNNEL_BYTES, end_is_owed: false, ..opaque }
    }

    /// The same, from a sender that must send so many bytes a second; 0 is any number.
    pub(crate) fn at_least(self, bytes_a_second: u64) -> Self {
        Self { pace: Pace::of(bytes_a_second), ..self }
    }

    /// When its sender is asked for more; to be given to [`Self::arrived`]. Refuses one that was too slow so far.
    pub(crate) fn asked(&self) -> Result<Option<Instant>, BodyError> {
        match &self.pace {
            Some(pace) if !pace.keeps_up(self.bytes) => Err(BodyError::TooSlow),
            pace => Ok(pace.as_ref().map(|_| Instant::now())),
        }
    }

    /// Counts the wait for its sender, except that for the first byte: the client may wait for a 100.
    pub(crate) fn arrived(&mut self, asked: Option<Instant>) {
        if let (Some(pace), Some(asked)) = (&mut self.pace, asked)
            && self.bytes > 0
        {
            pace.waited_since(asked);
        }
    }

    /// Makes a copy return once `bytes` have passed, although more follow.
    pub(crate) fn pause_at(&mut self, bytes: u64) {
        self.pause_at = bytes;
    }

    /// Continues after an end that was not final.
    pub(crate) fn reopen(&mut self) {
        self.done = false;
    }

    /// Whether the whole body has passed.
    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    /// Body bytes that have passed, chunk framing not counted.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that were sent, chunk framing not counted.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.encoder.as_ref().map_or(self.bytes, |encoder| encoder.written())
    }

    /// Whether anything of a body has passed, even if only its last chunk.
    pub(crate) fn has_carried(&self) -> bool {
        self.bytes > 0 || matches!(self.source, Source::Chunked(_) | Source::Stream(_))
    }

    /// Remaining bytes; `None` if the length is unknown.
    pub(crate) fn remaining(&self) -> Option<u64> {
        match self.source {
            _ if self.done => Some(0),
            Source::None => Some(0),
            Source::Length(remaining) => Some(remaining),
            Source::Chunked(_) | Source::UntilClose | Source::Stream(_) => None,
        }
    }

    /// Drops trailers with these names, in lower case, in addition to those that are always forbidden.
    pub(crate) fn refuse_trailers(&mut self, names: impl FnOnce() -> Vec<Vec<u8>>) {
        match &mut self.source {
            Source::Chunked(decoder) => decoder.refuse_trailers(names()),
            Source::Stream(reader) => reader.refuse(names()),
            Source::None | Source::Length(_) | Source::UntilClose => {}
        }
    }

    /// The same, for what was taken out of its framing before: it ends when it is told so.
    pub(crate) fn received_plain(self) -> Self {
        Self { source: Source::UntilClose, ..self }
    }

    /// The same, of any size.
    pub(crate) fn unlimited(self) -> Self {
        Self { bytes_max: u64::MAX, pace: None, ..self }
    }

    /// The same, sent in this framing.
    pub(crate) fn sent_as(self, to: Framing) -> Self {
        Self { chunked: to == Framing::Chunked, ..self }
    }

    /// Frames a request's body for a receiver of this version.
    pub(crate) fn set_receiver(&mut self, version: Version) {
        let is_open = matches!(self.source, Source::Chunked(_) | Source::Stream(_));
        self.chunked = is_open && !version.is_framed();
    }

    /// The framing of the body when sent; valid while none of it has passed.
    pub(crate) fn framing(&self) -> Framing {
        match self.source {
            Source::None => Framing::None,
            Source::Length(length) if !self.chunked => Framing::Length(length),
            Source::UntilClose if !self.chunked => Framing::CloseDelimited,
            _ if self.chunked => Framing::Chunked,
            _ => Framing::Stream,
        }
    }

    /// Whether received bytes are sent unchanged.
    pub(crate) fn is_plain(&self) -> bool {
        !self.chunked && self.encoder.is_none() && !matches!(self.source, Source::Chunked(_))
    }

    /// How many of the `available` unread bytes belong to this body; only for plain transfers.
    fn claim(&mut self, available: usize) -> Result<usize, BodyError> {
        let count = match &mut self.source {
            Source::None => 0,
            Source::Length(remaining) => {
                let count = usize::try_from(*remaining).map_or(available, |left| left.min(available));
                *remaining -= count as u64;
                self.done = *remaining == 0;
                count
            }
            Source::UntilClose | Source::Stream(_) | Source::Chunked(_) => available,
        };
        self.count(count)?;
        Ok(count)
    }

    fn count(&mut self, count: usize) -> Result<(), BodyError> {
        self.bytes += count as u64;
        if self.bytes > self.bytes_max { Err(BodyError::TooLarge) } else { Ok(()) }
    }

    /// Takes the bytes of this body from the front of `input`, appends the bytes to send to `out`, and returns how many
    /// it took.
    pub(crate) fn push(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, BodyError> {
        if self.done {
            return Ok(0);
        }
        if matches!(self.source, Source::Chunked(_)) {
            return self.push_chunks(input, out);
        }
        let count = self.claim(input.len())?;
        emit(&mut self.encoder, self.chunked, &input[..count], out)?;
        if self.done {
            emit_end(&mut self.encoder, self.chunked, Trailers::NONE, out)?;
        }
        Ok(count)
    }

    fn push_chunks(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, BodyError> {
        let mut taken = 0;
        loop {
            let Source::Chunked(decoder) = &mut self.source else {
                return Ok(taken);
            };
            let (used, piece) = decoder.next(&input[taken..]).map_err(|_| BodyError::Malformed)?;
            taken += used;
            match piece {
                Piece::Data(data) => emit(&mut self.encoder, self.chunked, data, out)?,
                Piece::NeedMore => return Ok(taken),
                Piece::Done => {
                    self.done = true;
                    emit_end(&mut self.encoder, self.chunked, decoder.trailers(), out)?;
                    return Ok(taken);
                }
            }
            if let Piece::Data(data) = piece {
                self.count(data.len())?;
            }
        }
    }

    /// Takes the bytes of this body from `reader`, and its end if that has arrived, and appends the bytes to send to
    /// `out`.
    pub(crate) fn take(&mut self, reader: &mut Reader, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let taken = self.push(reader.data(), out)?;
        reader.consume(taken);
        self.look_for_end(reader, out)?;
        self.flush(out)
    }

    /// Sends on what the encoder holds back. A body whose length is known comes as fast as its sender has it; one whose
    /// length is not may be a stream of events, each of which is awaited.
    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        if self.done || self.remaining().is_some() {
            return Ok(());
        }
        let Some(encoder) = &mut self.encoder else { return Ok(()) };
        let encoded = encoder.flush().map_err(|_| BodyError::Unencodable)?;
        frame(self.chunked, encoded, out);
        Ok(())
    }

    /// Ends a body whose end is not marked by bytes, if the end has arrived.
    pub(crate) fn look_for_end(&mut self, reader: &Reader, out: &mut Vec<u8>) -> Result<(), BodyError> {
        let Source::Stream(trailers) = &mut self.source else {
            return Ok(());
        };
        if self.done || !reader.has_ended() {
            return Ok(());
        }
        let mut read = Ok(());
        reader.trailers(&mut |name, value| {
            if read.is_ok() {
                read = trailers.take(name, value);
            }
        });
        read.map_err(|_| BodyError::Malformed)?;
        self.done = true;
        emit_end(&mut self.encoder, self.chunked, trailers.trailers(), out)
    }

    /// The trailers that may be forwarded; complete once the body has passed.
    pub(crate) fn trailers(&self) -> &Trailers {
        match &self.source {
            Source::Chunked(decoder) => decoder.trailers(),
            Source::Stream(reader) => reader.trailers(),
            Source::None | Source::Length(_) | Source::UntilClose => Trailers::NONE,
        }
    }

    /// Whether the end has arrived and `writer` must still be notified.
    fn owes_end(&self, writer: &Writer) -> bool {
        self.done && self.end_is_owed && writer.stream().is_channel()
    }

    /// Submits the taken bytes, together with the end.
    fn submit(&mut self, writer: &mut Writer, buf: Vec<u8>, start: usize) {
        if self.owes_end(writer) {
            self.end_is_owed = false;
            writer.submit_last(buf, start, self.trailers());
        } else {
            writer.submit(buf, start);
        }
    }

    /// The sender's connection has ended: correct for a close-delimited body, otherwise an error.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) -> Result<(), BodyError> {
        match self.source {
            _ if self.done => Ok(()),
            Source::UntilClose => {
                self.done = true;
                emit_end(&mut self.encoder, self.chunked, Trailers::NONE, out)
            }
            _ => Err(BodyError::Incomplete),
        }
    }
}

/// Sends `out`, then the rest of the body, from `reader` to `writer`. The last piece may still be in flight on return;
/// the caller has to drive the writer unless it is quiet. If that send fails, the writer reports it later. Returns
/// early, with the transfer not done, if the transfer is to pause.
///
/// While a piece is being sent, only the next one is read: a slow receiver stops a fast sender.
#[expect(
    clippy::too_many_arguments,
    reason = "both ends, the transfer, and its two limits: each caller has them separately"
)]
pub(crate) async fn copy(
    reader: &mut Reader,
    writer: &mut Writer,
    transfer: &mut Transfer,
    mut out: Vec<u8>,
    deadline: &Deadline,
    buffers: &Buffers,
) -> Result<(), BodyError> {
    let mut appetite = Appetite::new(buffers, transfer.remaining(), transfer.small_bytes);
    loop {
        pass(reader, writer, transfer, &mut out, deadline).await?;
        if transfer.is_done() {
            reader.shrink(SMALL_BYTES);
            return Ok(());
        }
        if transfer.bytes >= transfer.pause_at {
            return Ok(());
        }
        reader.shrink(appetite.bytes());
        let asked = transfer.asked()?;
        let received = next(reader, writer, deadline, appetite.bytes()).await?;
        transfer.arrived(asked);
        appetite.observe(received);
        deadline.touch();
        if received == 0 {
            out = writer.spare();
            transfer.look_for_end(reader, &mut out)?;
            transfer.end(&mut out)?;
        }
    }
}

/// Sends the bytes in `out` and those in the reader.
async fn pass(
    reader: &mut Reader,
    writer: &mut Writer,
    transfer: &mut Transfer,
    out: &mut Vec<u8>,
    deadline: &Deadline,
) -> Result<(), BodyError> {
    let nothing_new = reader.data().is_empty() || transfer.is_done();
    if nothing_new && out.is_empty() && !transfer.owes_end(writer) {
        return Ok(());
    }
    // The only wait comes first. If a copy were dropped between taking bytes and submitting them, a body whose last
    // piece was never sent would count as complete, and its connection would be reused.
    writer.settle(deadline).await.map_err(|_| BodyError::Unwritable)?;
    if nothing_new || !out.is_empty() || !transfer.is_plain() {
        transfer.take(reader, out)?;
        if !out.is_empty() || transfer.owes_end(writer) {
            transfer.submit(writer, std::mem::take(out), 0);
        }
        return Ok(());
    }
    let available = reader.data().len();
    let count = transfer.claim(available)?;
    if count == available && count > SMALL_BYTES {
        let (buf, start) = reader.take(writer.spare());
        // A plain body's end is not marked by bytes.
        transfer.look_for_end(reader, &mut Vec::new())?;
        transfer.submit(writer, buf, start);
        return Ok(());
    }
    // A small piece is sent in a small buffer: its send may outlast the lease of the large buffer.
    let mut piece = writer.spare_for(count);
    piece.extend_from_slice(&reader.data()[..count]);
    reader.consume(count);
    transfer.look_for_end(reader, &mut Vec::new())?;
    transfer.submit(writer, piece, 0);
    Ok(())
}

/// Waits for more from `reader` and meanwhile drives the send.
async fn next(
    reader: &mut Reader,
    writer: &mut Writer,
    deadline: &Deadline,
    capacity: usize,
) -> Result<usize, BodyError> {
    let received = poll_fn(|cx| {
        if !writer.is_quiet()
            && let Poll::Ready(Err(_)) = writer.poll_settle(cx, deadline)
        {
            return Poll::Ready(Err(BodyError::Unwritable));
        }
        reader.poll_fill(cx, capacity).map(|outcome| outcome.map_err(read_error))
    });
    received.await
}

/// A reset is never a clean end, whatever delimits the body.
fn read_error(_: io::Error) -> BodyError {
    BodyError::Incomplete
}

mod held;
#[cfg(test)]
mod tests;
