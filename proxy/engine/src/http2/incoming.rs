//! The request's way: a head and DATA frames in, HTTP/1.1 bytes out.

use std::io;
use std::task::{Context, Poll, ready};

use ::http::{HeaderMap, Request};
use bytes::{Buf, Bytes};
use h2::RecvStream;
use sluice_http::encode_chunk;

use super::outgoing::Outgoing;
use super::request::{self, Framing};

/// Room that a chunk's size and its line ends may take.
pub(super) const CHUNK_OVERHEAD: usize = 16;

/// How far the request has been given out.
enum State {
    Head,
    Body,
    /// All of it; what may still come is a reset.
    Whole,
}

/// A request on its way in.
pub(super) struct Incoming {
    state: State,
    /// Until it has been given out.
    head: Option<Request<()>>,
    framing: Framing,
    body: RecvStream,
    /// Received, and not given out yet; the client's window still counts it.
    rest: Bytes,
    key: [u8; 16],
}

impl Incoming {
    pub(super) fn new(request: Request<()>, framing: Framing, body: RecvStream, key: [u8; 16]) -> Self {
        Self { state: State::Head, head: Some(request), framing, body, rest: Bytes::new(), key }
    }

    /// Appends what there is to `buf`; 0 is the end.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut Vec<u8>,
        outgoing: &mut Outgoing,
    ) -> Poll<io::Result<usize>> {
        // Nobody asks for the rest of a request that has its answer.
        if outgoing.is_done() && self.framing != Framing::Tunnel {
            return Poll::Ready(Ok(0));
        }
        let before = buf.len();
        if let Some(request) = self.head.take() {
            request::render(buf, &request, self.framing, self.key);
            self.state = if self.framing == Framing::None { State::Whole } else { State::Body };
        }
        let tunnelled = self.framing == Framing::Tunnel;
        if matches!(self.state, State::Body) && (!tunnelled || outgoing.is_tunnel()) {
            let polled = self.poll_body(cx, buf);
            return match (buf.len() - before, polled) {
                // What is wrong is said again next time.
                (count @ 1.., _) => Poll::Ready(Ok(count)),
                (0, Poll::Ready(Ok(()))) if tunnelled => Poll::Ready(Ok(0)),
                (0, Poll::Ready(Ok(()))) => silent(cx, outgoing),
                (_, Poll::Ready(Err(error))) => Poll::Ready(Err(error)),
                (_, Poll::Pending) => Poll::Pending,
            };
        }
        match buf.len() - before {
            0 => silent(cx, outgoing),
            count => Poll::Ready(Ok(count)),
        }
    }

    /// Gives out body until there is no room, or nothing more has come. Ready at its end, or with an error.
    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<()>> {
        loop {
            if self.give(buf) {
                return Poll::Pending;
            }
            match ready!(self.body.poll_data(cx)) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(_)) => return Poll::Ready(Err(broken())),
                None => break,
            }
        }
        let trailers = match ready!(self.body.poll_trailers(cx)) {
            Ok(trailers) => trailers,
            Err(_) => return Poll::Ready(Err(broken())),
        };
        if self.framing == Framing::Chunked {
            push_last_chunk(buf, trailers.as_ref());
        }
        if self.framing != Framing::Tunnel {
            self.state = State::Whole;
        }
        Poll::Ready(Ok(()))
    }

    /// Moves what was received to `buf`, and opens the window by it. True if there is no room for all of it.
    fn give(&mut self, buf: &mut Vec<u8>) -> bool {
        if self.rest.is_empty() {
            return false;
        }
        let room = buf.capacity() - buf.len();
        let overhead = if self.framing == Framing::Chunked { CHUNK_OVERHEAD } else { 0 };
        // A receive of nothing would be the end.
        let count = room.saturating_sub(overhead).max(1).min(self.rest.len());
        match self.framing {
            Framing::Chunked => encode_chunk(buf, &self.rest[..count]),
            _ => buf.extend_from_slice(&self.rest[..count]),
        }
        self.rest.advance(count);
        // It fails only if more is given back than was taken.
        let _ = self.body.flow_control().release_capacity(count);
        !self.rest.is_empty()
    }
}

/// After the request: the end once the answer is whole, an error when the client wants it no more.
fn silent(cx: &mut Context<'_>, outgoing: &mut Outgoing) -> Poll<io::Result<usize>> {
    if outgoing.is_done() {
        return Poll::Ready(Ok(0));
    }
    outgoing.poll_reset(cx).map(|()| Err(broken()))
}

/// Ends a chunked body, with trailers if there are some.
pub(super) fn push_last_chunk(buf: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    buf.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        request::push_field(buf, name.as_str(), value.as_bytes());
    }
    buf.extend_from_slice(b"\r\n");
}

/// The stream, or its connection, was broken off.
fn broken() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}
