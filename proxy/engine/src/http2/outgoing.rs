//! The answer's way: HTTP/1.1 bytes in, a head and DATA frames out, as many as the client's windows have room for.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use sluice_http::{ChunkDecoder, ChunkLimits};

use super::pieces::{MOVED_BYTES_MIN, Source, chunks};
use super::response::{self, Declared, Head};

/// What our own encoder writes needs no bound; the origin's were kept when it was read.
const LIMITS: ChunkLimits = ChunkLimits { line_bytes_max: 64, trailer_bytes_max: usize::MAX };

/// Where in the answer we are.
enum Phase {
    /// Before or within a head.
    Head,
    /// In a body of so many bytes.
    Length(u64),
    Chunked(Box<ChunkDecoder>),
    /// In a body that ends when it is ended.
    Close,
    /// Opaque bytes, after an upgrade.
    Tunnel,
    Done,
}

enum Handle {
    /// No final head has gone out.
    Responding(SendResponse<Bytes>),
    Streaming(SendStream<Bytes>),
}

/// An answer on its way out.
pub(super) struct Outgoing {
    handle: Handle,
    phase: Phase,
    /// Whether it is to HEAD, so has no body.
    bodiless: bool,
    /// Whether a 101 opens a tunnel.
    upgrade: bool,
    /// Whether one has.
    tunnel: bool,
}

impl Outgoing {
    pub(super) fn new(respond: SendResponse<Bytes>, bodiless: bool, upgrade: bool) -> Self {
        Self { handle: Handle::Responding(respond), phase: Phase::Head, bodiless, upgrade, tunnel: false }
    }

    /// Whether all of it has been handed over.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Whether what follows is opaque, in both directions, the other one also when this one has ended.
    pub(super) fn is_tunnel(&self) -> bool {
        self.tunnel
    }

    /// Takes as much of `buf[start..]` as can go now, and says how much; what is left needs room in the client's
    /// windows. If all goes, `buf` may be taken.
    pub(super) fn push(&mut self, buf: &mut Vec<u8>, start: usize) -> io::Result<usize> {
        let mut at = start;
        while matches!(self.phase, Phase::Head) && at < buf.len() {
            let length = response::length(&buf[at..]).ok_or_else(invalid)?;
            let head = response::parse(&buf[at..at + length]).ok_or_else(invalid)?;
            self.head(head)?;
            at += length;
        }
        if at == buf.len() {
            return Ok(at - start);
        }
        let rest = buf.len() - at;
        let room = self.room(rest)?;
        if rest <= room && rest >= MOVED_BYTES_MIN {
            let whole = Bytes::from(std::mem::take(buf));
            let source = Source { bytes: &whole.clone()[at..], whole: Some(whole) };
            at += self.body(&source, room)?;
        } else {
            at += self.body(&Source { bytes: &buf[at..], whole: None }, room)?;
        }
        Ok(at - start)
    }

    fn head(&mut self, head: Head) -> io::Result<()> {
        let Handle::Responding(respond) = &mut self.handle else {
            return Err(invalid());
        };
        let Head { mut response, declared } = head;
        let status = response.status();
        if status.as_u16() == 101 && self.upgrade {
            *response.status_mut() = ::http::StatusCode::OK;
            response.headers_mut().remove(::http::header::SEC_WEBSOCKET_ACCEPT);
            self.handle = Handle::Streaming(respond.send_response(response, false).map_err(gone)?);
            self.phase = Phase::Tunnel;
            self.tunnel = true;
            return Ok(());
        }
        if status.is_informational() {
            return respond.send_informational(response).map_err(gone);
        }
        let bodiless = self.bodiless || matches!(status.as_u16(), 204 | 304);
        let ends = bodiless || declared == Declared::Length(0);
        self.handle = Handle::Streaming(respond.send_response(response, ends).map_err(gone)?);
        self.phase = match declared {
            _ if ends => Phase::Done,
            Declared::Length(bytes) => Phase::Length(bytes),
            Declared::Chunked => Phase::Chunked(Box::new(ChunkDecoder::new(LIMITS))),
            Declared::Close => Phase::Close,
        };
        Ok(())
    }

    /// Bytes that the windows have room for, `wanted` at most being asked for.
    fn room(&mut self, wanted: usize) -> io::Result<usize> {
        match &mut self.handle {
            Handle::Streaming(stream) => {
                stream.reserve_capacity(wanted);
                Ok(stream.capacity())
            }
            Handle::Responding(_) => Err(invalid()),
        }
    }

    /// Takes of the body as much as there is room for.
    fn body(&mut self, source: &Source<'_>, room: usize) -> io::Result<usize> {
        let Handle::Streaming(stream) = &mut self.handle else {
            return Err(invalid());
        };
        let bytes = source.bytes;
        let count = bytes.len().min(room);
        match &mut self.phase {
            Phase::Length(left) => {
                let fits = usize::try_from(*left).is_ok_and(|left| count <= left);
                if !fits {
                    return Err(invalid());
                }
                *left -= count as u64;
                let ends = *left == 0;
                if count > 0 {
                    stream.send_data(source.part(&bytes[..count]), ends).map_err(gone)?;
                }
                if ends {
                    self.phase = Phase::Done;
                }
                Ok(count)
            }
            Phase::Chunked(decoder) => {
                let (taken, done) = chunks(decoder, stream, source, room)?;
                if done {
                    self.phase = Phase::Done;
                }
                Ok(taken)
            }
            Phase::Close | Phase::Tunnel if count > 0 => {
                stream.send_data(source.part(&bytes[..count]), false).map_err(gone)?;
                Ok(count)
            }
            Phase::Close | Phase::Tunnel => Ok(0),
            Phase::Head | Phase::Done => Err(invalid()),
        }
    }

    /// Ready when there is room again.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>> {
        loop {
            if self.room(wanted)? > 0 {
                return Poll::Ready(Ok(()));
            }
            let Handle::Streaming(stream) = &mut self.handle else {
                return Poll::Ready(Err(invalid()));
            };
            match std::task::ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(gone(error))),
                None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        }
    }

    /// Ready when the client, or the connection's end, has made an end of the stream.
    pub(super) fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.handle {
            Handle::Responding(respond) => respond.poll_reset(cx).map(drop),
            Handle::Streaming(stream) => stream.poll_reset(cx).map(drop),
        }
    }

    /// Ends what ends only by being ended.
    pub(super) fn finish(&mut self) {
        if let (Handle::Streaming(stream), Phase::Close | Phase::Tunnel) = (&mut self.handle, &self.phase) {
            // An error means that the client was faster.
            let _ = stream.send_data(Bytes::new(), true);
            self.phase = Phase::Done;
        }
    }

    /// Breaks off what is not whole, so that nobody takes it for that.
    pub(super) fn break_off(&mut self, reason: Reason) {
        if self.is_done() {
            return;
        }
        match &mut self.handle {
            Handle::Responding(respond) => respond.send_reset(reason),
            Handle::Streaming(stream) => stream.send_reset(reason),
        }
    }
}

/// What came is no answer that our encoder makes.
pub(super) fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// The client is gone, or its stream.
pub(super) fn gone(_: h2::Error) -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
