//! Drives one connection to an endpoint: from its preface to the end of its last stream.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use sluice_config::Cluster;
use sluice_core::error::Reason;
use sluice_net::deadline::Deadline;
use sluice_net::stream::{self, Stream};

use super::super::wire::{Io, Wire};
use super::{
    CONNECTION_WINDOW_BYTES, RESET_REMEMBERED, RESETS_REMEMBERED_MAX, SEND_BUFFER_BYTES,
    SMALL_FRAMES_COST_MAX, STREAM_WINDOW_BYTES, STREAMS_MAX, SharedConnection,
};

/// The parameters of a connection; times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Until when the server must have responded to the preface.
    opening_ms: u64,
    /// How long a connection without streams is kept.
    idle_ms: u64,
    /// How long the server may accept nothing of the pending bytes.
    stall_ms: u64,
    /// Maximum size of a response head, in bytes.
    head_bytes_max: usize,
}

impl Terms {
    pub(crate) fn of(config: &Cluster) -> Self {
        Self {
            opening_ms: config.connect_timeout_ms,
            idle_ms: config.pool.idle_timeout_ms,
            stall_ms: config.body_idle_timeout_ms,
            head_bytes_max: config.response_head_bytes_max,
        }
    }

    fn builder(&self) -> Builder {
        let mut builder = Builder::new();
        builder
            .enable_push(false)
            .initial_max_send_streams(STREAMS_MAX)
            .initial_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(u32::try_from(self.head_bytes_max).unwrap_or(u32::MAX))
            .max_send_buffer_size(SEND_BUFFER_BYTES)
            // Late frames of exchanges that clients gave up are not the server's fault, and must not end the other
            // exchanges.
            .max_local_error_reset_streams(None)
            .max_concurrent_reset_streams(RESETS_REMEMBERED_MAX)
            .reset_stream_duration(RESET_REMEMBERED)
            .data_frame_budget(SMALL_FRAMES_COST_MAX);
        builder
    }
}

struct Driver<'a, 'b> {
    shared: &'a SharedConnection,
    wire: &'a RefCell<Wire<'b>>,
    /// Until when the server must have responded; later, until when there may be no stream.
    silence: &'a Deadline,
    stall: &'a Deadline,
    idle_ms: u64,
    connection: Connection<Io<'a, 'b>, Bytes>,
    /// Until the server has responded.
    opening: Option<(SendRequest<Bytes>, PingPong)>,
    /// Whether no stream is open.
    idle: bool,
}

/// Runs HTTP/2 over `stream` for the streams of `shared` until the connection ends.
pub(crate) async fn drive(stream: Stream, shared: Rc<SharedConnection>, terms: Terms) {
    let (mut reader, mut writer) = stream::halves(stream);
    let silence = Deadline::new(Duration::from_millis(terms.opening_ms));
    let stall = Deadline::new(Duration::from_millis(terms.stall_ms));
    let wire = RefCell::new(Wire::new((&mut reader, &mut writer), None, &stall));
    // The handshake only writes, and the bytes are gathered.
    let Ok((sender, mut connection)) = terms.builder().handshake(Io(&wire)).await else {
        return shared.fail(Reason::ConnectFailed);
    };
    // The response to the PING follows the server's settings, which say how many streams it accepts.
    let ping = connection.ping_pong().and_then(|mut ping| {
        let sent = ping.send_ping(Ping::opaque());
        sent.is_ok().then_some(ping)
    });
    let opening = ping.map(|ping| (sender, ping));
    if opening.is_none() {
        return shared.fail(Reason::ConnectFailed);
    }
    let mut driver = Driver {
        shared: &shared,
        wire: &wire,
        silence: &silence,
        stall: &stall,
        idle_ms: terms.idle_ms,
        connection,
        opening,
        idle: true,
    };
    poll_fn(|cx| driver.poll(cx)).await;
    // The streams notice the end when the crate's state is dropped.
    drop(driver);
    if shared.is_opening() {
        shared.fail(Reason::ConnectFailed);
    }
    shared.close();
    wire.borrow().say_goodbye();
}

impl Driver<'_, '_> {
    /// Ready when the connection has ended, or is to end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.control.register(cx);
        if self.poll_silence(cx).is_ready() {
            return Poll::Ready(());
        }
        // Frames that end the connection are sent before the crate reports its end.
        let ended = Pin::new(&mut self.connection).poll(cx).is_ready();
        self.shared.received.set(self.wire.borrow().received());
        self.poll_opening(cx);
        // A server that has sent a GOAWAY gets no more streams; without streams and without sluice's handle, the
        // connection ends.
        if !self.shared.is_opening() && !self.shared.is_of_use() && !ended {
            return self.poll_last(cx);
        }
        if ended { Poll::Ready(()) } else { self.poll_send(cx) }
    }

    /// As [`Self::poll`], once the connection accepts no more streams.
    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match Pin::new(&mut self.connection).poll(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.poll_send(cx),
        }
    }

    /// Sends the pending frames. Ready if they cannot be sent, or the server accepts none of them.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let sent = self.wire.borrow_mut().poll_send(cx);
        match sent {
            Poll::Ready(Ok(())) => Poll::Pending,
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Pending => self.stall.poll_elapsed(cx),
        }
    }

    fn poll_opening(&mut self, cx: &mut Context<'_>) {
        let Some((_, ping)) = &mut self.opening else {
            return;
        };
        if let Poll::Ready(Ok(_)) = ping.poll_pong(cx)
            && let Some((sender, _)) = self.opening.take()
        {
            if sender.current_max_send_streams() == 0 {
                return self.shared.fail(Reason::ConnectFailed);
            }
            self.idle = false;
            self.shared.open(sender);
            // The time without streams starts.
            cx.waker().wake_by_ref();
        }
    }

    /// Ends an unused connection: Ready if it never opened, otherwise its streams may finish.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.opening.is_some() {
            let elapsed = self.silence.poll_elapsed(cx);
            if elapsed.is_ready() {
                self.shared.fail(Reason::ConnectTimeout);
            }
            return elapsed;
        }
        let idle = self.shared.control.live() == 0;
        if idle && !self.idle {
            self.silence.set(self.idle_ms);
            self.wire.borrow_mut().rest();
        }
        self.idle = idle;
        let over = idle && self.silence.poll_elapsed(cx).is_ready();
        if over || self.shared.control.is_ending() {
            self.shared.close();
        }
        Poll::Pending
    }
}
