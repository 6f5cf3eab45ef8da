//! The answer's way: heads and DATA frames in, HTTP/1.1 bytes out.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use ::http::{HeaderMap, Response, StatusCode};
use bytes::{Buf, Bytes};
use h2::client::ResponseFuture;
use h2::{Reason, RecvStream};
use sluice_http::encode_chunk;

use super::super::incoming::{CHUNK_OVERHEAD, push_last_chunk};
use super::super::request::push_field;
use super::sending::Begun;

/// How far the answer has come.
enum State {
    /// Interim heads, and then the head.
    Head(ResponseFuture),
    /// A body, and trailers behind it.
    Body(RecvStream),
    /// All of it.
    Whole,
    /// Broken off.
    Broken,
}

/// How the body goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Framing {
    None,
    /// As the head says.
    Length,
    Chunked,
}

/// An answer on its way in.
pub(super) struct Receiving {
    state: State,
    framing: Framing,
    /// Whether it has no body whatever its head says.
    bodiless: bool,
    /// Received, and not given out yet; the server's window still counts it.
    rest: Bytes,
    /// Whether the server has not looked at the request.
    refused: bool,
    /// Whether the server wants no more of the exchange, without calling it an error.
    cancelled: bool,
}

impl Receiving {
    pub(super) fn new(begun: Begun) -> Self {
        let Begun { response, bodiless } = begun;
        let state = State::Head(response);
        Self { state, framing: Framing::None, bodiless, rest: Bytes::new(), refused: false, cancelled: false }
    }

    /// Whether all of it has been given out.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.state, State::Whole)
    }

    /// Whether nothing but interim heads has come.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.state, State::Head(_))
    }

    /// Whether the request may be sent again whatever it asks for: the server has said that it did nothing about it
    /// (RFC 9113 section 8.7).
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether the server has ended the exchange by CANCEL.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled
    }

    /// Appends what there is to `buf`; 0 is the end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        let before = buf.len();
        let polled = self.poll_all(cx, buf);
        match (buf.len() - before, polled) {
            // What is wrong is said again next time.
            (count @ 1.., _) => Poll::Ready(Ok(count)),
            (0, Poll::Ready(outcome)) => Poll::Ready(outcome.map(|()| 0)),
            (_, Poll::Pending) => Poll::Pending,
        }
    }

    /// Ready at the end, or with an error.
    fn poll_all(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<()>> {
        if let State::Head(response) = &mut self.state {
            match ready!(poll_head(cx, response, buf)) {
                Ok(response) => self.begin(response, buf),
                Err(error) => {
                    self.refused = is_refusal(&error);
                    self.cancelled = is_cancel(&error);
                    self.state = State::Broken;
                }
            }
        }
        let outcome = match &self.state {
            State::Body(_) => {
                ready!(self.poll_body(cx, buf)).map_err(|error| self.cancelled = is_cancel(&error))
            }
            State::Whole => Ok(()),
            State::Head(_) | State::Broken => Err(()),
        };
        if outcome.is_err() {
            self.state = State::Broken;
        }
        Poll::Ready(outcome.map_err(|()| io::ErrorKind::ConnectionReset.into()))
    }

    /// Gives out the head and finds how the body goes on.
    fn begin(&mut self, response: Response<RecvStream>, buf: &mut Vec<u8>) {
        let (head, body) = response.into_parts();
        let bodiless = self.bodiless || matches!(head.status.as_u16(), 204 | 304);
        let has_length = head.headers.contains_key(CONTENT_LENGTH);
        self.framing = match (bodiless, body.is_end_stream()) {
            (true, _) => Framing::None,
            // Trailers cannot follow a counted body there, and this one is of no use without.
            (false, false) if has_length && !is_grpc(&head.headers) => Framing::Length,
            (false, false) => Framing::Chunked,
            (false, true) => Framing::Length,
        };
        let ended = body.is_end_stream();
        push_head(buf, head.status, &head.headers, self.framing == Framing::Chunked);
        if self.framing == Framing::Chunked {
            push_field(buf, "transfer-encoding", b"chunked");
        } else if ended && !bodiless && !has_length {
            push_field(buf, "content-length", b"0");
        }
        buf.extend_from_slice(b"\r\n");
        self.state = if bodiless || ended { State::Whole } else { State::Body(body) };
    }

    /// Gives out body until there is no room, or nothing more has come. Ready at its end, or when it breaks off.
    fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<Result<(), h2::Error>> {
        loop {
            if self.give(buf) {
                return Poll::Pending;
            }
            let State::Body(body) = &mut self.state else {
                return Poll::Ready(Err(Reason::INTERNAL_ERROR.into()));
            };
            match ready!(body.poll_data(cx)) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => {
                    let trailers = ready!(body.poll_trailers(cx))?;
                    if self.framing == Framing::Chunked {
                        push_last_chunk(buf, trailers.as_ref());
                    }
                    self.state = State::Whole;
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }

    /// Moves what was received to `buf`, and opens the window by it. True if there is no room for all of it.
    fn give(&mut self, buf: &mut Vec<u8>) -> bool {
        let State::Body(body) = &mut self.state else {
            return false;
        };
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
        let _ = body.flow_control().release_capacity(count);
        !self.rest.is_empty()
    }
}

/// Gives out interim heads until the head comes.
fn poll_head(
    cx: &mut Context<'_>,
    response: &mut ResponseFuture,
    buf: &mut Vec<u8>,
) -> Poll<Result<Response<RecvStream>, h2::Error>> {
    while let Some(interim) = ready!(response.poll_informational(cx)) {
        let interim = interim?;
        push_head(buf, interim.status(), interim.headers(), true);
        buf.extend_from_slice(b"\r\n");
    }
    Pin::new(response).poll(cx)
}

/// Appends the status line and the fields, `content-length` only if it is the framing.
fn push_head(buf: &mut Vec<u8>, status: StatusCode, headers: &HeaderMap, chunked: bool) {
    let values: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    buf.reserve(values + 128);
    buf.extend_from_slice(b"HTTP/1.1 ");
    buf.extend_from_slice(status.as_str().as_bytes());
    buf.push(b' ');
    buf.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    buf.extend_from_slice(b"\r\n");
    for (name, value) in headers {
        let kept = match name.as_str() {
            // They would be about our connection.
            "connection" | "keep-alive" | "proxy-connection" | "upgrade" | "transfer-encoding" => false,
            "content-length" => !chunked,
            _ => true,
        };
        if kept {
            push_field(buf, name.as_str(), value.as_bytes());
        }
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// Whether the server says that it has not looked at the request.
fn is_refusal(error: &h2::Error) -> bool {
    let reset = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    // The streams that a GOAWAY ends are those behind the last one that it names.
    error.is_remote() && (reset || error.is_go_away())
}

/// Whether the server wants no more of the exchange, and calls it no error.
fn is_cancel(error: &h2::Error) -> bool {
    error.is_remote() && error.is_reset() && error.reason() == Some(Reason::CANCEL)
}
