//! One to three successive requests, as a client sends them on one connection.

use fastrand::Rng;

use super::target::{AUTHORITIES, target};
use super::{chance, chunks, fields, framing, pick};

const METHODS: &[&str] = &["GET", "GET", "GET", "POST", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH"];
const ODD_METHODS: &[&str] = &[
    "TRACE",
    "CONNECT",
    "get",
    "Get",
    "PROPFIND",
    "M-SEARCH",
    "PRI",
    "SOURCE",
    "X",
    "GET/",
    "G ET",
    "",
    "GET\t",
    "\tGET",
    " GET",
    "G\0T",
    "G(T",
    "\"GET\"",
    "HTTP/1.1",
    "AVERYLONGMETHODTHATNOBODYHASEVERREGISTERED",
    "!#$%&'*+-.^_`|~",
    "G\u{e9}T",
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
    "HTTP/1.10",
    "HTTP/11",
    "HTTP/1,1",
    "HTTP/ 1.1",
    "HTTP /1.1",
    "HTTP/1.1 ",
    " HTTP/1.1",
    "HTTP/1.1\t",
    "",
    "HTTP/1",
    "HTTPS/1.1",
    "HTTP/01.1",
    "HTTP/1.1 x",
    "ICY/1.1",
];
/// Bytes between a request and the next one.
const BETWEEN: &[&str] =
    &["\r\n", "\r\n\r\n", "\r\n\r\n\r\n\r\n\r\n", "\n", "\r", " ", "\0", "a", "0\r\n\r\n", "\r\n0\r\n\r\n"];
/// Bodies, some of which are requests themselves.
const BODIES: &[&str] = &[
    "",
    "a",
    "hello",
    "a=b&c=d",
    "0\r\n\r\n",
    "5\r\nhello\r\n0\r\n\r\n",
    "\r\n\r\n",
    "{\"a\": 1}",
    "\0\0",
    "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /smuggled HTTP/1.1\r\nX-Rest: ",
    "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
];

/// The bytes of one connection.
pub(super) fn requests(rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::new();
    let count = [1, 1, 2, 2, 2, 3][rng.usize(..6)];
    for nth in 0..count {
        if chance(rng, if nth == 0 { 2 } else { 4 }) {
            out.extend(pick(rng, BETWEEN).bytes());
        }
        request(rng, &mut out);
    }
    out
}

fn request(rng: &mut Rng, out: &mut Vec<u8>) {
    let host = if chance(rng, 96) { "a" } else { pick(rng, AUTHORITIES) };
    let line = request_line(rng, host);
    out.extend(line.bytes());
    let mut lines = fields::fields(rng);
    match rng.u8(..100) {
        0 => {}
        1 => lines.extend([format!("Host: {host}"), format!("Host: {host}")]),
        2 => lines.extend([format!("Host: {host}"), "Host: b".to_owned()]),
        3 => lines.push(format!("Host : {host}")),
        4 => lines.push(format!("hOST:{host}")),
        _ => lines.insert(0, format!("Host: {host}")),
    }
    let wants_body = !line.starts_with("GET") && !line.starts_with("HEAD") || chance(rng, 15);
    let body = match rng.u8(..100) {
        _ if !wants_body => Vec::new(),
        0..45 => {
            let body = pick(rng, BODIES).repeat(if chance(rng, 3) { rng.usize(1..4000) } else { 1 });
            lines.extend(framing::counted(rng, body.len()));
            body.into_bytes()
        }
        45..95 => {
            lines.extend(framing::chunked(rng));
            chunks::chunked(rng)
        }
        // A body that is not announced.
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

fn request_line(rng: &mut Rng, host: &str) -> String {
    let method = if chance(rng, 95) { pick(rng, METHODS) } else { pick(rng, ODD_METHODS) };
    let target = match method {
        "OPTIONS" if chance(rng, 40) => "*".to_owned(),
        "CONNECT" if chance(rng, 60) => host.to_owned(),
        _ => target(rng, host),
    };
    let version = if chance(rng, 94) { "HTTP/1.1" } else { pick(rng, ODD_VERSIONS) };
    let space =
        |rng: &mut Rng| if chance(rng, 99) { " " } else { pick(rng, &["  ", "\t", "", "\x0b", " \t", "\r"]) };
    let (before, behind) = (space(rng), space(rng));
    format!("{method}{before}{target}{behind}{version}{}", fields::end(rng))
}
