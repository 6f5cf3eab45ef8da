//! What an HTTP/1.1 origin writes, and when, for each behaviour. Pure.

use std::ops::Range;
use std::time::Duration;

use super::super::mode::{Conduct, Mode};
use super::super::plan::{Method, Plan};
use super::super::token::{Kind, Token};

/// Longer than sluice waits.
pub(super) const STALL: Duration = Duration::from_secs(6);

/// A route with a cache may keep it: half a second is enough for others to get it, and for it to become old.
const FRESH: &str = "Cache-Control: max-age=1, stale-while-revalidate=1\r\n";

/// A step of a response.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// Bytes in one write.
    Write(Vec<u8>),
    Pause(Duration),
}

/// What happens to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Keep,
    Close,
    Reset,
    /// Nothing more is answered on it: surplus bytes may be taken for the next response, and the response to that
    /// request for yet another one.
    Silence,
    /// Milliseconds until it closes if no request arrives.
    CloseAfter(u64),
    /// The same with a 408 before.
    TimeoutAfter(u64),
    /// First reads to the end what the client still sends.
    Linger,
}

/// The response to `plan`; `random` makes the remaining choices.
pub(super) fn script(plan: &Plan, random: &mut fastrand::Rng) -> (Vec<Step>, End) {
    let whole = counted(plan, "");
    match plan.mode {
        Mode::HeadApart => (vec![Step::Write(counted_head(plan, "")), Step::Write(body(plan))], End::Keep),
        Mode::Bytewise => (whole.iter().map(|byte| Step::Write(vec![*byte])).collect(), End::Keep),
        Mode::Pieces => (pieces(&whole, 0, random), End::Keep),
        Mode::Dribble => (pieces(&whole, 30, random), End::Keep),
        Mode::Late => (vec![pause(random, 20..400), Step::Write(whole)], End::Keep),
        Mode::Chunked | Mode::Extensions | Mode::Trailers => framed(plan, random),
        Mode::EarlyHints | Mode::Interims => (interims(plan, whole, random), End::Keep),
        Mode::CloseDelimited => (pieces(&unframed(plan), 3, random), End::Close),
        Mode::AnnouncedClose => (one(counted(plan, "Connection: close\r\n")), End::Close),
        Mode::OldVersion => (one(old_version(whole)), End::Close),
        Mode::KeepAliveField => {
            (one(counted(plan, "Connection: keep-alive\r\nKeep-Alive: timeout=5\r\n")), End::Keep)
        }
        Mode::UnannouncedClose => (one(whole), End::Close),
        Mode::IdleClose => (one(whole), End::CloseAfter(random.u64(..30))),
        Mode::IdleTimeout => (one(whole), End::TimeoutAfter(random.u64(5..50))),
        Mode::EarlyRefusal => (one(counted(plan, "Connection: close\r\n")), End::Linger),
        Mode::EarlyReset => (one(whole), End::Reset),
        Mode::Plain | Mode::Empty | Mode::NoContent | Mode::NotModified => (one(whole), End::Keep),
        // Time for the rest of the request to arrive while the response is being sent.
        Mode::EarlyWaiting => {
            let rest = pause(random, 10..60);
            (vec![Step::Write(counted_head(plan, "")), rest, Step::Write(body(plan))], End::Keep)
        }
        Mode::EarlyAtOnce => (one(whole), End::Keep),
        _ if plan.mode.conduct() == Conduct::Broken => broken(plan, random),
        _ => surplus(plan, random),
    }
}

fn surplus(plan: &Plan, random: &mut fastrand::Rng) -> (Vec<Step>, End) {
    let whole = counted(plan, "");
    let more = stray(plan.token.with(Kind::Surplus), random);
    let half = random.usize(1..60);
    match plan.mode {
        Mode::SurplusAfterClose => {
            let last = counted(plan, "Connection: close\r\n");
            (vec![Step::Write(last), pause(random, 0..5), Step::Write(more)], End::Close)
        }
        Mode::LateSurplus => {
            let late = stray(plan.token.with(Kind::Untellable), random);
            (vec![Step::Write(whole), pause(random, 0..20), Step::Write(late)], End::Silence)
        }
        Mode::SurplusGarbage => (one([whole, b"\0\x01garbage".to_vec()].concat()), End::Silence),
        Mode::SurplusNewline => (one([whole, b"\r\n".to_vec()].concat()), End::Silence),
        Mode::SurplusHalfHead => {
            let first = [&whole, &more[..half]].concat();
            let rest = more[half..].to_vec();
            (vec![Step::Write(first), pause(random, 0..10), Step::Write(rest)], End::Silence)
        }
        Mode::SurplusInterim => {
            (one([whole, interim(plan.token.with(Kind::Surplus))].concat()), End::Silence)
        }
        Mode::SurplusChunked => (one([chunked(plan, random), more].concat()), End::Silence),
        Mode::SurplusLonger => {
            let longer = plan.token.with(Kind::Surplus).body(random.usize(1..400));
            (one([whole, longer].concat()), End::Silence)
        }
        _ => (one([whole, more].concat()), End::Silence),
    }
}

fn broken(plan: &Plan, random: &mut fastrand::Rng) -> (Vec<Step>, End) {
    let whole = counted(plan, "");
    let head_bytes = counted_head(plan, "").len();
    let amid = random.usize(head_bytes..whole.len().max(head_bytes + 1));
    let part = whole[..amid.min(whole.len().saturating_sub(1))].to_vec();
    let head = |field: &str| [head(plan, field), body(plan)].concat();
    let size = plan.size;
    match plan.mode {
        Mode::Short => (one(part), End::Close),
        Mode::ShortReset => (one(part), End::Reset),
        Mode::NoAnswer => (vec![], End::Close),
        Mode::HalfHead => (one(whole[..random.usize(1..head_bytes)].to_vec()), End::Close),
        Mode::ChunkCut => {
            let chunked = chunked(plan, random);
            (one(chunked[..chunked.len() - random.usize(1..5)].to_vec()), End::Close)
        }
        Mode::BadChunk => {
            let chunked = chunked(plan, random);
            let bad = [&chunked[..chunked.len() - 5], b"zz\r\nx\r\n0\r\n\r\n"].concat();
            (one(bad), End::Silence)
        }
        Mode::TwoLengths => {
            let more = size + 7;
            (one(head(&format!("Content-Length: {size}\r\nContent-Length: {more}\r\n"))), End::Silence)
        }
        Mode::LengthAndChunked => {
            let length = format!("Content-Length: {size}\r\n");
            let chunked = chunked(plan, random);
            let end = chunked.windows(2).position(|pair| pair == b"\r\n").map_or(0, |at| at + 2);
            (one([&chunked[..end], length.as_bytes(), &chunked[end..]].concat()), End::Silence)
        }
        Mode::BadLength => {
            let length = [format!("+{size}"), format!("{size}x"), "-1".to_owned(), "0x10".to_owned()];
            (one(head(&format!("Content-Length: {}\r\n", length[random.usize(..4)]))), End::Close)
        }
        Mode::Garbage => (one(plan.token.with(Kind::Surplus).body(random.usize(10..3000))), End::Close),
        Mode::Unasked101 => {
            let switch =
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            (one([&switch[..], &plan.token.with(Kind::Surplus).body(300)].concat()), End::Silence)
        }
        Mode::EndlessInterims => (one(interim(plan.token).repeat(40)), End::Close),
        Mode::HugeHead => (one(head(&format!("X-Huge: {}\r\n", "h".repeat(80_000)))), End::Close),
        Mode::Stall => (vec![Step::Pause(STALL)], End::Close),
        Mode::StallAmid => (vec![Step::Write(part), Step::Pause(STALL)], End::Close),
        _ => (vec![], End::Reset),
    }
}

fn pause(random: &mut fastrand::Rng, ms: Range<u64>) -> Step {
    Step::Pause(Duration::from_millis(random.u64(ms)))
}

fn one(bytes: Vec<u8>) -> Vec<Step> {
    vec![Step::Write(bytes)]
}

/// A complete unrequested response.
fn stray(token: Token, random: &mut fastrand::Rng) -> Vec<u8> {
    let size = random.usize(1..2000);
    let head = format!("HTTP/1.1 200 OK\r\nX-Token: {token}\r\nContent-Length: {size}\r\n\r\n");
    [head.into_bytes(), token.body(size)].concat()
}

fn interim(token: Token) -> Vec<u8> {
    format!("HTTP/1.1 103 Early Hints\r\nX-Token: {token}\r\nLink: </a.css>; rel=preload\r\n\r\n")
        .into_bytes()
}

fn interims(plan: &Plan, whole: Vec<u8>, random: &mut fastrand::Rng) -> Vec<Step> {
    let count = if plan.mode == Mode::EarlyHints { 1 } else { random.usize(2..6) };
    let mut steps: Vec<Step> = (0..count).map(|_| Step::Write(interim(plan.token))).collect();
    match random.u8(..3) {
        0 => return one([interim(plan.token).repeat(count), whole].concat()),
        1 => steps.push(pause(random, 1..20)),
        _ => {}
    }
    steps.push(Step::Write(whole));
    steps
}

/// A response head; `fields` include their line ends.
fn head(plan: &Plan, fields: &str) -> Vec<u8> {
    let status = match plan.mode.status() {
        204 => "204 No Content",
        304 => "304 Not Modified",
        413 => "413 Content Too Large",
        _ => "200 OK",
    };
    let token = plan.token;
    format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n{FRESH}X-Token: {token}\r\n{fields}\r\n")
        .into_bytes()
}

fn counted_head(plan: &Plan, fields: &str) -> Vec<u8> {
    match plan.mode {
        Mode::NoContent | Mode::SurplusNoContent => head(plan, fields),
        Mode::Empty => head(plan, &format!("{fields}Content-Length: 0\r\n")),
        _ => head(plan, &format!("{fields}Content-Length: {}\r\n", plan.size)),
    }
}

fn body(plan: &Plan) -> Vec<u8> {
    plan.token.body(plan.answer_bytes())
}

fn counted(plan: &Plan, fields: &str) -> Vec<u8> {
    [counted_head(plan, fields), body(plan)].concat()
}

fn unframed(plan: &Plan) -> Vec<u8> {
    [head(plan, ""), body(plan)].concat()
}

fn old_version(mut answer: Vec<u8>) -> Vec<u8> {
    answer[b"HTTP/1.".len()] = b'0';
    answer
}

/// A chunked response; its last five bytes are the last chunk.
fn chunked(plan: &Plan, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut answer = head(plan, "Transfer-Encoding: chunked\r\n");
    if plan.method == Method::Head {
        return answer;
    }
    let body = body(plan);
    let mut rest = &body[..];
    while !rest.is_empty() {
        let most = if random.bool() { 64 } else { rest.len() };
        let (chunk, more) = rest.split_at(random.usize(1..=most.min(rest.len())));
        let extension = match plan.mode {
            Mode::Extensions => ["", ";a", ";a=b", "; a=\"q;\\\"x\"", ";a;b=c"][random.usize(..5)],
            _ => "",
        };
        answer.extend_from_slice(format!("{:x}{extension}\r\n", chunk.len()).as_bytes());
        answer.extend_from_slice(chunk);
        answer.extend_from_slice(b"\r\n");
        rest = more;
    }
    answer.extend_from_slice(b"0\r\n\r\n");
    answer
}

fn framed(plan: &Plan, random: &mut fastrand::Rng) -> (Vec<Step>, End) {
    let mut answer = chunked(plan, random);
    if plan.mode == Mode::Trailers && plan.method != Method::Head {
        answer.truncate(answer.len() - 2);
        answer.extend_from_slice(format!("X-Sum: {}\r\n\r\n", plan.token).as_bytes());
    }
    let pause = random.u64(..4);
    if random.bool() { (one(answer), End::Keep) } else { (pieces(&answer, pause, random), End::Keep) }
}

/// `bytes` in two to seven pieces, with pauses of up to `pause_ms` milliseconds.
fn pieces(bytes: &[u8], pause_ms: u64, random: &mut fastrand::Rng) -> Vec<Step> {
    let mut cuts: Vec<usize> = (0..random.usize(1..7)).map(|_| random.usize(..bytes.len())).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let mut steps = Vec::new();
    for pair in cuts.windows(2) {
        steps.push(Step::Write(bytes[pair[0]..pair[1]].to_vec()));
        if pause_ms > 0 {
            steps.push(pause(random, 0..pause_ms));
        }
    }
    steps
}
