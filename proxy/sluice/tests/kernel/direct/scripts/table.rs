//! Responses and clients of every shape, and which of them use direct return.

use super::play::{Act, Do};
use crate::proxy_support::pattern;

/// Whether a response uses direct return to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goes {
    Directly,
    ThroughSluice,
    Either,
}

/// One exchange on a connection that has had another one before.
#[derive(Clone, Debug)]
pub(super) struct Script {
    pub(super) name: String,
    /// The origin's steps after it has received the request's head.
    pub(super) acts: Vec<Act>,
    /// The request's head, with `{}` for its name, and what follows.
    pub(super) request: String,
    pub(super) does: Vec<Do>,
    pub(super) goes: Goes,
    /// Receive buffer of the client's socket.
    pub(super) receive_buffer: Option<usize>,
    /// Whether the access log has the same outcome for each path; otherwise it depends on timing.
    pub(super) same_outcome: bool,
}

pub(super) const GET: &str =
    "GET /{} HTTP/1.1\r\nHost: a\r\nX-Request-Id: 0123456789abcdef0123456789abcdef\r\n\r\n";

impl Script {
    /// A response in these writes, and a client that reads it and sends another request.
    pub(super) fn answering(name: &str, goes: Goes, writes: &[&[u8]]) -> Self {
        let acts = writes.iter().map(|bytes| Act::Send(bytes.to_vec()));
        Self {
            name: name.to_owned(),
            acts: [Act::Body].into_iter().chain(acts).collect(),
            request: GET.to_owned(),
            does: vec![Do::Response, Do::AwaitOrigin, Do::Another],
            goes,
            receive_buffer: None,
            same_outcome: true,
        }
    }

    /// The same, with further steps of the origin.
    fn and(mut self, acts: impl Into<Vec<Act>>) -> Self {
        self.acts.extend(acts.into());
        self
    }

    fn acts(self, acts: impl Into<Vec<Act>>) -> Self {
        Self { acts: acts.into(), ..self }
    }

    fn asking(self, request: &str) -> Self {
        Self { request: request.to_owned(), ..self }
    }

    fn does(self, does: impl Into<Vec<Do>>) -> Self {
        Self { does: does.into(), ..self }
    }

    fn receiving(self, bytes: usize) -> Self {
        Self { receive_buffer: Some(bytes), ..self }
    }

    fn whatever_outcome(self) -> Self {
        Self { same_outcome: false, ..self }
    }
}

/// A response head with these fields in addition to its length.
pub(super) fn head(length: usize, fields: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{fields}\r\n").into_bytes()
}

/// A complete response.
pub(super) fn whole(length: usize, fields: &str) -> Vec<u8> {
    [head(length, fields), pattern(length)].concat()
}

/// Every way to split head and body into writes.
fn splits() -> Vec<Script> {
    use Goes::{Directly, Either, ThroughSluice};
    let (head, body, all) = (head(5000, ""), pattern(5000), whole(5000, ""));
    let script = Script::answering;
    let singly = |bytes: &[u8]| bytes.iter().map(|byte| Act::Send(vec![*byte])).collect::<Vec<_>>();
    let pieces = |bytes: &[u8], size| bytes.chunks(size).map(|p| Act::Send(p.to_vec())).collect::<Vec<_>>();
    let large = pattern(1_000_000);
    let mut scripts = vec![
        script("in one write", Directly, &[&all]),
        script("head, then body", Directly, &[&head, &body]),
        script("head with a byte, then body", Directly, &[&all[..head.len() + 1], &body[1..]]),
        script("head with half of the body", Directly, &[&all[..head.len() + 2500], &body[2500..]]),
        script("all but a byte", Directly, &[&all[..all.len() - 1], &all[all.len() - 1..]]),
        script("head in two writes", ThroughSluice, &[&head[..20], &head[20..], &body]),
        script("its last byte apart", ThroughSluice, &[&head[..head.len() - 1], &all[head.len() - 1..]]),
        script("byte by byte", ThroughSluice, &[]).and(singly(&whole(200, ""))),
        script("body byte by byte", Directly, &[&self::head(600, "")]).and(singly(&pattern(600))),
        script("body in pieces", Directly, &[&head]).and(pieces(&body, 97)),
        script("all in pieces", Directly, &[]).and(pieces(&all, 977)),
        script("nothing in it", Either, &[&whole(0, "")]),
        script("1 MB in pieces", Either, &[&self::head(large.len(), "")]).and(pieces(&large, 16_384)),
        script("1 MB at once", Either, &[&whole(1_000_000, "")]),
    ];
    for length in [1, 2, 100, 1448, 4096, 16_384, 65_536] {
        scripts.push(script(&format!("{length} bytes"), Directly, &[&whole(length, "")]));
    }
    for length in [1, 2, 12, 40, 1000, 30_000, 65_536] {
        // nginx and others send this field; it is not forwarded.
        for fields in ["", "Connection: keep-alive\r\n"] {
            let [head, body] = [self::head(length, fields), pattern(length)];
            let name = format!("head with {fields:?}, then {length} bytes");
            scripts.push(script(&name, Directly, &[&head, &body]));
        }
    }
    for padding in [300, 1000, 3900, 4050, 4096, 8000, 20_000] {
        // Heads up to and beyond the size of a page.
        let fields = format!("X-Padding: {}\r\n", "p".repeat(padding));
        let goes = if padding <= 1000 { Directly } else { Either };
        scripts.push(script(&format!("a field of {padding}"), goes, &[&whole(3000, &fields)]));
    }
    scripts
}

/// More or fewer bytes than announced.
fn lengths() -> Vec<Script> {
    use Goes::{Either, ThroughSluice};
    let (head, body, all) = (head(5000, ""), pattern(5000), whole(5000, ""));
    let stray = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray";
    let script = Script::answering;
    let cut = |name: &str, goes, writes: &[&[u8]], last: Act, does: Vec<Do>| {
        script(name, goes, writes).and([last]).does(does)
    };
    let to_the_end = || vec![Do::Head, Do::Rest];
    vec![
        script("a byte too many", ThroughSluice, &[&[&all[..], b"x"].concat()]),
        script("another answer behind", ThroughSluice, &[&[&all[..], stray].concat()]),
        script("a byte too many in a write of its own", Either, &[&all, b"x"]),
        script("another answer in a write of its own", Either, &[&all, stray]),
        script("another answer and a close", Either, &[&all, stray]).and([Act::Close]),
        script("too many at the body's end", Either, &[&head, &[&body[..], stray].concat()]),
        script("too many, in two writes", Either, &[&head, &body[..9], &[&body[9..], b"xy"].concat()]),
        cut("cut", Either, &[&all[..3000]], Act::Close, to_the_end()),
        cut("cut behind the head", Either, &[&head], Act::Close, to_the_end()),
        cut("cut at the last byte", Either, &[&head, &body[..4999]], Act::Close, to_the_end()),
        cut("cut within the head", ThroughSluice, &[&head[..20]], Act::Close, vec![Do::Response]),
        cut("nothing", ThroughSluice, &[], Act::Close, vec![Do::Response]),
        cut("torn", Either, &[&all[..3000]], Act::Reset, vec![Do::Head, Do::SomeRest]).whatever_outcome(),
        cut("torn behind the head", Either, &[&head], Act::Reset, vec![Do::SomeRest]).whatever_outcome(),
        cut("torn before", ThroughSluice, &[], Act::Reset, vec![Do::Response]),
        cut("closed at the end", Either, &[&all], Act::Close, vec![Do::Response, Do::Another]),
        cut("reset at the end", Either, &[&head, &body], Act::Reset, vec![Do::SomeRest])
            .does([Do::AwaitOrigin, Do::Reset])
            .whatever_outcome(),
    ]
}

/// Responses whose end is not determined by a length alone, or invalid ones.
fn framings() -> Vec<Script> {
    use Goes::{Directly, Either, ThroughSluice};
    let script = |name: &str, goes, text: &str| Script::answering(name, goes, &[text.as_bytes()]);
    let two = |name: &str, first: &str, then: &str| {
        Script::answering(name, ThroughSluice, &[first.as_bytes(), then.as_bytes()])
    };
    let hello = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let twice = [Do::Response, Do::Response, Do::AwaitOrigin, Do::Another];
    let mut scripts = vec![
        two("an interim answer first", hints, hello).does(twice.clone()),
        script("an interim answer with it", ThroughSluice, &[hints, hello].concat()).does(twice),
        two("continue unasked", "HTTP/1.1 100 Continue\r\n\r\n", hello)
            .does([Do::AwaitOrigin, Do::Reset])
            .whatever_outcome(),
        script("switching unasked", ThroughSluice, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"),
        script("204", ThroughSluice, "HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n"),
        script("304", ThroughSluice, "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n"),
        script("304 with a length", ThroughSluice, "HTTP/1.1 304 Not Modified\r\nContent-Length: 50\r\n\r\n"),
        script("404", Directly, "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nhello"),
        script("500", Directly, "HTTP/1.1 500 Oh\r\nContent-Length: 5\r\n\r\nhello"),
        script("HTTP/1.0", ThroughSluice, "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            .and([Act::Close]),
        script(
            "chunked",
            ThroughSluice,
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        ),
        script("until the close", ThroughSluice, "HTTP/1.1 200 OK\r\n\r\nhello").and([Act::Close]),
        script(
            "the last one",
            ThroughSluice,
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
        )
        .and([Act::Close]),
        script("garbage", ThroughSluice, "hello\r\n\r\n"),
    ];
    for (goes, fields) in [
        (Directly, "Connection: keep-alive\r\nContent-Length: 5"),
        (Directly, "content-length: 5\r\nCONNECTION: Keep-Alive"),
        (Directly, "Content-Length: 5\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d"),
        (Either, "Content-Length:5"),
        (Either, "Content-Length: \t5 \t"),
        (Either, "Content-Length: 005"),
        (Either, "Content-Length: 5\r\nKeep-Alive: timeout=5"),
        (Either, "Content-Length: 5\r\nX-Empty:"),
        (ThroughSluice, "Content-Length: 5\r\nConnection: x-hop\r\nX-Hop: 1"),
        (ThroughSluice, "Content-Length: 5\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1"),
        (ThroughSluice, "Content-Length: 5\r\nUpgrade: h2c\r\nConnection: upgrade"),
        (ThroughSluice, "Content-Length: 5\r\nProxy-Connection: keep-alive"),
        (ThroughSluice, "Content-Length: 5\r\nContent-Length: 6"),
        (ThroughSluice, "Content-Length: 5\r\nTransfer-Encoding: chunked"),
        (ThroughSluice, "Content-Length: +5"),
        (ThroughSluice, "Content-Length: -5"),
        (ThroughSluice, "Content-Length: 5, 6"),
        (ThroughSluice, "Content-Length: 5x"),
        (ThroughSluice, "Content-Length:"),
        (ThroughSluice, "Content-Length: 18446744073709551621"),
        (ThroughSluice, "Content-Length : 5"),
        (ThroughSluice, " Content-Length: 5"),
        (ThroughSluice, "Content-Length: 5\r\n folded: 1"),
        (ThroughSluice, "Content-Length: 5\r\nX-Nul: a\0b"),
        (ThroughSluice, "Content-Length: 5\r\nX-Bare: a\rb"),
        (ThroughSluice, "Content-Length: 5\nX-Line: b"),
        (ThroughSluice, "Content-Length: 5\r\nno colon"),
    ] {
        // Forwarded unchanged, or refused: then the connection may close.
        let text = format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\nhello");
        scripts.push(script(&format!("{fields:?}"), goes, &text));
    }
    for line in [
        "HTTP/1.1 200",
        "HTTP/1.1 200 ",
        "HTTP/1.1 299 A b",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 A",
        "HTTP/1.1 600 A",
        "HTTP/1.2 200 OK",
        "HTTP/2 200 OK",
        "http/1.1 200 OK",
        "HTTP/1.1  200 OK",
        "\r\nHTTP/1.1 200 OK",
        "HTTP/1.1 2x0 OK",
    ] {
        let text = format!("{line}\r\nContent-Length: 5\r\n\r\nhello");
        scripts.push(script(&format!("{line:?}"), Either, &text));
    }
    scripts
}

/// Clients that do more than send and read.
fn clients() -> Vec<Script> {
    use Goes::{Directly, Either, ThroughSluice};
    let (head, body, all) = (head(5000, ""), pattern(5000), whole(5000, ""));
    let script = Script::answering;
    let send = |text: &str| Do::Send(text.as_bytes().to_vec());
    let post = |rest: &str| {
        format!("POST /{{}} HTTP/1.1\r\nHost: a\r\nX-Request-Id: 0123456789abcdef0123456789abcdef\r\n{rest}")
    };
    let waiting = |name: &str, goes| {
        let acts = [Act::Body, Act::Send(head.clone()), Act::AwaitGo, Act::Send(body.clone())];
        script(name, goes, &[]).acts(acts)
    };
    let once_gone = |name: &str| {
        let acts = [Act::Body, Act::AwaitGo, Act::Send(head.clone()), Act::Send(body.clone())];
        script(name, Either, &[]).acts(acts).whatever_outcome()
    };
    let large = whole(3_000_000, "");
    vec![
        script("HEAD", ThroughSluice, &[&head]).asking(&GET.replace("GET", "HEAD")).does([
            Do::Head,
            Do::AwaitOrigin,
            Do::Another,
        ]),
        script("the client's last", Either, &[&all])
            .asking("GET /{} HTTP/1.1\r\nHost: a\r\nX-Request-Id: 0123456789abcdef0123456789abcdef\r\nConnection: close\r\n\r\n")
            .does([Do::Response, Do::Rest]),
        script("an old client", ThroughSluice, &[&all])
            .asking("GET /{} HTTP/1.0\r\nHost: a\r\nX-Request-Id: 0123456789abcdef0123456789abcdef\r\n\r\n")
            .does([Do::Response, Do::Rest]),
        script("an old client that stays", ThroughSluice, &[&all])
            .asking("GET /{} HTTP/1.0\r\nHost: a\r\nX-Request-Id: 0123456789abcdef0123456789abcdef\r\nConnection: keep-alive\r\n\r\n"),
        script("a body", Directly, &[&all]).asking(&post("Content-Length: 5\r\n\r\nhello")),
        script("answered before its body is read", Directly, &[])
            .acts([Act::Send(all.clone()), Act::Body])
            .asking(&post("Content-Length: 5\r\n\r\nhello")),
        script("answered before its body is sent", ThroughSluice, &[])
            .acts([Act::Send(all.clone()), Act::Rest])
            .asking(&post("Content-Length: 5\r\n\r\nhe"))
            .does([Do::Response, send("llo"), Do::Rest]),
        script("a chunked body", Either, &[&all])
            .asking(&post("Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")),
        waiting("a pause behind the head", Directly).does([Do::Head, Do::Go, Do::Take(5000), Do::Another]),
        waiting("another request amid the answer", Either).does([
            Do::Head,
            send("GET /another HTTP/1.1\r\nHost: a\r\nX-Request-Id: another\r\n\r\n"),
            Do::Go,
            Do::Take(5000),
            Do::Response,
            Do::Another,
        ]),
        waiting("part of a request amid the answer", Either).does([
            Do::Head,
            send("GET /ano"),
            Do::Go,
            Do::Take(5000),
            send("ther HTTP/1.1\r\nHost: a\r\nX-Request-Id: another\r\n\r\n"),
            Do::Response,
        ]),
        waiting("garbage amid the answer", Either).does([
            Do::Head,
            send("\0\r\n\r\n"),
            Do::Go,
            Do::Take(5000),
            Do::Response,
            Do::Rest,
        ]),
        script("two requests at once", Either, &[&all])
            .asking(&[GET, "GET /another HTTP/1.1\r\nHost: a\r\nX-Request-Id: another\r\n\r\n"].concat())
            .does([Do::Response, Do::Response, Do::Another]),
        script("two requests at once, body apart", Either, &[&head, &body])
            .asking(&[GET, "GET /another HTTP/1.1\r\nHost: a\r\nX-Request-Id: another\r\n\r\n"].concat())
            .does([Do::Response, Do::Response, Do::Another]),
        waiting("a half-close amid the answer", Either).does([
            Do::Head,
            Do::HalfClose,
            Do::Go,
            Do::Take(5000),
            Do::Rest,
        ]),
        once_gone("a half-close before the answer").does([Do::HalfClose, Do::Go, Do::Response, Do::Rest]),
        waiting("a reset amid the answer", Either)
            .does([Do::Head, Do::Go, Do::Take(100), Do::Reset])
            .whatever_outcome(),
        waiting("a reset behind the head", Either).does([Do::Head, Do::Reset, Do::Go]).whatever_outcome(),
        once_gone("a reset before the answer").does([Do::Reset, Do::Go]),
        script("little room", Either, &[&whole(100_000, "")]).receiving(2048),
        script("little room, in pieces", Either, &[&self::head(100_000, "")])
            .and(pattern(100_000).chunks(5000).map(|piece| Act::Send(piece.to_vec())).collect::<Vec<_>>())
            .receiving(2048),
        script("little room and a reset", Either, &[&large])
            .receiving(2048)
            .does([Do::Head, Do::Take(9000), Do::Reset])
            .whatever_outcome(),
        script("3 MB", Either, &[&large]),
    ]
}

/// All of them.
pub(super) fn table() -> Vec<Script> {
    [splits(), lengths(), framings(), clients()].concat()
}
