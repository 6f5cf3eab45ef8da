//! The checks on plain TCP, which passes them, and on connections that a relay breaks in one way each.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sluice_ebpf::Counter;
use socket2::SockRef;

use super::*;
use crate::program::Limits;
use flow::Flow;
use pairs::{Counts, Pair, Way};

/// What a relay in the middle does to a connection.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// There is no relay.
    None,
    /// There is one, which is right.
    Relayed,
    /// Each two neighbouring bytes change places.
    Swapped,
    /// One byte of each direction is another.
    Changed(usize),
    /// In place of the end of a direction comes a reset.
    ResetAtEnd,
    /// The end of one direction ends both.
    NoHalfClose,
    /// In place of a reset comes the end.
    NoReset,
}

/// Connections by TCP, and what is pretended of their being joined.
struct Pretended {
    fault: Fault,
    joined: bool,
    /// What is added at each look at the counters; `None` pretends nothing.
    growth: Option<Counts>,
    looks: Cell<u64>,
}

fn plain(fault: Fault) -> Pretended {
    Pretended { fault, joined: false, growth: None, looks: Cell::new(0) }
}

fn pretended(joined: bool, growth: &[(Counter, u64)]) -> Pretended {
    let mut counts = [0; Counter::COUNT];
    for (counter, amount) in growth {
        counts[*counter as usize] = *amount;
    }
    Pretended { joined, growth: Some(Counts(counts)), ..plain(Fault::None) }
}

fn long() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (active, listener.accept().unwrap().0)
}

impl Pairs for Pretended {
    fn connect(&mut self, _asked: bool, _deadline: Deadline) -> Result<Pair, Found> {
        let (active, near) = connected();
        if self.fault == Fault::None {
            return Pair::of(active, near);
        }
        let (far, passive) = connected();
        let fault = self.fault;
        thread::spawn(move || relay(near, far, fault));
        Pair::of(active, passive)
    }

    fn is_joined(&self, _pair: &Pair) -> Result<bool, Found> {
        Ok(self.joined)
    }

    fn counts(&self) -> Result<Option<Counts>, Found> {
        self.looks.set(self.looks.get() + 1);
        Ok(self.growth.map(|growth| Counts(growth.0.map(|amount| amount * self.looks.get()))))
    }

    fn limits(&self) -> Limits {
        Limits { budget_bytes: 65_536, budget_messages: 64, ..Limits::default() }
    }
}

/// One direction of a relay.
#[derive(Default)]
struct Half {
    held: Vec<u8>,
    passed: usize,
    ended: bool,
    finished: bool,
}

impl Half {
    fn takes(&self) -> bool {
        !self.ended && self.held.len() < 65_536
    }

    /// Moves what can be moved. An error is a reset, and of the whole connection.
    fn turn(&mut self, mut from: &TcpStream, mut to: &TcpStream, fault: Fault) -> io::Result<()> {
        let mut buffer = [0; 65_536];
        if self.takes() {
            match from.read(&mut buffer) {
                Ok(length) => {
                    self.ended = length == 0;
                    self.hold(&mut buffer[..length], fault);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) if fault == Fault::NoReset => self.ended = true,
                Err(error) => return Err(error),
            }
        }
        if !self.held.is_empty() {
            match to.write(&self.held) {
                Ok(length) => drop(self.held.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if self.ended && self.held.is_empty() && !self.finished {
            self.finished = true;
            if fault == Fault::ResetAtEnd {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            let ends = if fault == Fault::NoHalfClose { Shutdown::Both } else { Shutdown::Write };
            let _ = to.shutdown(ends);
        }
        Ok(())
    }

    fn hold(&mut self, bytes: &mut [u8], fault: Fault) {
        match fault {
            Fault::Swapped => bytes.chunks_exact_mut(2).for_each(|two| two.swap(0, 1)),
            Fault::Changed(at) if (self.passed..self.passed + bytes.len()).contains(&at) => {
                bytes[at - self.passed] ^= 1;
            }
            _ => {}
        }
        self.passed += bytes.len();
        self.held.extend_from_slice(bytes);
    }
}

/// Passes bytes and ends on, until both directions have ended.
fn relay(near: TcpStream, far: TcpStream, fault: Fault) {
    for socket in [&near, &far] {
        socket.set_nonblocking(true).unwrap();
        socket.set_nodelay(true).unwrap();
    }
    let (mut out, mut back) = (Half::default(), Half::default());
    while !(out.finished && back.finished) {
        let flags = |reads: &Half, writes: &Half| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, reads.takes());
            flags.set(PollFlags::POLLOUT, !writes.held.is_empty());
            flags
        };
        let mut asked =
            [PollFd::new(near.as_fd(), flags(&out, &back)), PollFd::new(far.as_fd(), flags(&back, &out))];
        poll(&mut asked, PollTimeout::NONE).unwrap();
        if out.turn(&near, &far, fault).and_then(|()| back.turn(&far, &near, fault)).is_err() {
            for socket in [&near, &far] {
                let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
            }
            return;
        }
    }
}

/// The check that fails, or none.
fn failed(mut pairs: Pretended) -> Option<Failure> {
    try_all(&mut pairs, long()).err()
}

#[track_caller]
fn fails(pairs: Pretended, check: &str, found: &str) {
    let failure = failed(pairs).expect("a fault is found");
    assert_eq!(failure.check, check, "{failure}");
    assert!(failure.found.contains(found), "{failure}");
}

#[test]
fn plain_tcp_passes_where_nothing_is_to_be_joined() {
    assert_eq!(failed(plain(Fault::None)), None);
}

#[test]
fn so_does_tcp_through_an_honest_relay() {
    assert_eq!(failed(plain(Fault::Relayed)), None);
}

#[test]
fn plain_tcp_fails_where_it_is_to_be_joined() {
    fails(pretended(false, &[]), "join", "did not find each other");
    let by_tcp = [(Counter::ByteBudget, 2)];
    fails(pretended(true, &by_tcp), "join", "0 of 2 messages went past TCP (counted: byte_budget");
}

#[test]
fn bytes_that_change_places_are_found() {
    fails(plain(Fault::Swapped), "echo", "other bytes came than were sent, towards the accepted end");
}

#[test]
fn one_wrong_byte_is_found_wherever_it_is() {
    fails(plain(Fault::Changed(0)), "join", "from byte 0 of 1");
    fails(plain(Fault::Changed(40_000)), "order", "other bytes");
    // How much a reader that does not read is sent depends on the host's memory for TCP.
    let failure = failed(plain(Fault::Changed(1_900_000))).expect("a fault is found");
    assert!(["slow_reader", "transfer"].contains(&failure.check), "{failure}");
    assert!(failure.found.contains("other bytes"), "{failure}");
}

#[test]
fn an_end_that_is_another_is_found() {
    fails(plain(Fault::ResetAtEnd), "close", "");
    fails(plain(Fault::NoHalfClose), "half_close", "");
    fails(plain(Fault::NoReset), "reset", "the end in place of a reset, towards the accepted end");
}

#[test]
fn counters_beyond_the_budget_are_found() {
    let growth = [(Counter::MessagesJoined, 64), (Counter::BytesPassed, 1)];
    fails(pretended(true, &growth), "slow_reader", "more was unread than 65536 bytes or 64 messages");
    // A budget that is not kept shows before that, if nothing was counted as going by TCP.
    fails(pretended(true, &growth[..1]), "order", "nothing unread was too much");
}

#[test]
fn a_stranger_that_is_joined_is_found() {
    let found = |growth: &[(Counter, u64)], joined| {
        let mut pairs = pretended(true, growth);
        pairs.joined = joined;
        bounds::stranger(&mut Trial::new(&mut pairs, long())).err().unwrap().at("stranger").found
    };
    assert_eq!(found(&[], true), "a connection was joined that was not asked to be");
    // The one beside it must be joined.
    assert_eq!(found(&[], false), "the two ends of a connection did not find each other");
}

/// A flow over a plain connection, and the sender's socket, past the flow's account.
fn flow() -> (Flow, Pair) {
    let mut pairs = plain(Fault::None);
    let mut trial = Trial::new(&mut pairs, Deadline::after(Duration::from_secs(2)));
    let pair = trial.pair().ok().unwrap();
    (trial.flow(&pair, Way::Out), pair)
}

#[track_caller]
fn says<T>(outcome: Result<T, Found>, text: &str) {
    let found = outcome.err().expect("a fault is found").at("any").found;
    assert!(found.contains(text), "{found}");
}

#[test]
fn a_count_of_unread_bytes_that_is_wrong_is_found() {
    let (mut flow, pair) = flow();
    flow.send(10).ok().unwrap();
    (&*pair.active).write_all(b"more").unwrap();
    flow.wait_readable().ok().unwrap();
    // Read past the account: fewer are there than were sent.
    (&*pair.passive).read_exact(&mut [0; 10]).unwrap();
    says(queue::tells(&flow, long()), "4 bytes are told where 10 are unread");
}

#[test]
fn bytes_that_were_not_sent_are_found() {
    let (mut flow, pair) = flow();
    (&*pair.active).write_all(&[0; 10]).unwrap();
    flow.wait_readable().ok().unwrap();
    says(flow.peek(10), "other bytes");
    says(flow.receive(10), "other bytes");
}

#[test]
fn an_edge_that_does_not_come_is_found() {
    let (flow, _pair) = flow();
    let mut edges = queue::Edges::of(&flow.to).ok().unwrap();
    says(edges.next(Deadline::after(Duration::from_millis(1)), "an edge"), "waited in vain for an edge");
    says(flow.wait_readable(), "waited in vain for 0 bytes towards the accepted end");
}

#[test]
fn bytes_that_never_come_are_waited_for_within_bounds() {
    let (mut flow, pair) = flow();
    flow.send(5).ok().unwrap();
    flow.wait_readable().ok().unwrap();
    (&*pair.passive).read_exact(&mut [0; 5]).unwrap();
    says(flow.drain_all(), "waited in vain for 5 bytes");
    pair.active.shutdown(Shutdown::Write).unwrap();
    says(flow.drain_all(), "the end came with 5 bytes missing, towards the accepted end");
}

#[test]
fn a_failure_is_one_line_with_its_check() {
    let failure = Found::new("what was seen").at("echo");
    assert_eq!(failure.to_string(), "check echo: what was seen");
    let names = CHECKS.map(|(name, _)| name);
    assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
}
