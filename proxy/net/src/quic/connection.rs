//! A connection: its protocol machine with a clock and a socket, and its streams as things to poll.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::crypto::rustls::HandshakeData;
use quinn_proto::{
    ConnectionError, ConnectionHandle, ConnectionStats, Dir, Event, ReadError, StreamEvent, StreamId, VarInt,
    WriteError,
};
use rustls::pki_types::CertificateDer;
use sluice_core::tls::take_recognised;
use tokio::time::Sleep;

use super::allowance::Allowance;
use super::endpoint::Core;
use super::path::ObservedPath;

/// Less than this is next to nothing, if there is more to write. It takes memory of its own until it is acknowledged.
const CRUMB_BYTES: usize = 256;
/// The longest wait of a timer that was not set.
const NEVER: Duration = Duration::from_secs(86_400);

/// A connection with a client. Clones are the same connection.
#[derive(Clone)]
pub struct Connection(Rc<Shared>);

/// Why a stream cannot be read or written any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// The client has given it up, with this code.
    Abandoned(u64),
    /// It has ended.
    Closed,
    /// The connection was lost.
    Lost,
}

/// The connection has ended, and nothing is left to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended;

/// What waits for events of a stream.
#[derive(Default)]
struct StreamEvents {
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// For its end by the client.
    watcher: Option<Waker>,
    /// Of the driver, which sends what a writer has left.
    flusher: Option<Waker>,
    /// When it was last written to, counted in writes.
    written: u64,
}

pub(super) struct Shared {
    core: Weak<Core>,
    handle: ConnectionHandle,
    state: RefCell<State>,
    timer: RefCell<Pin<Box<Sleep>>>,
    /// Whether something may have to be sent.
    is_due: Cell<bool>,
}

struct State {
    proto: quinn_proto::Connection,
    driver: Option<Waker>,
    streams: HashMap<StreamId, StreamEvents>,
    is_connected: bool,
    allowance: Allowance,
    is_resumed: bool,
    lost: Option<ConnectionError>,
    path: ObservedPath,
    /// Streams that may have room again, to be woken in turn.
    writable: Vec<StreamId>,
    writes: u64,
    /// Writes for which the client gave next to no room.
    crumbs: u64,
    /// Pieces of streams that were read.
    pieces: u64,
}

impl State {
    fn wake_all(&mut self) {
        for (_, events) in self.streams.drain() {
            [events.reader, events.writer, events.watcher, events.flusher]
                .into_iter()
                .flatten()
                .for_each(Waker::wake);
        }
    }

    fn on(&mut self, event: StreamEvent) {
        let wake = |waker: &mut Option<Waker>| waker.take().into_iter().for_each(Waker::wake);
        match event {
            StreamEvent::Readable { id } => {
                if let Some(events) = self.streams.get_mut(&id) {
                    wake(&mut events.reader);
                    wake(&mut events.watcher);
                }
            }
            StreamEvent::Writable { id } => self.writable.push(id),
            StreamEvent::Stopped { id, .. } => {
                if let Some(events) = self.streams.get_mut(&id) {
                    wake(&mut events.writer);
                    wake(&mut events.watcher);
                }
            }
            // The driver looks for new streams whenever it runs.
            StreamEvent::Opened { .. } | StreamEvent::Finished { .. } | StreamEvent::Available { .. } => {}
        }
    }

    /// Wakes those that wait for room: the more urgent first, and of these the one that has waited longest. The first one
    /// may take all of it.
    fn wake_writers(&mut self) {
        let mut writable = std::mem::take(&mut self.writable);
        writable.sort_by_key(|id| {
            let priority = self.proto.send_stream(*id).priority().unwrap_or_default();
            (std::cmp::Reverse(priority), self.streams.get(id).map_or(0, |events| events.written))
        });
        for id in writable.drain(..) {
            if let Some(events) = self.streams.get_mut(&id) {
                [events.flusher.take(), events.writer.take()].into_iter().flatten().for_each(Waker::wake);
            }
        }
        self.writable = writable;
    }

    fn observe(&mut self) {
        self.path.observe(&mut self.proto);
    }

    fn fault(&self) -> StreamFault {
        if self.lost.is_some() || self.proto.is_closed() { StreamFault::Lost } else { StreamFault::Closed }
    }
}

impl Shared {
    pub(super) fn new(
        core: &Rc<Core>,
        handle: ConnectionHandle,
        proto: quinn_proto::Connection,
        allowance: Allowance,
    ) -> Rc<Self> {
        let path = ObservedPath::new(proto.remote_address());
        let state = State {
            proto,
            driver: None,
            streams: HashMap::new(),
            is_connected: false,
            allowance,
            is_resumed: take_recognised(),
            lost: None,
            path,
            writable: Vec::new(),
            writes: 0,
            crumbs: 0,
            pieces: 0,
        };
        Rc::new(Self {
            core: Rc::downgrade(core),
            handle,
            state: RefCell::new(state),
            timer: RefCell::new(Box::pin(tokio::time::sleep(NEVER))),
            is_due: Cell::new(true),
        })
    }

    /// Takes what has arrived for the connection, in a datagram of this size. `has_our_identifier`: sluice has chosen the
    /// identifier that it names.
    pub(super) fn take(
        &self,
        event: quinn_proto::ConnectionEvent,
        datagram_bytes: usize,
        has_our_identifier: bool,
    ) {
        {
            let state = &mut *self.state.borrow_mut();
            state.allowance.receive(datagram_bytes, has_our_identifier);
            state.proto.handle_event(event);
            if !state.is_connected {
                state.is_resumed |= take_recognised();
            }
            state.observe();
        }
        self.wake();
    }

    /// Closes the connection, unless it is closed already, and lets `send` take its last packet.
    pub(super) fn end(&self, code: u64, send: impl FnOnce(&mut quinn_proto::Connection)) {
        let State { proto, allowance, .. } = &mut *self.state.borrow_mut();
        if !proto.is_closed() {
            proto.close(Instant::now(), number(code), Bytes::new());
            if allowance.segments(proto, 1).is_some() {
                send(proto);
            }
        }
    }

    /// Makes the driver run.
    fn wake(&self) {
        self.is_due.set(true);
        let driver = self.state.borrow_mut().driver.take();
        driver.into_iter().for_each(Waker::wake);
    }
}

impl Connection {
    pub(super) fn new(shared: Rc<Shared>) -> Self {
        Self(shared)
    }

    /// Does everything that is due: timers, events, sending. Ready when the connection has ended, and nothing is left to
    /// send. Call it from the task that drives the connection, until then.
    pub fn poll_drive(&self, cx: &mut Context<'_>) -> Poll<Ended> {
        let Some(core) = self.0.core.upgrade() else { return Poll::Ready(Ended) };
        loop {
            {
                let state = &mut *self.0.state.borrow_mut();
                if !state.driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
                    state.driver = Some(cx.waker().clone());
                }
                let now = Instant::now();
                if state.proto.poll_timeout().is_some_and(|at| at <= now) {
                    state.proto.handle_timeout(now);
                    state.observe();
                    self.0.is_due.set(true);
                }
                if self.0.is_due.replace(false) {
                    core.settle(self.0.handle, &mut state.proto);
                    while let Some(event) = state.proto.poll() {
                        match event {
                            Event::Connected => state.is_connected = true,
                            Event::ConnectionLost { reason } => {
                                state.lost = Some(reason);
                                state.wake_all();
                            }
                            Event::Stream(event) => state.on(event),
                            Event::HandshakeDataReady
                            | Event::DatagramReceived
                            | Event::DatagramsUnblocked => {}
                        }
                    }
                    state.wake_writers();
                    let State { proto, allowance, .. } = state;
                    if !core.transmit(proto, allowance, now, cx.waker()) {
                        // There is more to send, or it has to wait for room.
                        self.0.is_due.set(true);
                    }
                    core.settle(self.0.handle, &mut state.proto);
                }
                if state.proto.is_drained() {
                    return Poll::Ready(Ended);
                }
            }
            if self.poll_timer(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Ready when a timer of the protocol is due.
    fn poll_timer(&self, cx: &mut Context<'_>) -> Poll<()> {
        let at = self.0.state.borrow_mut().proto.poll_timeout();
        let at = at.unwrap_or_else(|| Instant::now() + NEVER).into();
        let mut timer = self.0.timer.borrow_mut();
        // Most timers only move away: it is set again when it fires.
        if at < timer.deadline() || timer.is_elapsed() {
            timer.as_mut().reset(at);
        }
        loop {
            std::task::ready!(timer.as_mut().poll(cx));
            if tokio::time::Instant::now() >= at {
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
    }

    /// Whether the handshake is complete.
    pub fn is_connected(&self) -> bool {
        self.0.state.borrow().is_connected
    }

    /// Whether the client has resumed a session.
    pub fn is_resumed(&self) -> bool {
        self.0.state.borrow().is_resumed
    }

    /// Whether what arrives now may be a recording: the client has resumed a session with early data, and its handshake is
    /// not complete (RFC 8470 section 3).
    pub fn is_early(&self) -> bool {
        let state = self.0.state.borrow();
        state.proto.has_0rtt() && !state.is_connected
    }

    /// Whether the client has proved that it receives at its address: by a token, by an identifier that it could only know
    /// from there, or by the handshake.
    pub fn has_proved_address(&self) -> bool {
        let state = self.0.state.borrow();
        state.allowance.is_proved() || state.is_connected
    }

    /// Why the connection was lost, if it was.
    pub fn lost(&self) -> Option<ConnectionError> {
        self.0.state.borrow().lost.clone()
    }

    /// The client's address. It may change, once the client has shown that it receives at the new one.
    pub fn remote(&self) -> SocketAddr {
        let address = self.0.state.borrow().path.settled();
        SocketAddr::new(address.ip().to_canonical(), address.port())
    }

    /// How often the client's address has changed since this was last asked, whether it has proved that it is there or not.
    pub fn take_address_changes(&self) -> u64 {
        self.0.state.borrow_mut().path.take_changes()
    }

    /// The name that the client asked for, once the handshake is complete.
    pub fn server_name(&self) -> Option<String> {
        let state = self.0.state.borrow();
        let data = state.proto.crypto_session().handshake_data()?;
        data.downcast::<HandshakeData>().ok()?.server_name
    }

    /// The client's certificates, once the handshake is complete.
    pub fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        let state = self.0.state.borrow();
        let identity = state.proto.crypto_session().peer_identity()?;
        identity.downcast().ok().map(|certificates| *certificates)
    }

    /// What was measured and counted.
    pub fn stats(&self) -> ConnectionStats {
        self.0.state.borrow().proto.stats()
    }

    /// Sends something that the client has to acknowledge, so that neither side takes the connection for dead.
    pub fn ping(&self) {
        self.0.state.borrow_mut().proto.ping();
        self.0.wake();
    }

    /// Ends the connection with a code of HTTP/3. Drive it on, so that the client learns of it.
    pub fn close(&self, code: u64, reason: &'static [u8]) {
        {
            let state = &mut *self.0.state.borrow_mut();
            state.proto.close(Instant::now(), number(code), Bytes::from_static(reason));
            state.lost.get_or_insert(ConnectionError::LocallyClosed);
            state.wake_all();
        }
        self.0.wake();
    }

    /// The next stream that the client has opened, in both directions.
    pub fn accept(&self) -> Option<StreamId> {
        self.accept_in(Dir::Bi)
    }

    /// The next stream that the client has opened in its direction only.
    pub fn accept_uni(&self) -> Option<StreamId> {
        self.accept_in(Dir::Uni)
    }

    fn accept_in(&self, direction: Dir) -> Option<StreamId> {
        let accepted = self.0.state.borrow_mut().proto.streams().accept(direction);
        // The client may get room for another one.
        accepted.inspect(|_| self.0.is_due.set(true))
    }

    /// Opens a stream to the client; `None` if it takes no more.
    pub fn open_uni(&self) -> Option<StreamId> {
        self.0.state.borrow_mut().proto.streams().open(Dir::Uni)
    }

    /// Reads up to `bytes_max` bytes of a stream; `None` is its end.
    pub fn poll_read(
        &self,
        cx: &mut Context<'_>,
        id: StreamId,
        bytes_max: usize,
    ) -> Poll<Result<Option<Bytes>, StreamFault>> {
        let (outcome, must_send) = {
            let state = &mut *self.0.state.borrow_mut();
            if state.lost.is_some() {
                return Poll::Ready(Err(StreamFault::Lost));
            }
            let mut stream = state.proto.recv_stream(id);
            let Ok(mut chunks) = stream.read(true) else {
                return Poll::Ready(Err(state.fault()));
            };
            let next = chunks.next(bytes_max);
            let must_send = chunks.finalize().should_transmit();
            state.pieces += u64::from(matches!(next, Ok(Some(_))));
            let outcome = match next {
                Ok(chunk) => Poll::Ready(Ok(chunk.map(|chunk| chunk.bytes))),
                Err(ReadError::Reset(code)) => Poll::Ready(Err(StreamFault::Abandoned(code.into_inner()))),
                Err(ReadError::Blocked) => {
                    state.streams.entry(id).or_default().reader = Some(cx.waker().clone());
                    Poll::Pending
                }
            };
            (outcome, must_send)
        };
        if must_send {
            self.0.wake();
        }
        outcome
    }

    /// Takes as much of `bytes` as there is room for, and returns how much.
    ///
    /// # Errors
    /// The stream takes nothing any more.
    pub fn write(&self, id: StreamId, bytes: &[u8]) -> Result<usize, StreamFault> {
        let written = {
            let state = &mut *self.0.state.borrow_mut();
            let written = state.proto.send_stream(id).write(bytes);
            match written {
                Ok(written) => {
                    state.writes += 1;
                    state.crumbs += u64::from(written < bytes.len() && written < CRUMB_BYTES);
                    let writes = state.writes;
                    if let Some(events) = state.streams.get_mut(&id) {
                        events.written = writes;
                    }
                    written
                }
                Err(WriteError::Blocked) if state.lost.is_none() && !state.proto.is_closed() => return Ok(0),
                Err(WriteError::Blocked) => return Err(StreamFault::Lost),
                Err(WriteError::Stopped(code)) => return Err(StreamFault::Abandoned(code.into_inner())),
                Err(WriteError::ClosedStream) => return Err(state.fault()),
            }
        };
        self.0.wake();
        Ok(written)
    }

    /// How often the client gave room for a few bytes only since this was last asked.
    pub fn take_crumbs(&self) -> u64 {
        std::mem::take(&mut self.0.state.borrow_mut().crumbs)
    }

    /// Pieces of streams that were read. The client sends one or several of them in a frame.
    pub fn pieces(&self) -> u64 {
        self.0.state.borrow().pieces
    }

    /// Takes as much as this before the application has read it, from now on.
    pub fn set_receive_window(&self, bytes: u32) {
        self.0.state.borrow_mut().proto.set_receive_window(bytes.into());
        self.0.wake();
    }

    /// Wakes the task when the stream may have room again, after a write that found none.
    pub fn wait_for_room(&self, cx: &Context<'_>, id: StreamId) {
        self.0.state.borrow_mut().streams.entry(id).or_default().writer = Some(cx.waker().clone());
    }

    /// The same for the driver, which may wait beside the task that writes.
    pub fn wait_to_flush(&self, cx: &Context<'_>, id: StreamId) {
        self.0.state.borrow_mut().streams.entry(id).or_default().flusher = Some(cx.waker().clone());
    }

    /// Ends a stream after what was written.
    pub fn finish(&self, id: StreamId) {
        // An error means that the client has stopped it.
        let _ = self.0.state.borrow_mut().proto.send_stream(id).finish();
        self.0.wake();
    }

    /// Gives up sending on a stream.
    pub fn reset(&self, id: StreamId, code: u64) {
        let _ = self.0.state.borrow_mut().proto.send_stream(id).reset(number(code));
        self.0.wake();
    }

    /// Asks the client to stop sending on a stream, and drops what it has sent.
    pub fn stop(&self, id: StreamId, code: u64) {
        let _ = self.0.state.borrow_mut().proto.recv_stream(id).stop(number(code));
        self.0.wake();
    }

    /// Sends what is written to this stream before that of streams with a lower number.
    pub fn set_priority(&self, id: StreamId, priority: i32) {
        let _ = self.0.state.borrow_mut().proto.send_stream(id).set_priority(priority);
    }

    /// Ready when the client has asked to stop sending on a stream, or the connection is lost.
    pub fn poll_stopped(&self, cx: &mut Context<'_>, id: StreamId) -> Poll<()> {
        let state = &mut *self.0.state.borrow_mut();
        let is_stopped = matches!(state.proto.send_stream(id).stopped(), Ok(Some(_)));
        if is_stopped || state.lost.is_some() {
            return Poll::Ready(());
        }
        state.streams.entry(id).or_default().watcher = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether the client has asked to stop sending on a stream.
    pub fn was_stopped(&self, id: StreamId) -> bool {
        matches!(self.0.state.borrow_mut().proto.send_stream(id).stopped(), Ok(Some(_)))
    }

    /// Whether the client has given up sending on a stream. Later calls return false.
    pub fn was_reset(&self, id: StreamId) -> bool {
        matches!(self.0.state.borrow_mut().proto.recv_stream(id).received_reset(), Ok(Some(_)))
    }

    /// Drops what waits for a stream.
    pub fn forget(&self, id: StreamId) {
        self.0.state.borrow_mut().streams.remove(&id);
    }

    /// Streams of which the client has not acknowledged everything, those included that have not ended.
    pub fn undelivered(&self) -> usize {
        self.0.state.borrow_mut().proto.streams().send_streams()
    }
}

fn number(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}
