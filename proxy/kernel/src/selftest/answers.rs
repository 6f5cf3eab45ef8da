//! Direct return: the responses that are tried, and the expected outcome of each.

use std::os::fd::AsFd;

use sluice_ebpf::slot::{Line, Miss, Phase};
use socket2::SockRef;

use super::direct::Exchanges;
use super::trial::{Checked, Found, refused};
use crate::tcp::{UnsentMax, set_unsent_max};

pub(super) type Check = fn(&mut Exchanges) -> Checked;

/// Like the other checks. Each continues with the connections of the previous one.
pub(super) const CHECKS: [(&str, Check); 6] = [
    ("direct_return.straight", straight),
    ("direct_return.head_alone", head_alone),
    ("direct_return.refused", refused_head),
    ("direct_return.taken_over", taken_over),
    ("direct_return.low_mark", low_mark),
    ("direct_return.room", room),
];
/// Checks that a head can be kept until its body begins, also if a line is added to it.
pub(super) const HOLDING: [(&str, Check); 3] = [
    ("direct_return.head_kept", head_kept),
    ("direct_return.head_taken", head_taken),
    ("direct_return.line_added_to_kept", line_added_to_kept),
];
/// Checks that a line can be added to a head.
pub(super) const ADDING: [(&str, Check); 3] = [
    ("direct_return.line_added", line_added),
    ("direct_return.line_added_to_head", line_added_to_head),
    ("direct_return.line_there", line_there),
];
/// A header line that is cut out.
const LINE: &str = "Connection: keep-alive\r\n";
const BODY: usize = 100_000;
/// Body length of a response that exceeds the low mark, in bytes.
const MARKED: usize = 20_000;
const LOW_MARK: u16 = 8000;
/// Socket buffer of a client that soon has no room for more, in bytes.
const SMALL_BUFFER: usize = 16_384;

/// A response as it is sent, and as the client must receive it.
pub(super) struct Answer {
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    pub(super) seen: Vec<u8>,
}

impl Answer {
    fn new(length: usize) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\n{LINE}Content-Length: {length}\r\n\r\n");
        let body: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let seen = [head.replace(LINE, "").as_bytes(), &body].concat();
        Self { head, body, seen }
    }

    /// The same, if the program adds this line.
    fn with_line(length: usize, line: &str) -> Self {
        let answer = Self::new(length);
        let status_line = "HTTP/1.1 200 OK\r\n";
        let head = answer.head.replace(LINE, "").replace(status_line, &format!("{status_line}{line}"));
        Self { seen: [head.as_bytes(), &answer.body].concat(), ..answer }
    }

    /// The head and the part of the body that is sent with it.
    fn begin(&self, length: usize) -> Vec<u8> {
        let (begin, _) = self.body.split_at(length);
        [self.head.as_bytes(), begin].concat()
    }
}

/// The head and half of a body, then the rest.
fn straight(exchanges: &mut Exchanges) -> Checked {
    let answer = Answer::new(BODY);
    exchanges.ask()?;
    exchanges.answer(&answer.begin(BODY / 2))?;
    exchanges.answer(answer.body.split_at(BODY / 2).1)?;
    exchanges.whole(&answer)
}

/// The head alone, then the body.
fn head_alone(exchanges: &mut Exchanges) -> Checked {
    let answer = Answer::new(1000);
    exchanges.ask()?;
    exchanges.answer(&answer.begin(0))?;
    exchanges.silent(&exchanges.upstream.active, "sluice")?;
    exchanges.answer(&answer.body)?;
    exchanges.whole(&answer)
}

/// The head alone, which the program keeps until the body begins.
fn head_kept(exchanges: &mut Exchanges) -> Checked {
    let answer = Answer::new(BODY);
    exchanges.ask_for(true, Line::default())?;
    exchanges.answer(&answer.begin(0))?;
    exchanges.is(Phase::Held, "a head")?;
    exchanges.nothing_more()?;
    exchanges.answer(&answer.body)?;
    exchanges.whole(&answer)
}

/// The same, but sluice takes the head before the body begins.
fn head_taken(exchanges: &mut Exchanges) -> Checked {
    let answer = Answer::new(1000);
    exchanges.ask_for(true, Line::default())?;
    exchanges.answer(&answer.begin(0))?;
    exchanges.is(Phase::Held, "a head")?;
    exchanges.slot().take_over();
    exchanges.answer(&answer.body)?;
    let slot = exchanges.slot();
    if slot.text.bytes(slot.held.get()) != answer.head.as_bytes() {
        return Err(Found::new("the kept head differs from the sent one"));
    }
    exchanges.divided(&Answer { seen: answer.body.clone(), ..answer })
}

/// A field of the usual length, and what a client sees of it.
fn id() -> Result<(Line, &'static str), Found> {
    let line = Line::of_field(b"X-Request-Id", b"0123456789abcdef0123456789abcdef");
    let seen = "X-Request-Id: 0123456789abcdef0123456789abcdef\r\n";
    line.map(|line| (line, seen)).ok_or_else(|| Found::new("a line is too long"))
}

/// A line in addition: in a message that is gathered, and in one that is not.
fn line_added(exchanges: &mut Exchanges) -> Checked {
    let (line, seen) = id()?;
    for length in [1, 1000, BODY] {
        let answer = Answer::with_line(length, seen);
        exchanges.ask_for(false, line)?;
        exchanges.answer(&answer.begin(length.min(BODY / 2)))?;
        exchanges.answer(answer.body.split_at(length.min(BODY / 2)).1)?;
        exchanges.whole(&answer)?;
    }
    Ok(())
}

/// A line in addition to a head that comes alone.
fn line_added_to_head(exchanges: &mut Exchanges) -> Checked {
    let (line, seen) = id()?;
    let answer = Answer::with_line(1000, seen);
    exchanges.ask_for(false, line)?;
    exchanges.answer(&answer.begin(0))?;
    exchanges.answer(&answer.body)?;
    exchanges.whole(&answer)
}

/// A line in addition to a head that was kept.
fn line_added_to_kept(exchanges: &mut Exchanges) -> Checked {
    let (line, seen) = id()?;
    for length in [1000, BODY] {
        let answer = Answer::with_line(length, seen);
        exchanges.ask_for(true, line)?;
        exchanges.answer(&answer.begin(0))?;
        exchanges.is(Phase::Held, "a head")?;
        exchanges.answer(&answer.body)?;
        exchanges.whole(&answer)?;
    }
    Ok(())
}

/// The application has sent the field itself: it stays the only one.
fn line_there(exchanges: &mut Exchanges) -> Checked {
    let head = "HTTP/1.1 200 OK\r\nx-request-id: 7\r\nContent-Length: 2\r\n\r\n".to_owned();
    let seen = [head.as_bytes(), b"hi"].concat();
    let answer = Answer { head, body: b"hi".to_vec(), seen };
    exchanges.ask_for(false, id()?.0)?;
    exchanges.answer(&answer.begin(2))?;
    exchanges.whole(&answer)
}

/// A head that the program must not forward.
fn refused_head(exchanges: &mut Exchanges) -> Checked {
    let body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let answer = Answer { head: String::new(), body: body.to_vec(), seen: body.to_vec() };
    exchanges.ask()?;
    exchanges.answer(&answer.body)?;
    if exchanges.slot().sent.get() != 0 {
        return Err(Found::new("the program forwarded a response that only sluice may handle"));
    }
    exchanges.divided(&answer)
}

/// sluice takes the rest.
fn taken_over(exchanges: &mut Exchanges) -> Checked {
    let answer = Answer::new(2000);
    exchanges.ask()?;
    exchanges.answer(&answer.begin(1000))?;
    exchanges.is(Phase::Running, "a part of the response")?;
    exchanges.slot().take_over();
    exchanges.answer(answer.body.split_at(1000).1)?;
    exchanges.divided(&answer)
}

/// The kernel would take only part of the response and report this to the application, which would never learn when to
/// continue. So all of it must be left to sluice.
fn low_mark(exchanges: &mut Exchanges) -> Checked {
    let answer = Answer::new(MARKED);
    set_mark(exchanges, UnsentMax::Bytes(LOW_MARK))?;
    exchanges.ask()?;
    exchanges.answer(&answer.begin(MARKED))?;
    let slot = exchanges.slot();
    let (sent, reason) = (slot.sent.get(), slot.reason.get());
    if sent != 0 || reason != Miss::LowMark as u64 {
        let found = format!("{sent} bytes were sent over a mark of {LOW_MARK} (reason {reason})");
        return Err(Found::new(found));
    }
    set_mark(exchanges, UnsentMax::Room)?;
    let seen = [answer.head.as_bytes(), &answer.body].concat();
    exchanges.divided(&Answer { seen, ..answer })
}

fn set_mark(exchanges: &Exchanges, most: UnsentMax) -> Checked {
    let set = set_unsent_max(exchanges.client.passive.as_fd(), most);
    set.map_err(|error| Found::new(error.to_string()))
}

/// The client does not read: what does not fit into its buffers is left to sluice.
fn room(exchanges: &mut Exchanges) -> Checked {
    let near = SockRef::from(&*exchanges.client.passive);
    near.set_send_buffer_size(SMALL_BUFFER).map_err(refused("setsockopt"))?;
    let far = SockRef::from(&*exchanges.client.active);
    far.set_recv_buffer_size(SMALL_BUFFER).map_err(refused("setsockopt"))?;
    let answer = Answer::new(BODY * 4);
    exchanges.ask()?;
    exchanges.answer(&answer.begin(1000))?;
    exchanges.is(Phase::Running, "a part of the response")?;
    let mut sent = 1000;
    for piece in answer.body.split_at(sent).1.chunks(4096) {
        exchanges.answer(piece)?;
        sent += piece.len();
        if exchanges.slot().phase() != Phase::Running {
            // From here on, its length is what matters: the rest is never sent.
            let seen = answer.seen.len() - (answer.body.len() - sent);
            let (seen, _) = answer.seen.split_at(seen);
            return exchanges.divided(&Answer { seen: seen.to_vec(), ..answer });
        }
    }
    Err(Found::new(format!("{sent} bytes were accepted for a client that does not read")))
}
