//! The ends: clients, and upstream connections with their applications.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::vec::Vec;

use super::bytes::{Byte, ERROR, Text};
use super::program::Run;
use super::sluice::Handler;

/// A client and sluice's state for it.
pub(super) struct Client {
    pub(super) cookie: u64,
    pub(super) alive: bool,
    /// Closed by sluice, visibly to the client.
    pub(super) closed: bool,
    pub(super) write_seq: u32,
    /// Whether responses may be sent to it.
    pub(super) in_map: bool,
    pub(super) queue: VecDeque<Byte>,
    pub(super) asked: Vec<Text>,
    /// Requests that sluice has started.
    pub(super) begun: usize,
    /// The next response in the queue, and its next byte; errors count as responses.
    pub(super) entering: (usize, u32),
    pub(super) base: u32,
    pub(super) written: u64,
    pub(super) passed: u64,
    pub(super) handler: Handler,
}

/// Bytes that were announced to a client.
pub(super) struct Push {
    pub(super) cookie: u64,
    pub(super) bytes: Vec<Byte>,
}

/// An upstream connection. It remains after sluice has closed it, because its application may still send.
pub(super) struct Connection {
    /// Its number, which is also the cookie of sluice's end.
    pub(super) number: usize,
    pub(super) slot: u32,
    pub(super) requests: RefCell<VecDeque<Text>>,
    pub(super) writing: Cell<Option<(Text, u32)>>,
    /// The part of a message that the kernel did not take, as reported to the application.
    pub(super) again: RefCell<Vec<Byte>>,
    pub(super) run: RefCell<Option<Run>>,
    pub(super) pushes: RefCell<VecDeque<Push>>,
    /// A head that the program keeps.
    pub(super) kept: RefCell<Vec<Byte>>,
    /// Bytes sent to sluice.
    pub(super) to_sluice: Cell<u32>,
    pub(super) inbox: RefCell<VecDeque<Byte>>,
    /// The application has closed it.
    pub(super) ended: Cell<bool>,
    /// sluice has closed it.
    pub(super) closed: Cell<bool>,
    pub(super) in_use: Cell<bool>,
    /// A request that sluice sends, and whether the program has seen it.
    pub(super) sending: Cell<Option<(Text, bool)>>,
    /// Bytes that sluice has received.
    pub(super) received: Cell<u32>,
}

impl Connection {
    pub(super) fn new(number: usize, slot: u32) -> Self {
        Self {
            number,
            slot,
            requests: RefCell::default(),
            writing: Cell::new(None),
            again: RefCell::default(),
            run: RefCell::default(),
            pushes: RefCell::default(),
            kept: RefCell::default(),
            to_sluice: Cell::new(0),
            inbox: RefCell::default(),
            ended: Cell::new(false),
            closed: Cell::new(false),
            in_use: Cell::new(true),
            sending: Cell::new(None),
            received: Cell::new(0),
        }
    }
}

impl Client {
    pub(super) fn new(cookie: u64, base: u32) -> Self {
        Self {
            cookie,
            alive: true,
            closed: false,
            write_seq: base,
            in_map: true,
            queue: VecDeque::new(),
            asked: Vec::new(),
            begun: 0,
            entering: (0, 0),
            base,
            written: 0,
            passed: 0,
            handler: Handler::Idle,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.alive && !self.closed
    }

    /// Whether all started responses are in the queue, counting `promised` bytes, and nothing else is.
    pub(super) fn has_whole(&self, promised: usize) -> bool {
        let (answer, index) = self.entering;
        match answer.checked_sub(self.begun) {
            Some(0) => index == 0 && promised == 0,
            None if answer + 1 == self.begun => {
                self.asked[answer].expected_length() as usize == index as usize + promised
            }
            _ => false,
        }
    }

    /// Adds a byte to the send queue. It must be the next byte of the client's responses.
    pub(super) fn enter(&mut self, byte: Byte) {
        let (answer, index) = self.entering;
        let text = *self.asked.get(answer).expect("unrequested byte");
        if byte == (Byte { answer: text.number, at: ERROR }) {
            assert_eq!(index, 0, "an error within an answer");
            self.entering = (answer + 1, 0);
        } else {
            assert_eq!(Some(byte), text.expected(index), "another byte came in {text:?}");
            let whole = index + 1 == text.expected_length();
            self.entering = if whole { (answer + 1, 0) } else { (answer, index + 1) };
        }
        self.queue.push_back(byte);
        self.write_seq = self.write_seq.wrapping_add(1);
    }
}
