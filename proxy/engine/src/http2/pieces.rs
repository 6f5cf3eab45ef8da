//! Pieces of a body, from the buffer that they came in to DATA frames.

use std::io;

use bytes::Bytes;
use h2::SendStream;
use sluice_http::{ChunkDecoder, Piece};

use super::outgoing::{gone, invalid};
use super::response;

/// Bodies from this size on are handed over as they are; smaller ones are copied out of their buffer.
pub(super) const MOVED_BYTES_MIN: usize = 4096;

/// A buffer whose parts are sent: shared if all of it goes at once, copied if some of it has to stay.
pub(super) struct Source<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) whole: Option<Bytes>,
}

impl Source<'_> {
    /// What is to be sent of it.
    pub(super) fn part(&self, part: &[u8]) -> Bytes {
        match &self.whole {
            Some(whole) => whole.slice_ref(part),
            None => Bytes::copy_from_slice(part),
        }
    }
}

/// Pieces of a body on their way into as few frames as may be: a client may take many small ones for an attack, as the
/// `h2` crate does. The last one is kept back, for the end may come with it.
#[derive(Default)]
struct Frames {
    large: Option<Bytes>,
    /// Small pieces behind the large one.
    small: Vec<u8>,
}

impl Frames {
    fn add(&mut self, data: &[u8], source: &Source<'_>, stream: &mut SendStream<Bytes>) -> io::Result<()> {
        if data.len() < MOVED_BYTES_MIN {
            self.small.extend_from_slice(data);
            return Ok(());
        }
        let before = std::mem::replace(self, Self { large: Some(source.part(data)), small: Vec::new() });
        let pieces = before.large.into_iter().chain((!before.small.is_empty()).then(|| before.small.into()));
        pieces.into_iter().try_for_each(|piece| stream.send_data(piece, false)).map_err(gone)
    }

    /// Sends what is left, with the end of the stream if it `ends`.
    fn finish(self, stream: &mut SendStream<Bytes>, ends: bool) -> io::Result<()> {
        let Self { large, small } = self;
        let alone = small.is_empty();
        if let Some(large) = large {
            stream.send_data(large, ends && alone).map_err(gone)?;
        } else if alone && ends {
            stream.send_data(Bytes::new(), true).map_err(gone)?;
        }
        if alone { Ok(()) } else { stream.send_data(small.into(), ends).map_err(gone) }
    }
}

/// Passes chunks on: how many bytes it took, and whether the body is whole. What frames them takes no room, so an end
/// goes out also to a client that opens its window no more.
pub(super) fn chunks(
    decoder: &mut ChunkDecoder,
    stream: &mut SendStream<Bytes>,
    source: &Source<'_>,
    mut room: usize,
) -> io::Result<(usize, bool)> {
    let mut taken = 0;
    let mut frames = Frames::default();
    let mut done = false;
    while !done && taken < source.bytes.len() && (room > 0 || !decoder.is_within_data()) {
        // Without room one byte at a time, so that none of it can be data.
        let window = &source.bytes[taken..];
        let window = &window[..window.len().min(room.max(1))];
        let (used, piece) = decoder.next(window).map_err(|_| invalid())?;
        taken += used;
        match piece {
            Piece::Data(data) => {
                room -= data.len();
                frames.add(data, source, stream)?;
            }
            Piece::NeedMore => {}
            Piece::Done => done = true,
        }
    }
    let trailers = if done { decoder.trailers() } else { b"" };
    frames.finish(stream, done && trailers.is_empty())?;
    if !trailers.is_empty() {
        let trailers = response::trailers(trailers).ok_or_else(invalid)?;
        stream.send_trailers(trailers).map_err(gone)?;
    }
    Ok((taken, done))
}
