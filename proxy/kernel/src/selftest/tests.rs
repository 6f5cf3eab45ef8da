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
    /// There is a relay that behaves correctly.
    Relayed,
    /// Every two neighbouring bytes are swapped.
    Swapped,
    /// One byte of each direction is changed.
    Changed(usize),
    /// The end of a direction becomes a reset.
    ResetAtEnd,
    /// The end of one direction ends both.
    NoHalfClose,
    /// A reset becomes the end.
    NoReset,
}

/// TCP connections, and what is pretended about joining them.
struct Pretended {
    fault: Fault,
    joined: bool,
    /// The growth of the counters at each reading; `None` pretends nothing.
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

    /// Moves what can be moved. An error means a reset of the whole connection.
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

/// Forwards bytes and ends until both directions have ended.
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
    let failure = failed(pairs).expect("a check fails");
    assert_eq!(failure.check, check, "{failure}");
    assert!(failure.found.contains(found), "{failure}");
}

#[test]
fn plain_tcp_passes_if_nothing_should_be_joined() {
    assert_eq!(failed(plain(Fault::None)), None);
}

#[test]
fn tcp_through_a_correct_relay_passes() {
    assert_eq!(failed(plain(Fault::Relayed)), None);
}

#[test]
fn plain_tcp_fails_if_it_should_be_joined() {
    fails(pretended(false, &[]), "join", "were not joined");
    let by_tcp = [(Counter::ByteBudget, 2)];
    fails(pretended(true, &by_tcp), "join", "0 of 2 messages bypassed TCP (counted: byte_budget");
}

#[test]
fn swapped_bytes_are_detected() {
    fails(plain(Fault::Swapped), "echo", "received bytes differ from those sent, towards the accepted end");
}

#[test]
fn one_wrong_byte_is_detected_anywhere() {
    fails(plain(Fault::Changed(0)), "join", "from byte 0 of 1");
    fails(plain(Fault::Changed(40_000)), "order", "received bytes differ");
    // How much is sent to a reader that does not read depends on the host's memory for TCP.
    let failure = failed(plain(Fault::Changed(1_900_000))).expect("a check fails");
    assert!(["slow_reader", "transfer"].contains(&failure.check), "{failure}");
    assert!(failure.found.contains("received bytes differ"), "{failure}");
}

#[test]
fn wrong_kind_of_end_is_detected() {
    fails(plain(Fault::ResetAtEnd), "close", "");
    fails(plain(Fault::NoHalfClose), "half_close", "");
    fails(plain(Fault::NoReset), "reset", "the end instead of a reset, towards the accepted end");
}

#[test]
fn exceeded_budget_is_detected() {
    let growth = [(Counter::MessagesJoined, 64), (Counter::BytesPassed, 1)];
    fails(pretended(true, &growth), "slow_reader", "more than 65536 bytes or 64 messages were unread");
    // If nothing was counted as going through TCP, an exceeded budget is detected earlier.
    fails(pretended(true, &growth[..1]), "order", "no message exceeded the budget");
}

#[test]
fn unmarked_connection_that_is_joined_is_detected() {
    let found = |growth: &[(Counter, u64)], joined| {
        let mut pairs = pretended(true, growth);
        pairs.joined = joined;
        bounds::stranger(&mut Trial::new(&mut pairs, long())).err().unwrap().at("stranger").found
    };
    assert_eq!(found(&[], true), "an unmarked connection was joined");
    // The other connection must be joined.
    assert_eq!(found(&[], false), "the two ends of a connection were not joined");
}

/// A flow over a plain connection, and the sockets, which bypass the flow's accounting.
fn flow() -> (Flow, Pair) {
    let mut pairs = plain(Fault::None);
    let mut trial = Trial::new(&mut pairs, Deadline::after(Duration::from_secs(2)));
    let pair = trial.pair().ok().unwrap();
    (trial.flow(&pair, Way::Out), pair)
}

#[track_caller]
fn says<T>(outcome: Result<T, Found>, text: &str) {
    let found = outcome.err().expect("a check fails").at("any").found;
    assert!(found.contains(text), "{found}");
}

#[test]
fn wrong_count_of_unread_bytes_is_detected() {
    let (mut flow, pair) = flow();
    flow.send(10).ok().unwrap();
    (&*pair.active).write_all(b"more").unwrap();
    flow.wait_readable().ok().unwrap();
    // Read without the flow: fewer bytes remain than the flow expects.
    (&*pair.passive).read_exact(&mut [0; 10]).unwrap();
    says(queue::tells(&flow, long()), "FIONREAD returns 4 where 10 bytes are unread");
}

#[test]
fn bytes_that_were_not_sent_are_detected() {
    let (mut flow, pair) = flow();
    (&*pair.active).write_all(&[0; 10]).unwrap();
    flow.wait_readable().ok().unwrap();
    says(flow.peek(10), "received bytes differ");
    says(flow.receive(10), "received bytes differ");
}

#[test]
fn missing_edge_is_detected() {
    let (flow, _pair) = flow();
    let mut edges = queue::Edges::of(&flow.to).ok().unwrap();
    says(edges.next(Deadline::after(Duration::from_millis(1)), "an edge"), "timed out waiting for an edge");
    says(flow.wait_readable(), "timed out waiting for 0 bytes towards the accepted end");
}

#[test]
fn waiting_for_missing_bytes_times_out() {
    let (mut flow, pair) = flow();
    flow.send(5).ok().unwrap();
    flow.wait_readable().ok().unwrap();
    (&*pair.passive).read_exact(&mut [0; 5]).unwrap();
    says(flow.drain_all(), "timed out waiting for 5 bytes");
    pair.active.shutdown(Shutdown::Write).unwrap();
    says(flow.drain_all(), "the stream ended with 5 bytes missing, towards the accepted end");
}

#[test]
fn failure_is_one_line_with_its_check() {
    let failure = Found::new("what was seen").at("echo");
    assert_eq!(failure.to_string(), "check echo: what was seen");
    let names = CHECKS.map(|(name, _)| name);
    assert!(names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_')));
}
