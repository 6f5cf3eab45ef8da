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

/// What a connection goes by; times in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Until when the server must have answered the preface.
    opening_ms: u64,
    /// How long a connection without streams is kept.
    idle_ms: u64,
    /// How long the server may take nothing of what is being sent.
    stall_ms: u64,
    /// Bytes of an answer's head.
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
            // What is still on its way here for exchanges that clients gave up is no fault of the server's: it is not
            // to end the others.
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
    /// Until when the server must have answered, and later until when there may be no stream.
    silence: &'a Deadline,
    stall: &'a Deadline,
    idle_ms: u64,
    connection: Connection<Io<'a, 'b>, Bytes>,
    /// Until the server has answered.
    opening: Option<(SendRequest<Bytes>, PingPong)>,
    /// Whether no stream is open.
    idle: bool,
}

/// Speaks HTTP/2 over `stream` for the streams of `shared` until the connection ends.
pub(crate) async fn drive(stream: Stream, shared: Rc<SharedConnection>, terms: Terms) {
    let (mut reader, mut writer) = stream::halves(stream);
    let silence = Deadline::new(Duration::from_millis(terms.opening_ms));
    let stall = Deadline::new(Duration::from_millis(terms.stall_ms));
    let wire = RefCell::new(Wire::new((&mut reader, &mut writer), None, &stall));
    // It only writes, and what is written gathers.
    let Ok((sender, mut connection)) = terms.builder().handshake(Io(&wire)).await else {
        return shared.fail(Reason::ConnectFailed);
    };
    // An answer to it comes behind the server's settings, without which nobody knows how many streams it takes.
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
    // The streams see that it is over when the crate's state goes.
    drop(driver);
    if shared.is_opening() {
        shared.fail(Reason::ConnectFailed);
    }
    shared.close();
    wire.borrow().say_goodbye();
}

impl Driver<'_, '_> {
    /// Ready when the connection has ended, or is to.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shared.control.register(cx);
        if self.poll_silence(cx).is_ready() {
            return Poll::Ready(());
        }
        // What ends it is sent before it says that it has ended.
        let ended = Pin::new(&mut self.connection).poll(cx).is_ready();
        self.shared.received.set(self.wire.borrow().received());
        self.poll_opening(cx);
        // A server that has said goodbye gets no more streams; without them, and without us, the connection ends.
        if !self.shared.is_opening() && !self.shared.is_of_use() && !ended {
            return self.poll_last(cx);
        }
        if ended { Poll::Ready(()) } else { self.poll_send(cx) }
    }

    /// The same once it takes no more streams.
    fn poll_last(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match Pin::new(&mut self.connection).poll(cx) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => self.poll_send(cx),
        }
    }

    /// Sends what was said. Ready if it cannot be, or the server takes none of it.
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
            // Its time without streams begins.
            cx.waker().wake_by_ref();
        }
    }

    /// Ends what is of no use: Ready if nothing has come of it, else its streams may end.
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
