//! Response heads for direct return, usual and malformed. Used by the tests of this crate and by those of the eBPF
//! program in the kernel.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Lines to add to a head or to replace one of its lines with.
const LINES: &[&str] = &[
    "Connection: keep-alive",
    "connection: Keep-Alive",
    "Connection: close",
    "Connection: keep-alive, date",
    "Connection: content-length",
    "Keep-Alive: timeout=5",
    "keep-alive: max=1",
    "Content-Length: 5",
    "content-length: 12345678901",
    "CONTENT-LENGTH: 0",
    "Content-Length: 007",
    "Content-Length: 18446744073709551616",
    "Content-Length: 999999999999999",
    "Content-Length: 1000000000000000",
    "Content-Length: 5, 5",
    "Content-Length: +5",
    "Content_Length: 5",
    "Content-Length : 5",
    "Transfer-Encoding: chunked",
    "Transfer_Encoding: x",
    "Trailer: X-Sum",
    "TE: trailers",
    "Upgrade: websocket",
    "Proxy-Connection: keep-alive",
    "Proxy-Authenticate: Basic",
    "Proxy: a",
    "Proxy-Authorization: a",
    "HTTP2-Settings: a",
    "Via: 1.1 other",
    "Date: Sat, 21 Nov 2026 09:00:00 GMT",
    "Host: a",
    "Server: s",
    "X_Forwarded_For: a",
    "X-Forwarded-For: a",
    "x_y: a",
    "X-Request-Id: a b",
    "Set-Cookie: a=b; path=/",
    "ETag: \"a\"",
    "a: b",
    "a:b",
    "a:  b",
    "a: b ",
    "a:\tb",
    "a: b\tc",
    "a:",
    "a: ",
    ": a",
    " a: b",
    "a",
    "",
    "a : b",
    "a!: b",
    "a: \u{e9}",
    "a: \0",
    "a: b\rc",
    "a: b\nc: d",
    "a: b\n c",
    "x-name-that-is-exactly-as-long-as-names-may-be--: a",
    "x-name-that-is-exactly-as-long-as-names-may-be---: a",
];

const STATUS_LINES: &[&str] = &[
    "HTTP/1.1 200 OK",
    "HTTP/1.1 404 Not Found",
    "HTTP/1.1 299 a",
    "HTTP/1.1 599 b",
    "HTTP/1.1 200 ",
    "HTTP/1.1 200",
    "HTTP/1.0 200 OK",
    "HTTP/1.1 204 No Content",
    "HTTP/1.1 304 Not Modified",
    "HTTP/1.1 100 Continue",
    "HTTP/1.1 600 X",
    "HTTP/1.1 200  OK",
    "HTTP/1.1 200 OK ",
    "HTTP/1.1 200 O\tK",
    "HTTP/2 200 OK",
    "HTTP/1.1 0200 OK",
    "HTTP/1.1 200 \u{e9}",
    "\r\nHTTP/1.1 200 OK",
];

/// Values that replace a valid Content-Length.
const LENGTHS: &[&str] = &[
    "007",
    "00",
    "0",
    "18446744073709551616",
    "999999999999999",
    "1000000000000000",
    "5, 5",
    "+5",
    "5 ",
    "0x5",
    "",
];

/// A head that direct return accepts.
pub(crate) fn usual_head() -> impl Strategy<Value = Vec<u8>> {
    let value = "[!-~]([ -~]{0,40}[!-~])?";
    let field = prop_oneof![
        3 => select(vec!["Date: d", "server: nginx/1.22", "ETag: \"x\"", "Vary: Accept", "set-cookie: a=b"])
            .prop_map(str::to_owned),
        2 => (Just("X-"), "[a-zA-Z0-9-]{0,24}", value).prop_map(|(x, name, value)| format!("{x}{name}: {value}")),
    ];
    let length =
        (select(vec!["Content-Length", "content-length", "CoNTENT-lENGTH"]), 0u64..1_000_000_000_000_000)
            .prop_map(|(name, bytes)| vec![format!("{name}: {bytes}")]);
    let small = (0u64..100_000).prop_map(|bytes| vec![format!("Content-Length: {bytes}")]);
    let connection = select(vec!["Connection: keep-alive", "connection: Keep-Alive"])
        .prop_map(|line| vec![line.to_owned()]);
    let keep_alive = Just(vec!["Keep-Alive: timeout=5, max=100".to_owned()]);
    let status = (200u16..600, "[!-~]([ -~]{0,16}[!-~])?")
        .prop_filter("no body", |(status, _)| !matches!(status, 204 | 304))
        .prop_map(|(status, reason)| format!("HTTP/1.1 {status} {reason}\r\n"));
    let own = (
        prop_oneof![length, small],
        prop_oneof![connection, Just(vec![])],
        prop_oneof![keep_alive, Just(vec![])],
    );
    let lines = (vec(field, 0..16), own)
        .prop_map(|(fields, (length, connection, keep_alive))| {
            [fields, length, connection, keep_alive].concat()
        })
        .prop_shuffle();
    (status, lines).prop_map(|(status, lines)| {
        let mut head = status.into_bytes();
        lines.iter().for_each(|line| head.extend_from_slice(format!("{line}\r\n").as_bytes()));
        head.extend_from_slice(b"\r\n");
        head
    })
}

#[derive(Clone, Debug)]
enum Change {
    Byte(Index, u8),
    Insert(Index, u8),
    Remove(Index),
    StatusLine(&'static str),
    Length(&'static str),
    Line(Index, &'static str),
    InsertLine(Index, &'static str),
    RepeatLine(Index),
    RemoveLine(Index),
    Grow(Index, usize),
    End(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let byte = prop_oneof![
        2 => select(b"\r\n \t:\0\x7f\x80\xff-_,.09azAZ".to_vec()),
        1 => any::<u8>(),
    ];
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), byte.clone()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        3 => (at(), byte).prop_map(|(at, byte)| Change::Insert(at, byte)),
        2 => at().prop_map(Change::Remove),
        1 => select(STATUS_LINES).prop_map(Change::StatusLine),
        1 => select(LENGTHS).prop_map(Change::Length),
        3 => (at(), select(LINES)).prop_map(|(at, line)| Change::Line(at, line)),
        5 => (at(), select(LINES)).prop_map(|(at, line)| Change::InsertLine(at, line)),
        1 => at().prop_map(Change::RepeatLine),
        1 => at().prop_map(Change::RemoveLine),
        1 => (at(), 1usize..2200).prop_map(|(at, bytes)| Change::Grow(at, bytes)),
        1 => at().prop_map(Change::End),
    ]
}

fn apply(head: Vec<u8>, change: &Change) -> Vec<u8> {
    let mut bytes = head;
    let place = |at: &Index, bytes: &[u8]| at.index(bytes.len() + 1);
    match change {
        Change::Byte(at, byte) if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        Change::Insert(at, byte) => bytes.insert(place(at, &bytes), *byte),
        Change::Remove(at) if !bytes.is_empty() => drop(bytes.remove(at.index(bytes.len()))),
        Change::Grow(at, count) => {
            let at = place(at, &bytes);
            drop(bytes.splice(at..at, std::iter::repeat_n(b'x', *count)));
        }
        Change::End(at) => bytes.truncate(place(at, &bytes)),
        _ => return apply_to_lines(&bytes, change),
    }
    bytes
}

fn apply_to_lines(head: &[u8], change: &Change) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = head.split_inclusive(|byte| *byte == b'\n').collect();
    let count = lines.len();
    let text = |line: &str| format!("{line}\r\n").into_bytes();
    let new = match change {
        Change::StatusLine(line) | Change::Line(_, line) | Change::InsertLine(_, line) => text(line),
        Change::Length(digits) => text(&format!("Content-Length: {digits}")),
        _ => Vec::new(),
    };
    match change {
        Change::Length(_) => {
            let is_length = |line: &&[u8]| line.to_ascii_lowercase().starts_with(b"content-length:");
            if let Some(at) = lines.iter().position(is_length) {
                lines[at] = &new;
            }
        }
        Change::StatusLine(_) if count > 0 => lines[0] = &new,
        Change::Line(at, _) if count > 0 => lines[at.index(count)] = &new,
        Change::InsertLine(at, _) if count > 1 => lines.insert(1 + at.index(count - 1), &new),
        Change::RepeatLine(at) if count > 0 => {
            let at = at.index(count);
            lines.insert(at, lines[at]);
        }
        Change::RemoveLine(at) if count > 0 => drop(lines.remove(at.index(count))),
        _ => {}
    }
    lines.concat()
}

/// Usual heads with up to four faults, followed by a body or random bytes; sometimes no head at all.
pub(crate) fn odd_head() -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![3 => Just(vec![]), 1 => vec(any::<u8>(), 0..24), 1 => Just(b"\r\n\r\n".to_vec())];
    let changed = (usual_head(), vec(change(), 0..5), body)
        .prop_map(|(head, changes, body)| [changes.iter().fold(head, apply), body].concat());
    prop_oneof![
        16 => changed,
        1 => vec(any::<u8>(), 0..200),
        1 => vec(any::<u8>(), 0..64).prop_map(|bytes| [b"HTTP/1.1 200 OK\r\n".as_slice(), &bytes].concat()),
    ]
}
