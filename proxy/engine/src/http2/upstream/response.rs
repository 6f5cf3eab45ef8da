//! The response of an endpoint: interim heads, the head, and the body.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::HeaderMap;
use h2::Reason;
use h2::client::ResponseFuture;
use sluice_http::{HeadLimits, ParseError, ResponseHead};
use sluice_net::stream::Verdict;

use super::super::fields::shown;
use super::super::inbound::Inbound;
use super::super::{broken, invalid};

/// How much of the response has arrived.
enum State {
    /// Interim heads, and then the head.
    Head(ResponseFuture),
    Body(Inbound),
    Broken,
}

/// A response being received.
pub(super) struct Response {
    state: State,
    /// Whether it has no body, whatever its head says.
    is_bodiless: bool,
    /// The server's reason for ending the exchange early.
    verdict: Option<Verdict>,
}

impl Response {
    /// The response to a request that was sent, perhaps a HEAD.
    pub(super) fn new(response: ResponseFuture, is_to_head: bool) -> Self {
        Self { state: State::Head(response), is_bodiless: is_to_head, verdict: None }
    }

    /// Whether all of it was given out.
    pub(super) fn is_whole(&self) -> bool {
        matches!(&self.state, State::Body(body) if self.is_bodiless || body.has_ended())
    }

    /// Whether only interim heads have arrived.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.state, State::Head(_))
    }

    pub(super) fn verdict(&self) -> Option<Verdict> {
        self.verdict
    }

    pub(super) fn trailers(&self) -> Option<&HeaderMap> {
        match &self.state {
            State::Body(body) => body.trailers(),
            State::Head(_) | State::Broken => None,
        }
    }

    /// Reads the next head: an interim one, or the final one.
    pub(super) fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        head: &mut ResponseHead,
        limits: &HeadLimits,
    ) -> Poll<io::Result<Result<(), ParseError>>> {
        let State::Head(response) = &mut self.state else {
            return Poll::Ready(Err(invalid()));
        };
        let received = match ready!(response.poll_informational(cx)) {
            Some(Ok(interim)) => {
                let begin = (interim.status().as_u16(), false);
                return Poll::Ready(Ok(head.assemble(begin, shown(interim.headers()), limits)));
            }
            Some(Err(error)) => Err(error),
            None => ready!(Pin::new(response).poll(cx)),
        };
        let (parts, body) = match received {
            Ok(response) => response.into_parts(),
            Err(error) => return Poll::Ready(Err(self.fail(&error))),
        };
        let status = parts.status.as_u16();
        self.is_bodiless |= matches!(status, 204 | 304);
        let begin = (status, body.is_end_stream());
        self.state = State::Body(Inbound::new(body));
        Poll::Ready(Ok(head.assemble(begin, shown(&parts.headers), limits)))
    }

    /// Appends the available bytes of the body to `buf`; 0 is the end.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>, buf: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        match &mut self.state {
            State::Head(_) => Poll::Ready(Err(invalid())),
            State::Body(body) => {
                let received = ready!(body.poll(cx, buf));
                Poll::Ready(received.map_err(|error| self.fail(&error)))
            }
            State::Broken => Poll::Ready(Err(broken())),
        }
    }

    fn fail(&mut self, error: &h2::Error) -> io::Error {
        let is_awaited = self.is_awaited();
        self.verdict = match () {
            () if is_awaited && is_refusal(error) => Some(Verdict::Refused),
            () if is_cancel(error) => Some(Verdict::Cancelled),
            () => None,
        };
        self.state = State::Broken;
        broken()
    }
}

/// Whether the server reports that it has not processed the request (RFC 9113 section 8.7).
fn is_refusal(error: &h2::Error) -> bool {
    let reset = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    // A GOAWAY ends only streams after the last one that it names.
    error.is_remote() && (reset || error.is_go_away())
}

/// Whether the server has cancelled the exchange without an error.
fn is_cancel(error: &h2::Error) -> bool {
    error.is_remote() && error.is_reset() && error.reason() == Some(Reason::CANCEL)
}
