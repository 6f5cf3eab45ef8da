//! The request's way: HTTP/1.1 bytes in, a head and DATA frames out, as many as the server's windows have room for.

use std::io;
use std::task::{Context, Poll};

use ::http::Method;
use ::http::uri::Scheme;
use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use sluice_http::{ChunkDecoder, ChunkLimits};

use super::super::outgoing::{gone, invalid};
use super::super::pieces::{Source, chunks};
use super::super::response;
use super::request::{self, Declared};

/// What our own encoder writes needs no bound; the client's were kept when it was read.
const LIMITS: ChunkLimits = ChunkLimits { line_bytes_max: 64, trailer_bytes_max: usize::MAX };

/// Where in the request we are.
enum Phase {
    /// Before the head.
    Head(SendRequest<Bytes>, Scheme),
    /// In a body of so many bytes.
    Length(u64),
    Chunked(Box<ChunkDecoder>),
    Done,
}

/// A head that has gone out.
pub(super) struct Begun {
    /// What will be its answer.
    pub(super) response: ResponseFuture,
    /// Whether that has no body whatever its head says.
    pub(super) bodiless: bool,
}

/// A request on its way out.
pub(super) struct Sending {
    phase: Phase,
    stream: Option<SendStream<Bytes>>,
}

impl Sending {
    pub(super) fn new(sender: SendRequest<Bytes>, scheme: Scheme) -> Self {
        Self { phase: Phase::Head(sender, scheme), stream: None }
    }

    /// Whether all of it has been handed over.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    /// Takes as much of `bytes` as can go now, and says how much; what is left needs room in the server's windows.
    /// The buffer stays as it is: the request may have to be sent again. `begun` gets what comes of the head.
    pub(super) fn push(&mut self, bytes: &[u8], begun: &mut Option<Begun>) -> io::Result<usize> {
        let mut at = 0;
        if matches!(self.phase, Phase::Head(..)) {
            at = response::length(bytes).ok_or_else(invalid)?;
            *begun = Some(self.head(&bytes[..at])?);
        }
        if at < bytes.len() {
            let room = self.room(bytes.len() - at)?;
            at += self.body(&bytes[at..], room)?;
        }
        Ok(at)
    }

    fn head(&mut self, head: &[u8]) -> io::Result<Begun> {
        let Phase::Head(sender, scheme) = &mut self.phase else {
            return Err(invalid());
        };
        let head = request::parse(head, scheme).ok_or_else(invalid)?;
        let bodiless = head.request.method() == Method::HEAD;
        let ends = head.declared == Declared::Length(0);
        let (response, stream) = sender.send_request(head.request, ends).map_err(gone)?;
        self.stream = Some(stream);
        self.phase = match head.declared {
            _ if ends => Phase::Done,
            Declared::Length(bytes) => Phase::Length(bytes),
            Declared::Chunked => Phase::Chunked(Box::new(ChunkDecoder::new(LIMITS))),
        };
        Ok(Begun { response, bodiless })
    }

    /// Bytes that the windows have room for, `wanted` at most being asked for.
    fn room(&mut self, wanted: usize) -> io::Result<usize> {
        let stream = self.stream.as_mut().ok_or_else(invalid)?;
        stream.reserve_capacity(wanted);
        Ok(stream.capacity())
    }

    /// Takes of the body as much as there is room for.
    fn body(&mut self, bytes: &[u8], room: usize) -> io::Result<usize> {
        let stream = self.stream.as_mut().ok_or_else(invalid)?;
        match &mut self.phase {
            Phase::Length(left) => {
                let count = bytes.len().min(room);
                if usize::try_from(*left).is_ok_and(|left| count > left) {
                    return Err(invalid());
                }
                *left -= count as u64;
                let ends = *left == 0;
                if count > 0 {
                    stream.send_data(Bytes::copy_from_slice(&bytes[..count]), ends).map_err(gone)?;
                }
                if ends {
                    self.phase = Phase::Done;
                }
                Ok(count)
            }
            Phase::Chunked(decoder) => {
                let (taken, done) = chunks(decoder, stream, &Source { bytes, whole: None }, room)?;
                if done {
                    self.phase = Phase::Done;
                }
                Ok(taken)
            }
            Phase::Head(..) | Phase::Done => Err(invalid()),
        }
    }

    /// Ready when there is room again.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>, wanted: usize) -> Poll<io::Result<()>> {
        loop {
            if self.room(wanted)? > 0 {
                return Poll::Ready(Ok(()));
            }
            let Some(stream) = &mut self.stream else {
                return Poll::Ready(Err(invalid()));
            };
            match std::task::ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(gone(error))),
                None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        }
    }

    /// Tells the server that nobody wants the answer any more, or that the request will not become whole.
    pub(super) fn cancel(&mut self) {
        if let Some(stream) = &mut self.stream {
            stream.send_reset(Reason::CANCEL);
        }
    }
}
