//! A client's HTTP/1.1 connection, in one of several manners.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::super::mode::Mode;
use super::super::plan::{Method, Plan, Upload};
use super::answer::{NOTHING, answer};
use super::judge::{End, Judge};
use super::wire::Wire;
use super::{Birth, Source};

/// Time limit for sending the rest of a request after its response.
const REST: Duration = Duration::from_secs(2);

/// How long a client waits for a 100.
const CONTINUE: Duration = Duration::from_millis(200);

/// The behaviour of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Manner {
    /// One request after the other.
    Kept,
    /// This many requests at once.
    Pipelined(usize),
    /// Disconnects during the last response, after this many milliseconds.
    Leaves(u64),
    /// Half-closes after the last request.
    HalfCloses,
    /// Reads in small pieces.
    ReadsSlowly,
}

impl Manner {
    pub(super) fn draw(random: &mut fastrand::Rng) -> Self {
        match random.u8(..10) {
            0..=4 => Self::Kept,
            5 => Self::Pipelined(random.usize(2..6)),
            6..=7 => Self::Leaves(random.u64(..25)),
            8 => Self::HalfCloses,
            _ => Self::ReadsSlowly,
        }
    }
}

struct Connection<'s, S> {
    source: &'s Source,
    wire: Wire<ReadHalf<S>>,
    writer: WriteHalf<S>,
    manner: Manner,
    over: &'static str,
    random: fastrand::Rng,
    history: Rc<RefCell<Vec<String>>>,
    birth: Birth,
}

/// Sends requests over `stream` until the connection or the storm is over.
pub(super) async fn run<S: AsyncRead + AsyncWrite>(
    source: &Source,
    (stream, birth): (S, Birth),
    manner: Manner,
    over: &'static str,
    mut random: fastrand::Rng,
) {
    let (reader, writer) = split(stream);
    let slow = (manner == Manner::ReadsSlowly)
        .then(|| (random.usize(400..4000), Duration::from_millis(random.u64(..4))));
    let requests = if random.u8(..6) == 0 { 1 } else { random.usize(1..24) };
    let (wire, history) = (Wire::new(reader, slow), Rc::default());
    let mut connection = Connection { source, wire, writer, manner, over, random, history, birth };
    for left in (0..requests).rev() {
        let last = left == 0 || source.context.findings.is_over();
        if !connection.turn(last).await || last {
            break;
        }
        sleep(source.pause(&mut connection.random)).await;
    }
}

impl<S: AsyncRead + AsyncWrite> Connection<'_, S> {
    /// One request, or several at once; returns whether more may follow.
    async fn turn(&mut self, last: bool) -> bool {
        if let Manner::Pipelined(count) = self.manner {
            return self.pipeline(count, last).await;
        }
        let mut judge = self.judge();
        let half_close = last && self.manner == Manner::HalfCloses;
        let asking = ask(&mut self.wire, &mut self.writer, &mut judge, &mut self.random, half_close);
        if let (Manner::Leaves(ms), true) = (self.manner, last) {
            let end = timeout(Duration::from_millis(ms), asking).await;
            self.finish(judge, end.map_or(End::Abandoned, |(end, _)| end), false).await;
            return false;
        }
        let (end, keeps) = asking.await;
        self.finish(judge, end, last || !keeps).await;
        keeps
    }

    /// Sends several requests in one write and reads their responses in order; returns whether more may follow.
    async fn pipeline(&mut self, count: usize, last: bool) -> bool {
        let mut judges: Vec<Judge> = (0..count).map(|_| self.judge()).collect();
        let mut bytes = Vec::new();
        for judge in &mut judges {
            // A request with a body would wait for its response.
            judge.plan = judge.plan.without_upload();
            bytes.extend(request_head(&judge.plan));
        }
        let _ = self.writer.write_all(&bytes).await;
        let _ = self.writer.flush().await;
        let mut keeps = true;
        for (place, mut judge) in judges.into_iter().enumerate() {
            if !keeps {
                judge.end(End::Nothing { excused: true });
                continue;
            }
            let end;
            (end, keeps) = answer(&mut self.wire, &mut judge, &Notify::new()).await;
            self.finish(judge, end, !keeps || last && place + 1 == count).await;
        }
        keeps
    }

    fn judge(&self) -> Judge {
        let plan = self.source.next_plan();
        Judge::new(&self.source.context, plan, format!("({}, {:?})", self.over, self.manner), &self.history)
    }

    /// Whether the connection may end before a response: a kept one, or one whose first request was late, may when a
    /// process was replaced.
    fn is_excused(&self) -> bool {
        let kept = !self.history.borrow().is_empty() || self.birth.is_late();
        kept && self.birth.is_of_before(&self.source.context)
    }

    /// Settles a request. After the last one only the end may follow.
    async fn finish(&mut self, mut judge: Judge, end: End, last: bool) {
        if last && end == End::Complete && !judge.is_faulty() && !judge.is_untellable() {
            let _ = timeout(REST, self.writer.shutdown()).await;
            let _ = timeout(REST, self.wire.receive()).await;
            if !self.wire.received.is_empty() {
                judge.surplus(&self.wire.received);
            }
        }
        judge.end(if end == NOTHING { End::Nothing { excused: self.is_excused() } } else { end });
    }
}

/// Sends one request while its response is read; returns how that ended, and whether more may follow.
async fn ask<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    wire: &mut Wire<R>,
    writer: &mut W,
    judge: &mut Judge,
    random: &mut fastrand::Rng,
    half_close: bool,
) -> (End, bool) {
    let (plan, gate) = (judge.plan, Notify::new());
    let mut sending = pin!(send(writer, &plan, &gate, random, half_close));
    let mut sent = false;
    let (end, keeps) = {
        let mut answering = pin!(answer(wire, judge, &gate));
        loop {
            tokio::select! {
                biased;
                answered = &mut answering => break answered,
                _ = &mut sending, if !sent => sent = true,
            }
        }
    };
    // Its connection may have ended by now, which the next request shows.
    sent = sent || timeout(REST, sending).await.is_ok();
    (end, keeps && sent && !half_close)
}

async fn send<W: AsyncWrite + Unpin>(
    writer: &mut W,
    plan: &Plan,
    gate: &Notify,
    random: &mut fastrand::Rng,
    half_close: bool,
) -> io::Result<()> {
    let (head, body) = (request_head(plan), framed_body(plan, random));
    let waits = plan.upload != Upload::None && (plan.expect || plan.mode == Mode::EarlyWaiting);
    if !waits && random.bool() {
        writer.write_all(&[head, body].concat()).await?;
    } else {
        let cut = if random.bool() { 0 } else { random.usize(..head.len()) };
        write_pieces(writer, &head, cut, random).await?;
        if waits && plan.mode == Mode::EarlyWaiting {
            gate.notified().await;
        } else if waits {
            // A server need not send 100 (RFC 9110 10.1.1).
            let _ = timeout(CONTINUE, gate.notified()).await;
        }
        let cut = random.usize(..body.len().max(1));
        write_pieces(writer, &body, cut, random).await?;
    }
    if half_close {
        writer.shutdown().await?;
    }
    Ok(())
}

async fn write_pieces<W: AsyncWrite + Unpin>(
    writer: &mut W,
    bytes: &[u8],
    cut: usize,
    random: &mut fastrand::Rng,
) -> io::Result<()> {
    if cut > 0 {
        writer.write_all(&bytes[..cut]).await?;
        writer.flush().await?;
        sleep(Duration::from_millis(random.u64(..4))).await;
    }
    writer.write_all(&bytes[cut..]).await?;
    writer.flush().await
}

fn request_head(plan: &Plan) -> Vec<u8> {
    let method = match plan.method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
    };
    let framing = match plan.upload {
        Upload::Chunked(_) => "Transfer-Encoding: chunked\r\n".to_owned(),
        Upload::None if plan.method != Method::Post => String::new(),
        _ => format!("Content-Length: {}\r\n", plan.upload_body().len()),
    };
    let expect = if plan.expect && plan.upload != Upload::None { "Expect: 100-continue\r\n" } else { "" };
    let accepts = plan.accepts.map_or_else(String::new, |coding| format!("Accept-Encoding: {coding}\r\n"));
    let target = plan.target();
    format!("{method} {target} HTTP/1.1\r\nHost: storm.test\r\n{accepts}{framing}{expect}\r\n").into_bytes()
}

fn framed_body(plan: &Plan, random: &mut fastrand::Rng) -> Vec<u8> {
    let body = plan.upload_body();
    if !matches!(plan.upload, Upload::Chunked(_)) {
        return body;
    }
    let mut framed = Vec::new();
    let mut rest = &body[..];
    while !rest.is_empty() {
        let (chunk, more) = rest.split_at(random.usize(1..=rest.len()));
        framed.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        framed.extend_from_slice(chunk);
        framed.extend_from_slice(b"\r\n");
        rest = more;
    }
    framed.extend_from_slice(b"0\r\n\r\n");
    framed
}
