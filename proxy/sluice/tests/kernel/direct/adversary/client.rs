//! The clients' side: sends requests in every manner, and checks every byte of the responses.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::World;
use super::line::{Head, Line};
use super::plan::{Deed, Plan};

/// For the few clients with little room for responses.
const RECEIVE_BUFFER: usize = 4096;

/// Outcomes of the exchanges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) whole: u64,
    /// Cut by the origin.
    pub(super) cut: u64,
    /// Answered by sluice: the origin had cut the response, or closed while a POST was being sent.
    pub(super) refused: u64,
    /// Abandoned by the client.
    pub(super) left: u64,
    /// A stray response arrived while the request was being sent, which cannot be told from a real one.
    pub(super) excused: u64,
    /// Not answered, because an earlier exchange was the connection's last.
    pub(super) dropped: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.whole += other.whole;
        self.cut += other.cut;
        self.refused += other.refused;
        self.left += other.left;
        self.excused += other.excused;
        self.dropped += other.dropped;
    }
}

/// How a client behaves in one exchange, or in several pipelined ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Read,
    Slowly,
    /// Disconnects after this many bytes of the body.
    Leave {
        after: usize,
        reset: bool,
    },
    /// Shuts down its side, then reads.
    HalfClose,
    /// The request in two writes.
    InTwo,
    /// Half of the request's body is sent after the response, or after a while.
    HoldBody,
}

/// How a response ended.
enum Ended {
    /// The connection is kept unless this exchange was the last.
    Whole {
        last: bool,
    },
    Broken,
    /// As far as this client wanted to read.
    Far,
}

/// How a response was requested.
#[derive(Clone, Copy)]
struct Asked {
    manner: Manner,
    /// The time, as counted by `World`.
    sent: u64,
    /// Whether the connection may break before the response is complete.
    breaks: bool,
}

pub(super) struct Client<'a> {
    world: &'a World,
    random: fastrand::Rng,
    /// The id of the next request.
    next: u64,
    line: Option<Line>,
    pub(super) tally: Tally,
}

fn gone(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::BrokenPipe)
}

impl<'a> Client<'a> {
    pub(super) fn new(world: &'a World, number: u64) -> Self {
        let random = fastrand::Rng::with_seed(world.rules.seed.wrapping_add(number + 1));
        Self { world, random, next: (number + 1) << 32, line: None, tally: Tally::default() }
    }

    /// Runs `exchanges` exchanges; returns the first fault.
    pub(super) fn run(&mut self, exchanges: u64) -> Result<(), String> {
        let end = self.next + exchanges;
        let mut before = String::new();
        while self.next < end {
            let count = if self.random.u32(..8) == 0 { self.random.u64(2..=4) } else { 1 };
            let plans: Vec<Plan> =
                (self.next..self.next + count).map(|id| Plan::of(self.world.rules, id)).collect();
            self.next += count;
            let manner = self.manner(&plans);
            let what = format!("{manner:?}, {plans:?}");
            self.batch(&plans, manner).map_err(|fault| format!("{fault}: {what}; before it {before}"))?;
            before = what;
        }
        Ok(())
    }

    fn manner(&mut self, plans: &[Plan]) -> Manner {
        let size = plans[0].size;
        match self.random.u32(..40) {
            0..=1 => Manner::Slowly,
            2..=3 => Manner::Leave { after: self.random.usize(..=size), reset: self.random.bool() },
            4 => Manner::HalfClose,
            5..=7 => Manner::InTwo,
            8..=14 if plans.len() == 1 && plans[0].upload.is_some_and(|bytes| bytes > 1) => Manner::HoldBody,
            _ => Manner::Read,
        }
    }

    fn connect(&mut self) -> io::Result<Line> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        if self.random.u32(..10) == 0 {
            SockRef::from(&socket).set_recv_buffer_size(RECEIVE_BUFFER)?;
        }
        socket.connect(&self.world.address.into())?;
        Line::new(TcpStream::from(socket))
    }

    /// The connection, on which nothing may have arrived since the last response.
    fn take_line(&mut self) -> Result<Line, String> {
        if let Some(mut line) = self.line.take() {
            match line.unasked() {
                Ok(Some(bytes)) if bytes.is_empty() => return Ok(line),
                Ok(Some(bytes)) => return Err(format!("unasked: {:?}", String::from_utf8_lossy(&bytes))),
                Ok(None) => return Err("closed, but should have been kept".to_owned()),
                Err(error) => return Err(format!("broken, but should have been kept: {error}")),
            }
        }
        self.connect().map_err(|error| format!("connect: {error}"))
    }

    fn batch(&mut self, plans: &[Plan], manner: Manner) -> Result<(), String> {
        let mut line = self.take_line()?;
        let sent = self.world.now();
        let mut requests = plans.iter().map(|plan| plan.request(sent)).collect::<Vec<_>>().concat();
        let held = match (manner, plans[0].upload) {
            (Manner::HoldBody, Some(bytes)) => requests.split_off(requests.len() - bytes / 2),
            (Manner::InTwo, _) => requests.split_off(self.random.usize(1..requests.len())),
            _ => Vec::new(),
        };
        line.send(&requests).map_err(|error| format!("send: {error}"))?;
        if manner == Manner::HalfClose {
            line.finish().map_err(|error| format!("half-close: {error}"))?;
        }
        let early = manner == Manner::HoldBody && plans[0].deed == Deed::Early;
        if !held.is_empty() && !early {
            thread::sleep(Duration::from_micros(self.random.u64(..500)));
            // The origin may have closed it by then.
            let _ = line.send(&held);
        }
        for (at, plan) in plans.iter().enumerate() {
            // sluice closes the connection after a cut response; with unread requests TCP makes that a reset, which may
            // discard responses in flight.
            let breaks = plans[at..].iter().any(Plan::is_cut);
            let ended = self.answer(&mut line, plan, Asked { manner, sent, breaks })?;
            if early {
                let _ = line.send(&held);
            }
            if let Ended::Whole { last: false } = ended {
                continue;
            }
            self.tally.dropped += (plans.len() - at - 1) as u64;
            return self.end(line, &ended, manner);
        }
        if manner == Manner::HalfClose {
            return self.end(line, &Ended::Whole { last: true }, manner);
        }
        self.line = Some(line);
        Ok(())
    }

    /// Nothing follows the last response.
    fn end(&mut self, mut line: Line, ended: &Ended, manner: Manner) -> Result<(), String> {
        if let Ended::Far = ended {
            if matches!(manner, Manner::Leave { reset: true, .. }) {
                line.reset();
            }
            return Ok(());
        }
        match line.some(1000) {
            Ok(bytes) if bytes.is_empty() => Ok(()),
            Ok(bytes) => Err(format!("after the last response: {:?}", String::from_utf8_lossy(&bytes))),
            Err(error) if gone(&error) => Ok(()),
            Err(error) => Err(format!("no end: {error}")),
        }
    }

    /// Checks one response.
    fn answer(&mut self, line: &mut Line, plan: &Plan, asked: Asked) -> Result<Ended, String> {
        let Asked { manner, sent, breaks } = asked;
        let breaks = |error: io::Error, what: &str| {
            if gone(&error) && breaks {
                return Ok(None);
            }
            Err(format!("{what} of {}: {error}", plan.id))
        };
        let head = match line.head() {
            Ok(None) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(Some(head)) => Ok(Some(head)),
            Err(error) => Err(error),
        };
        let mut head = match head.or_else(|error| breaks(error, "head"))? {
            Some(head) => head,
            None => return Ok(self.broken()),
        };
        if plan.deed == Deed::Hints && head.status() == 103 {
            head = line.head().ok().flatten().ok_or("no response after the hints")?;
        }
        let last = head.get("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let Some(id) = head.get("x-id") else { return self.refused(line, plan, &head, last) };
        if id != plan.id.to_string() {
            return self.stray(line, plan, &head, id, sent, last);
        }
        if plan.deed == Deed::HeadOnly {
            self.tally.whole += 1;
            return Ok(Ended::Whole { last });
        }
        match self.body(line, plan, &head, manner) {
            Ok(true) if plan.is_cut() => Err(format!("{} is complete, but was cut", plan.id)),
            Ok(true) => {
                self.tally.whole += 1;
                Ok(Ended::Whole { last })
            }
            Ok(false) => {
                self.tally.left += 1;
                Ok(Ended::Far)
            }
            Err(error) => breaks(error, "body").map(|_: Option<Head>| self.broken()),
        }
    }

    fn broken(&mut self) -> Ended {
        self.tally.cut += 1;
        Ended::Broken
    }

    /// A response of sluice's own.
    fn refused(&mut self, line: &mut Line, plan: &Plan, head: &Head, last: bool) -> Result<Ended, String> {
        // A GET is retried on a new connection, which does not close just then.
        if head.status() != 502 || !(plan.is_cut() || plan.upload.is_some()) {
            return Err(format!("{head:?} instead of {}", plan.id));
        }
        let skipped = line.skip(head.number("content-length").unwrap_or(0) as usize);
        skipped.map_err(|error| format!("a 502's body: {error}"))?;
        self.tally.refused += 1;
        Ok(Ended::Whole { last })
    }

    /// A response with another id: excusable only if it arrived before this one was requested.
    #[expect(clippy::too_many_arguments, reason = "everything about one stray packet")]
    fn stray(
        &mut self,
        line: &mut Line,
        plan: &Plan,
        head: &Head,
        id: &str,
        sent: u64,
        last: bool,
    ) -> Result<Ended, String> {
        let of = id.strip_prefix("stray-after-").and_then(|id| id.parse().ok());
        if of.is_none_or(|of| self.world.is_stray_before(of, sent)) {
            return Err(format!("{head:?} instead of {}", plan.id));
        }
        let body = if plan.deed == Deed::HeadOnly { 0 } else { 5 };
        line.skip(body).map_err(|error| format!("a stray body: {error}"))?;
        self.tally.excused += 1;
        Ok(Ended::Whole { last })
    }

    /// Whether everything was received; otherwise as much as the client wanted.
    fn body(&mut self, line: &mut Line, plan: &Plan, head: &Head, manner: Manner) -> io::Result<bool> {
        let wanted = plan.body();
        let wrong = |what: String| Err(io::Error::other(what));
        let mut at = 0;
        if head.get("transfer-encoding").is_some() {
            if !matches!(plan.deed, Deed::Chunked | Deed::UntilClose) {
                return wrong(format!("{head:?}"));
            }
            loop {
                let size = line.chunk_size()?;
                let fits = at + size <= wanted.len();
                if !fits {
                    return wrong(format!("a chunk of {size} at {at} of {}", wanted.len()));
                }
                if !self.stretch(line, &wanted[at..at + size], manner, at)? {
                    return Ok(false);
                }
                line.line_end()?;
                at += size;
                if size == 0 {
                    return if at == wanted.len() { Ok(true) } else { wrong(format!("{at} in chunks")) };
                }
            }
        }
        match head.number("content-length") {
            Some(length) if length == wanted.len() as u64 => self.stretch(line, &wanted, manner, 0),
            None if plan.deed == Deed::Empty => Ok(true),
            _ => wrong(format!("{head:?}, but {} bytes were sent", wanted.len())),
        }
    }

    /// Receives exactly these bytes, which start at `at` of the body; false if the client stops reading.
    fn stretch(&mut self, line: &mut Line, wanted: &[u8], manner: Manner, at: usize) -> io::Result<bool> {
        let mut got = 0;
        let mut pauses = 0;
        while got < wanted.len() {
            let mut most = wanted.len() - got;
            if let Manner::Leave { after, .. } = manner {
                most = most.min(after.saturating_sub(at + got));
                if most == 0 {
                    return Ok(false);
                }
            }
            if manner == Manner::Slowly && pauses < 20 {
                thread::sleep(Duration::from_micros(self.random.u64(..3000)));
                most = most.min(self.random.usize(1..2000));
                pauses += 1;
            }
            let bytes = line.some(most)?;
            if bytes.is_empty() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let should = &wanted[got..got + bytes.len()];
            if bytes != should {
                let differs = bytes.iter().zip(should).position(|(got, wanted)| got != wanted).unwrap_or(0);
                let shown = &bytes[differs..bytes.len().min(differs + 80)];
                let what =
                    format!("wrong from byte {}: {:?}", at + got + differs, String::from_utf8_lossy(shown));
                return Err(io::Error::other(what));
            }
            got += bytes.len();
        }
        Ok(true)
    }
}
