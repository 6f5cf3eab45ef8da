//! Drives one connection: accepts its streams, sends their frames, and ends it in order or for a fault.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use h2::server::{Builder, Connection};
use sluice_config::Limits;
use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_net::deadline::Deadline;
use sluice_net::stream::{Reader, Writer};

use super::PREFACE;
use super::abuse::abuse_of;
use super::channel::{Accepted, Channel, Declined};
use super::meter::{Bounds, Meter};
use super::wire::{Io, Wire};
use crate::shared_connection::Control;

/// The time within which streams arrive that a client had opened before it received the GOAWAY.
const LAST_STREAMS: Duration = Duration::from_secs(5);
/// How long late frames of a finished stream are recognised and not counted as faults.
const RESET_REMEMBERED: Duration = Duration::from_secs(10);

/// The parameters of a connection.
pub(crate) struct Terms<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) metrics: &'a WorkerRecorder,
    pub(crate) control: Rc<Control>,
}

type ServerConnection<'a, 'b> = Connection<Io<'a, 'b>, Bytes>;

/// How far a connection has been shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It accepts streams.
    Open,
    /// A GOAWAY was sent to the client.
    GoingAway,
    /// It is being closed, regardless of open streams.
    Closing,
}

struct Driver<'a, 'b> {
    terms: &'a Terms<'a>,
    wire: &'a RefCell<Wire<'b>>,
    /// Until when a connection may be without streams.
    silence: &'a Deadline,
    /// Until when the client must have accepted some of the pending bytes.
    stall: &'a Deadline,
    connection: ServerConnection<'a, 'b>,
    end: End,
    /// When the GOAWAY was sent.
    told_at: Option<Instant>,
    /// Whether no stream is open.
    idle: bool,
    streams: u64,
}

/// Serves a connection, from its preface until all its streams have ended. Each stream is passed to `open`.
pub(crate) async fn serve(
    directions: (&mut Reader, &mut Writer),
    terms: &Terms<'_>,
    mut open: impl FnMut(Accepted),
) {
    let limits = terms.limits;
    let silence = Deadline::new(Duration::from_millis(limits.header_timeout_ms));
    let stall = Deadline::new(Duration::from_millis(limits.keep_alive_timeout_ms));
    let meter = Meter::new(bounds(limits), Instant::now());
    let wire = RefCell::new(Wire::new(directions, Some(meter), &stall));
    let connection = shake_hands(limits, &wire, &silence).await;
    silence.set(limits.keep_alive_timeout_ms);
    if let Some(connection) = connection {
        terms.metrics.count(Event::Http2Opened);
        let (wire, silence, stall) = (&wire, &silence, &stall);
        let mut driver = Driver {
            terms,
            wire,
            silence,
            stall,
            connection,
            end: End::Open,
            told_at: None,
            idle: true,
            streams: 0,
        };
        poll_fn(|cx| driver.poll(cx, &mut open)).await;
    }
    // The streams notice the end. They hold nothing of the connection, but they are counted with it.
    silence.set(limits.keep_alive_timeout_ms);
    let left = poll_fn(|cx| {
        terms.control.register(cx);
        let sent = wire.borrow_mut().poll_send(cx);
        if terms.control.live() > 0 || sent.is_pending() { Poll::Pending } else { Poll::Ready(()) }
    });
    if silence.run(left).await.is_none() {
        wire.borrow().reset_on_close();
    }
}

fn bounds(limits: &Limits) -> Bounds {
    Bounds {
        interval: Duration::from_millis(limits.http2.interval_ms),
        resets_max: limits.http2.resets_max,
        control_frames_max: limits.http2.control_frames_max,
    }
}

/// Sends sluice's settings and reads the client's preface, in bounded time.
async fn shake_hands<'a, 'b>(
    limits: &Limits,
    wire: &'a RefCell<Wire<'b>>,
    deadline: &Deadline,
) -> Option<ServerConnection<'a, 'b>> {
    let mut handshake = Box::pin(builder(limits).handshake(Io(wire)));
    let shaken = poll_fn(|cx| {
        let shaken = handshake.as_mut().poll(cx);
        // A failure is noticed at the next poll.
        let _ = wire.borrow_mut().poll_send(cx);
        shaken
    });
    deadline.run(shaken).await?.ok()
}

fn builder(limits: &Limits) -> Builder {
    let http2 = &limits.http2;
    // A limit beyond 32 bits is no limit; the ranges of the keys are far below.
    let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(http2.streams_max)
        .max_header_list_size(narrow(limits.head_bytes_max))
        .initial_window_size(http2.stream_window_bytes)
        .initial_connection_window_size(http2.connection_window_bytes)
        .max_frame_size(http2.frame_bytes_max)
        .max_send_buffer_size(http2.send_buffer_bytes)
        .max_pending_accept_reset_streams(http2.pending_resets_max)
        .max_local_error_reset_streams(Some(http2.faults_max))
        // Late frames of uploads that already have their response are not faults.
        .max_concurrent_reset_streams(http2.streams_max as usize)
        .reset_stream_duration(RESET_REMEMBERED)
        // In the crate's count a frame costs 256 minus its length: enough for a stream's window full of gRPC's smallest
        // messages.
        .data_frame_budget(http2.connection_window_bytes as usize * 4)
        .enable_connect_protocol();
    builder
}

impl Driver<'_, '_> {
    /// Ready when only the streams of the connection are left to react to its end.
    fn poll(&mut self, cx: &mut Context<'_>, open: &mut impl FnMut(Accepted)) -> Poll<()> {
        self.terms.control.register(cx);
        loop {
            self.look_for_ends();
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, mut respond)))) => {
                    self.streams += 1;
                    self.terms.metrics.count(Event::Http2Stream);
                    if self.told_at.is_some_and(|at| at.elapsed() > LAST_STREAMS) {
                        respond.send_reset(Reason::REFUSED_STREAM);
                        continue;
                    }
                    match Channel::open(&self.terms.control, request, respond) {
                        Ok(accepted) => open(accepted),
                        Err(Declined::Malformed) => self.terms.metrics.count(Event::Http2Malformed),
                        Err(Declined::Gone) => {}
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.note(&error);
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                // It may have read something abusive.
                Poll::Pending if self.wire.borrow().abuse().is_some() && self.end != End::Closing => {}
                Poll::Pending => break,
            }
        }
        let sending = match self.wire.borrow_mut().poll_send(cx) {
            // The crate notices when it writes, but it may have nothing to write.
            Poll::Ready(Err(_)) => return Poll::Ready(()),
            Poll::Ready(Ok(())) => false,
            Poll::Pending => true,
        };
        self.poll_silence(cx, sending)
    }

    /// Acts on requests to end the connection.
    fn look_for_ends(&mut self) {
        if let Some(abuse) = self.wire.borrow().abuse()
            && self.end != End::Closing
        {
            self.end = End::Closing;
            self.terms.metrics.count_abuse(abuse);
            self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        }
        let enough = self.streams >= self.terms.limits.requests_per_connection_max;
        if self.end == End::Open && (enough || self.terms.control.is_ending()) {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.end = End::GoingAway;
        self.told_at = Some(Instant::now());
        self.connection.graceful_shutdown();
        if self.idle {
            self.silence.set(self.terms.limits.half_close_timeout_ms);
        }
    }

    /// Ends what is silent for too long: a connection without streams, or a client that accepts nothing. Streams have
    /// separate deadlines.
    fn poll_silence(&mut self, cx: &mut Context<'_>, sending: bool) -> Poll<()> {
        if sending && self.stall.poll_elapsed(cx).is_ready() {
            self.wire.borrow().reset_on_close();
            return Poll::Ready(());
        }
        let idle = self.terms.control.live() == 0;
        let limits = self.terms.limits;
        if idle != self.idle {
            self.idle = idle;
            let told = self.end != End::Open;
            self.silence.set(if told { limits.half_close_timeout_ms } else { limits.keep_alive_timeout_ms });
        }
        if !idle {
            return Poll::Pending;
        }
        if !sending {
            self.wire.borrow_mut().rest();
        }
        std::task::ready!(self.silence.poll_elapsed(cx));
        self.silence.set(limits.half_close_timeout_ms);
        match self.end {
            End::Open => self.tell(),
            End::GoingAway => {
                self.end = End::Closing;
                self.connection.abrupt_shutdown(Reason::NO_ERROR);
            }
            End::Closing => return Poll::Ready(()),
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Counts why the crate has ended the connection.
    fn note(&self, error: &h2::Error) {
        match abuse_of(error, self.wire.borrow().last_words()) {
            Some(abuse) => self.terms.metrics.count_abuse(abuse),
            None if error.is_library() => self.terms.metrics.count(Event::Http2ProtocolError),
            None => {}
        }
    }
}

/// Whether `data` starts with the preface; `None` while that is undecided.
pub(crate) fn is_preface(data: &[u8]) -> Option<bool> {
    let seen = data.len().min(PREFACE.len());
    match data[..seen] == PREFACE[..seen] {
        false => Some(false),
        true => (seen == PREFACE.len()).then_some(true),
    }
}
