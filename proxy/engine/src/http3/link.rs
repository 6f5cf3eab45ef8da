//! What the streams of a connection share with its driver.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::task::Context;

use sluice_config::{Http3Limits, Limits};
use sluice_core::metrics::{Event, WorkerRecorder};
use sluice_http::http3::{Http3Code, Priority};
use sluice_net::quic::{Connection, ConnectionError, StreamId};
use tokio::sync::Notify;

use super::channel::Channel;
use super::meter::Meter;
use super::outbound::Rest;
use crate::shared_connection::Control;

/// A connection as its streams see it.
pub(crate) struct Link {
    pub(super) connection: Connection,
    pub(super) control: Rc<Control>,
    pub(super) metrics: Rc<WorkerRecorder>,
    pub(super) meter: Meter,
    /// The most bytes of a field section.
    pub(super) section_bytes_max: usize,
    /// The most bytes of trailers.
    pub(super) trailer_bytes_max: usize,
    /// Ends of messages whose exchange is over, and that had no room yet.
    rests: RefCell<Vec<Rest>>,
    /// Exchanges with a head that had no room yet: they may send nothing more for long.
    heads: RefCell<Vec<Weak<Channel>>>,
    /// Priorities of requests that have not arrived yet.
    priorities: RefCell<BTreeMap<StreamId, Priority>>,
    fault: Cell<Option<Http3Code>>,
    /// Notified when the handshake is complete, or the connection is lost.
    settled: Notify,
    /// Whether the client has said that it is about to leave.
    pub(super) is_leaving: Cell<bool>,
}

/// The most priorities that are kept for requests to come.
const PRIORITIES_MAX: usize = 100;

impl Link {
    pub(crate) fn new(
        connection: Connection,
        control: Rc<Control>,
        metrics: &Rc<WorkerRecorder>,
        limits: &Limits,
    ) -> Rc<Self> {
        let http3: &Http3Limits = &limits.http3;
        Rc::new(Self {
            connection,
            control,
            metrics: Rc::clone(metrics),
            meter: Meter::new(http3),
            section_bytes_max: limits.head_bytes_max,
            trailer_bytes_max: limits.trailer_bytes_max,
            rests: RefCell::default(),
            heads: RefCell::default(),
            priorities: RefCell::default(),
            fault: Cell::new(None),
            settled: Notify::new(),
            is_leaving: Cell::new(false),
        })
    }

    /// The connection.
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Waits for the end of the handshake. Returns whether it is complete.
    pub(crate) async fn settled(&self) -> bool {
        loop {
            let settled = self.settled.notified();
            if self.connection.is_connected() || self.connection.lost().is_some() {
                return self.connection.is_connected();
            }
            settled.await;
        }
    }

    /// Wakes those that wait for the end of the handshake, if it has come. Returns whether it has.
    pub(super) fn look_for_handshake(&self) -> bool {
        let has_ended = self.connection.is_connected() || self.connection.lost().is_some();
        if has_ended {
            self.settled.notify_waiters();
        }
        has_ended
    }

    /// Counts a violation of the transport, which has ended the connection.
    pub(super) fn count_violation(&self, error: &ConnectionError) {
        if let ConnectionError::TransportError(error) = error
            && self.fault.get().is_none()
        {
            self.fault.set(Some(Http3Code::GeneralProtocolError));
            self.metrics.count(Event::Http3ProtocolError);
            tracing::debug!(client = %self.connection.remote(), %error, "QUIC violation");
        }
    }

    /// Ends the connection for a violation.
    pub(super) fn fail(&self, code: Http3Code) {
        if self.fault.get().is_none() {
            self.fault.set(Some(code));
            self.metrics.count(Event::Http3ProtocolError);
            tracing::debug!(client = %self.connection.remote(), reason = code.word(), "HTTP/3 violation");
            self.connection.close(code.number(), b"");
        }
    }

    /// Ends the connection for abuse, if there is any.
    pub(super) fn look_for_abuse(&self) {
        if let Some(abuse) = self.meter.abuse()
            && self.fault.get().is_none()
        {
            self.fault.set(Some(Http3Code::ExcessiveLoad));
            self.metrics.count(abuse);
            self.connection.close(Http3Code::ExcessiveLoad.number(), b"");
        }
    }

    /// Leaves the end of a message to the driver.
    pub(super) fn leave(&self, rest: Rest) {
        self.rests.borrow_mut().push(rest);
        self.control.wake();
    }

    /// Makes the driver send a head for which there was no room.
    pub(super) fn send_later(&self, channel: Weak<Channel>) {
        self.heads.borrow_mut().push(channel);
        self.control.wake();
    }

    /// Sends what was left, as far as there is room.
    pub(super) fn send_rests(&self, cx: &Context<'_>) {
        if !self.heads.borrow().is_empty() {
            let mut heads = self.heads.take();
            heads.retain(|channel| channel.upgrade().is_some_and(|channel| !channel.flush(cx)));
            self.heads.borrow_mut().append(&mut heads);
        }
        let mut rests = self.rests.borrow_mut();
        if !rests.is_empty() {
            rests.retain_mut(|rest| !rest.send(&self.connection, cx));
        }
    }

    /// Notes the priority that a client gives a request.
    pub(super) fn prioritise(&self, id: StreamId, priority: Priority, is_open: bool) {
        if is_open {
            self.connection.set_priority(id, rank(id, priority));
        }
        // It is also kept until the head is read, whose field counts less.
        let mut priorities = self.priorities.borrow_mut();
        if priorities.len() < PRIORITIES_MAX || priorities.contains_key(&id) {
            priorities.insert(id, priority);
        }
    }

    /// Drops what was noted for a stream that has ended.
    pub(super) fn forget_priority(&self, id: StreamId) {
        self.priorities.borrow_mut().remove(&id);
    }

    /// Applies the priority of a request that has arrived: what the client sent before, or else its field.
    pub(super) fn apply_priority(&self, id: StreamId, field: Option<&[u8]>) {
        let noted = self.priorities.borrow_mut().remove(&id);
        if let Some(priority) = noted.or_else(|| field.map(Priority::read)) {
            self.connection.set_priority(id, rank(id, priority));
        }
    }
}

/// The rank of a stream. More urgent ones come first. Of the same urgency, responses of which parts are of no use come one
/// after the other, and the others share the rest (RFC 9218 section 10). A client that says nothing gets all of its
/// responses at the same time, because one that never heard of priorities may wait for a short one behind a long one.
fn rank(id: StreamId, priority: Priority) -> i32 {
    /// Streams in order; those of one number apart by so many meet again long after.
    const ORDER: u64 = 1 << 20;
    let urgency = i32::from(7 - priority.urgency.min(7)) - i32::from(7 - Priority::default().urgency);
    let order = match priority.is_incremental {
        true => 0,
        // Below 2^20.
        false => (ORDER - id.index() % ORDER) as i32,
    };
    urgency * (2 * ORDER as i32) + order
}

#[cfg(test)]
mod tests {
    use sluice_net::quic::VarInt;

    use super::*;

    #[test]
    fn urgent_and_earlier_responses_come_first() {
        let rank = |id: u32, urgency, is_incremental| {
            rank(StreamId::from(VarInt::from_u32(id)), Priority { urgency, is_incremental })
        };
        assert!(rank(8, 0, true) > rank(4, 1, false));
        assert!(rank(4, 3, false) > rank(8, 3, false), "one after the other");
        assert_eq!(rank(4, 3, true), rank(8, 3, true), "at the same time");
        assert!(rank(4, 7, false) < rank(8, 3, true));
        assert_eq!(rank(0, 3, true), 0, "like one without a priority");
    }
}
