//! One response as an origin sends it, possibly with interim ones before it and bytes after it.

use fastrand::Rng;

use super::{Case, chance, chunks, fields, finish, framing, pick};

const STATUSES: &[&str] =
    &["200", "200", "200", "200", "201", "404", "500", "204", "304", "206", "302", "503"];
const ODD_STATUSES: &[&str] = &[
    "100",
    "101",
    "102",
    "103",
    "199",
    "205",
    "299",
    "600",
    "999",
    "099",
    "000",
    "20",
    "2000",
    "2 0",
    "",
    "+200",
    "-20",
    "0x8",
    "2e2",
    "\u{662}00",
];
const ODD_VERSIONS: &[&str] = &[
    "HTTP/1.0",
    "HTTP/1.0",
    "HTTP/1.0",
    "HTTP/0.9",
    "HTTP/1.2",
    "HTTP/2.0",
    "HTTP/2",
    "http/1.1",
    "HTTP/1.1\t",
    "HTTP /1.1",
    "ICY",
    "",
    " HTTP/1.1",
    "\r\nHTTP/1.1",
    "\nHTTP/1.1",
    "\0HTTP/1.1",
    "SSH-2.0",
    "HTTP/11",
];
const REASONS: &[&str] = &[
    "",
    "Not Found",
    "\u{e9}",
    "a\tb",
    "a\rb",
    "a\nb",
    "a\0b",
    "OK ",
    " OK",
    "HTTP/1.1 200 OK",
    "\x01",
    "\x7f",
];
const INTERIM: &[&str] = &[
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    "HTTP/1.1 102 Processing\r\nX-A: b\r\n\r\n",
    "HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\n",
    "HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\nhello",
    "HTTP/1.1 103 Early Hints\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "HTTP/1.1 100\r\n\r\n",
    "HTTP/1.0 100 Continue\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nConnection: close\r\n\r\n",
];
/// Bytes after a complete response.
const SURPLUS: &[&str] = &[
    "\r\n",
    "a",
    "\0",
    "0\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nX-Answer: 0\r\n\r\nsurplus",
    "HTTP/1.1 200 OK\r\n\r\nsurplus",
    "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 ",
    "H",
];
const BODIES: &[&str] =
    &["", "a", "hello", "0\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "\r\n\r\n", "\0\0"];
const OWNED: &[&str] = &[
    "Connection: close",
    "Connection: keep-alive",
    "Connection: X-Case",
    "Connection: Content-Length",
    "Connection: Transfer-Encoding",
    "Connection: \"a\"",
    "Connection: upgrade",
    "Upgrade: websocket",
    "Keep-Alive: timeout=1",
    "Trailer: X-Sum",
    "Content_Length: 5",
    "Transfer_Encoding: chunked",
    "Set-Cookie: a=b",
    "X-Answer: 0",
    "Proxy-Connection: close",
    "TE: trailers",
    "Via: 1.1 other",
];

/// The origin's response to the request of one case.
pub(in super::super) fn response(rng: &mut Rng, index: u64) -> Case {
    finish(rng, |rng| {
        let mut out = Vec::new();
        for _ in 0..if chance(rng, 8) { rng.usize(1..4) } else { 0 } {
            out.extend(pick(rng, INTERIM).bytes());
        }
        answer(rng, index, &mut out);
        if chance(rng, 12) {
            out.extend(pick(rng, SURPLUS).bytes());
        }
        out
    })
}

fn answer(rng: &mut Rng, index: u64, out: &mut Vec<u8>) {
    out.extend(status_line(rng).bytes());
    let mut lines = fields::fields(rng);
    lines.push(format!("X-Case: {index}"));
    if chance(rng, 25) {
        lines.push(pick(rng, OWNED).to_owned());
    }
    let body = match rng.u8(..100) {
        0..45 => {
            let body = pick(rng, BODIES).repeat(if chance(rng, 5) { rng.usize(1..8000) } else { 1 });
            lines.extend(framing::counted(rng, body.len()));
            body.into_bytes()
        }
        45..85 => {
            lines.extend(framing::chunked(rng));
            chunks::chunked(rng)
        }
        _ => pick(rng, BODIES).as_bytes().to_vec(),
    };
    if chance(rng, 30) {
        rng.shuffle(&mut lines);
    }
    for line in lines {
        out.extend(line.bytes());
        out.extend(fields::end(rng).bytes());
    }
    out.extend(fields::end(rng).bytes());
    out.extend(body);
}

fn status_line(rng: &mut Rng) -> String {
    let version = if chance(rng, 94) { "HTTP/1.1" } else { pick(rng, ODD_VERSIONS) };
    let status = if chance(rng, 95) { pick(rng, STATUSES) } else { pick(rng, ODD_STATUSES) };
    let reason = if chance(rng, 90) { "OK" } else { pick(rng, REASONS) };
    let spaces: [&str; 2] =
        std::array::from_fn(|_| if chance(rng, 99) { " " } else { pick(rng, &["  ", "\t", "", "\x0b"]) });
    format!("{version}{}{status}{}{reason}{}", spaces[0], spaces[1], fields::end(rng))
}
