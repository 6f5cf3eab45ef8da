//! sluice's part, one step at a time: like `exchange/direct.rs`, `direct/armed.rs` and `stream/passed.rs` in the proxy.

use std::collections::VecDeque;
use std::rc::Rc;
use std::vec::Vec;

use super::bytes::{Byte, ERROR, Text};
use super::ends::Connection;
use super::world::{ROOM, World};
use crate::slot::{Line, Order, Phase};

/// A line of this many bytes, at most that of the shortest field.
fn line(bytes: u32) -> Line {
    match bytes {
        0 => Line::default(),
        bytes => Line::of_field(b"", &b"value"[..bytes as usize - 4]).expect("it fits"),
    }
}

/// What sluice is doing for a client.
#[derive(Clone, Debug)]
pub(super) enum Handler {
    /// Waits for a request.
    Idle,
    /// Has sent a request, and waits for the outcome.
    Waiting { connection: usize, armed: bool, text: Text },
    /// Has received bytes from the application, and determines where they belong.
    Claiming { connection: usize, text: Text, came: Vec<Byte> },
    /// Waits until the announced bytes are in the send queue, then copies the rest.
    Settling { connection: usize, armed: bool, text: Text, came: VecDeque<Byte>, remaining: Option<u64> },
    /// Copies.
    Copying { connection: usize, armed: bool, text: Text, came: VecDeque<Byte>, remaining: Option<u64> },
}

impl World {
    /// One step for a client.
    pub(super) fn sluice(&self, index: usize) {
        let handler = self.clients[index].borrow().handler.clone();
        let next = match handler {
            Handler::Idle => self.start(index),
            Handler::Waiting { connection, armed, text } => self.wait(index, connection, armed, text),
            Handler::Claiming { connection, text, came } => self.claim(index, connection, text, came),
            Handler::Settling { connection, armed, text, came, remaining } => {
                if self.is_settled(index) {
                    Handler::Copying { connection, armed, text, came, remaining }
                } else if self.clients[index].borrow().is_open() && !self.is_stuck(index) {
                    return;
                } else {
                    self.fail(index, connection, armed, true)
                }
            }
            Handler::Copying { connection, armed, text, came, remaining } => {
                self.copy(index, connection, armed, text, came, remaining)
            }
        };
        self.clients[index].borrow_mut().handler = next;
    }

    fn start(&self, index: usize) -> Handler {
        let text = {
            let client = self.clients[index].borrow();
            match client.asked.get(client.begun) {
                Some(text) if client.is_open() => *text,
                _ => return Handler::Idle,
            }
        };
        let Some(connection) = self.connect() else { return Handler::Idle };
        self.clients[index].borrow_mut().begun += 1;
        let armed = connection.slot != 0 && (self.calm.get() || !self.chance(8));
        if armed {
            let client = self.clients[index].borrow();
            let sent = client.written + client.passed;
            let order = Order {
                client: client.cookie,
                client_socket: index as u64,
                sequence: client.base.wrapping_add(sent as u32),
                received: connection.received.get(),
                body_bytes_min: 0,
                body_bytes_max: 7,
                hold: self.chance(2),
                slack: 0,
                line: line(text.added),
            };
            drop(client);
            self.slots[connection.slot as usize].prepare(&order);
        }
        connection.sending.set(Some((text, false)));
        Handler::Waiting { connection: connection.number, armed, text }
    }

    /// A connection against which sluice knows nothing, or a new one.
    fn connect(&self) -> Option<Rc<Connection>> {
        let is_idle = |one: &&Rc<Connection>| !one.in_use.get() && !one.closed.get();
        let idle: Vec<_> = self.connections.borrow().iter().filter(is_idle).cloned().collect();
        let which = self.choice() as usize % (idle.len() + 1);
        if let Some(idle) = idle.get(which).or(idle.first()).filter(|_| self.calm.get() || !self.chance(4)) {
            // Except when sluice does not know yet what has arrived.
            let silent = idle.inbox.borrow().is_empty() && !idle.ended.get();
            if silent || self.chance(3) {
                idle.in_use.set(true);
                return Some(Rc::clone(idle));
            }
            self.give_up(idle);
        }
        if !self.may_connect() {
            return None;
        }
        let slot = self.pool.borrow_mut().take(|index| &self.slots[index as usize]);
        let number = self.connections.borrow().len();
        let connection = Rc::new(Connection::new(number, slot.unwrap_or(0)));
        self.connections.borrow_mut().push(Rc::clone(&connection));
        if let Some(slot) = slot {
            self.owners.borrow_mut()[slot as usize] = Some(number);
            self.slots[slot as usize].assign(number as u64);
        }
        Some(connection)
    }

    /// Closes a connection and returns its slot.
    fn give_up(&self, connection: &Connection) {
        if !connection.closed.replace(true) && connection.slot != 0 {
            let slot = &self.slots[connection.slot as usize];
            self.owners.borrow_mut()[connection.slot as usize] = None;
            self.pool.borrow_mut().put(connection.slot, slot);
        }
    }

    fn wait(&self, index: usize, number: usize, armed: bool, text: Text) -> Handler {
        let connection = self.connection(number);
        let slot = &self.slots[connection.slot as usize];
        let phase = if armed { slot.phase() } else { Phase::Left };
        if phase == Phase::Done {
            return self.complete(index, &connection);
        }
        if !self.clients[index].borrow().is_open() {
            return self.fail(index, number, armed, false);
        }
        if armed && self.chance(50) {
            slot.take_over();
        } else if self.chance(120) {
            return self.fail(index, number, armed, false);
        }
        if armed && slot.phase() == Phase::Held && (self.calm.get() || self.chance(8)) {
            _ = slot.let_head_go();
        }
        let came = self.receive(&connection);
        let ended = connection.ended.get() && self.is_still(&connection);
        let claims = !came.is_empty() || ended || (slot.held.get() != 0 && slot.phase() == Phase::Left);
        if claims && armed {
            Handler::Claiming { connection: number, text, came }
        } else if !came.is_empty() {
            Handler::Settling { connection: number, armed, text, came: came.into(), remaining: None }
        } else if ended {
            self.fail(index, number, armed, false)
        } else {
            Handler::Waiting { connection: number, armed, text }
        }
    }

    /// Whether the end has arrived: it comes after everything that was sent.
    fn is_still(&self, connection: &Connection) -> bool {
        connection.run.borrow().is_none()
            && connection.pushes.borrow().is_empty()
            && connection.inbox.borrow().is_empty()
    }

    fn receive(&self, connection: &Connection) -> Vec<Byte> {
        let much = if self.calm.get() { usize::MAX } else { self.choice() as usize % 8 };
        let mut inbox = connection.inbox.borrow_mut();
        let much = much.min(inbox.len());
        connection.received.set(connection.received.get().wrapping_add(much as u32));
        inbox.drain(..much).collect()
    }

    /// The whole response has been sent or announced.
    fn complete(&self, index: usize, connection: &Connection) -> Handler {
        let sent = self.slots[connection.slot as usize].sent.get();
        let cookie = self.clients[index].borrow().cookie;
        let promised = self.is_promised(cookie);
        {
            let mut client = self.clients[index].borrow_mut();
            client.passed += sent;
            assert!(
                !client.is_open() || client.has_whole(promised),
                "an incomplete response counts as complete: {:?} of {:?}, begun {}, promised {promised}, sent {sent}",
                client.entering,
                client.asked,
                client.begun
            );
        }
        self.release(connection, true, true);
        Handler::Idle
    }

    /// The exchange is over.
    fn release(&self, connection: &Connection, armed: bool, reusable: bool) {
        if armed {
            self.slots[connection.slot as usize].take_over();
        }
        if reusable && (connection.inbox.borrow().is_empty() || self.chance(3)) {
            connection.in_use.set(false);
        } else {
            self.give_up(connection);
        }
    }

    fn claim(&self, index: usize, number: usize, text: Text, came: Vec<Byte>) -> Handler {
        let connection = self.connection(number);
        let slot = &self.slots[connection.slot as usize];
        if slot.phase() == Phase::Done {
            // The received bytes do not belong to the response.
            let handler = self.complete(index, &connection);
            self.connection(number).in_use.set(true);
            self.give_up(&connection);
            return handler;
        }
        if slot.take_over() != Phase::Left {
            return Handler::Claiming { connection: number, text, came };
        }
        let sent = slot.sent.get();
        let mut came = VecDeque::from(came);
        if slot.held.get() != 0 {
            assert_eq!(sent, 0, "a held head was already sent");
            connection.kept.borrow().iter().rev().for_each(|byte| came.push_front(*byte));
        } else if came.is_empty() && sent == 0 {
            return self.fail(index, number, true, false);
        }
        let remaining = (sent > 0).then(|| slot.total.get().saturating_sub(sent));
        self.clients[index].borrow_mut().passed += sent;
        Handler::Settling { connection: number, armed: true, text, came, remaining }
    }

    /// Whether the announced bytes will never arrive, which is known after some time.
    fn is_stuck(&self, index: usize) -> bool {
        let cookie = self.clients[index].borrow().cookie;
        self.calm.get() && self.is_promised(cookie) == 0
    }

    fn is_settled(&self, index: usize) -> bool {
        let client = self.clients[index].borrow();
        client.is_open()
            && client.write_seq == client.base.wrapping_add((client.written + client.passed) as u32)
    }

    /// Sends one more byte, or waits for one.
    #[expect(clippy::too_many_arguments, reason = "a step of the model, with all of its state")]
    fn copy(
        &self,
        index: usize,
        number: usize,
        armed: bool,
        text: Text,
        mut came: VecDeque<Byte>,
        mut remaining: Option<u64>,
    ) -> Handler {
        let connection = self.connection(number);
        if !self.clients[index].borrow().is_open() {
            return self.fail(index, number, armed, true);
        }
        while let Some(byte) = came.front().copied() {
            if remaining.is_none() {
                // The start of a response, or bytes that sluice would not forward.
                if self.text(byte).is_none_or(|text| byte.at != 0 || text.number != byte.answer) {
                    return self.fail(index, number, armed, false);
                }
                if self.clients[index].borrow().queue.len() + text.added as usize >= ROOM {
                    return Handler::Copying { connection: number, armed, text, came, remaining };
                }
                // sluice writes its own line, also if the program has added it before the response was left to it.
                self.write(index, byte);
                text.additional().for_each(|byte| self.write(index, byte));
                remaining = Some(u64::from(text.expected_length() - 1 - text.added));
            } else if !Text::is_additional(byte) && self.text(byte).is_none_or(|text| !text.is_cut(byte)) {
                if self.clients[index].borrow().queue.len() >= ROOM {
                    return Handler::Copying { connection: number, armed, text, came, remaining };
                }
                self.write(index, byte);
                remaining = remaining.map(|remaining| remaining - 1);
            }
            came.pop_front();
            if remaining == Some(0) {
                assert!(self.clients[index].borrow().has_whole(0), "an answer counts as copied and is not");
                self.release(&connection, armed, came.is_empty());
                return Handler::Idle;
            }
        }
        came.extend(self.receive(&connection));
        if came.is_empty() && connection.ended.get() && self.is_still(&connection) {
            return self.fail(index, number, armed, true);
        }
        Handler::Copying { connection: number, armed, text, came, remaining }
    }

    /// sluice itself sends a byte.
    fn write(&self, index: usize, byte: Byte) {
        let cookie = self.clients[index].borrow().cookie;
        assert_eq!(self.is_promised(cookie), 0, "a write between a promise and its push");
        let mut client = self.clients[index].borrow_mut();
        client.enter(byte);
        client.written += 1;
    }

    /// The exchange failed: sends an error if no byte of its response can have left, else the client sees an end.
    fn fail(&self, index: usize, number: usize, armed: bool, begun: bool) -> Handler {
        let connection = self.connection(number);
        let slot = &self.slots[connection.slot as usize];
        let begun = begun || (armed && (slot.take_over() == Phase::Busy || slot.sent.get() > 0));
        let open = self.clients[index].borrow().is_open();
        // Bytes announced for earlier responses must be in the queue, as before anything that sluice writes.
        if open && !begun && self.is_settled(index) && self.clients[index].borrow().queue.len() < ROOM {
            let number = {
                let client = self.clients[index].borrow();
                client.asked[client.begun - 1].number
            };
            self.write(index, Byte { answer: number, at: ERROR });
        } else {
            self.clients[index].borrow_mut().closed = true;
        }
        self.release(&connection, armed, false);
        Handler::Idle
    }
}
