//! Chunked bodies.

use fastrand::Rng;

use super::fields::ODD_ENDS;
use super::{chance, pick};

const EXTENSIONS: &[&str] = &[
    ";a",
    ";a=b",
    ";a=\"b\"",
    ";a=\"b;c\\\"d\"",
    " ;a",
    "\t;\ta = b",
    ";",
    ";a=",
    ";=b",
    ";a=\"b",
    ";a b",
    ";a\x01",
    ";\n",
    ";a\n",
    ";a=\"\n\"",
    ";a=\"\r\n\"",
    " ",
    "\t",
    ";;",
    ";a;b=c",
    ";a\0",
    ",a",
    ";a=\u{e9}",
    ";a=\"\u{e9}\"",
    "\r",
    "\x0b",
];
/// Trailer lines; some are fields that are forbidden in trailers.
const TRAILERS: &[&str] = &[
    "X-Sum: 1",
    "X-Empty:",
    "Content-Length: 5",
    "Transfer-Encoding: chunked",
    "Host: b",
    "X-Differential: forged",
    "X-Forwarded-For: 10.0.0.1",
    "Connection: close",
    " X-Sum: 1",
    "X-Sum : 1",
    "X-Sum",
    ": 1",
    "X-Sum: a\rb",
    "X-Sum: a\nb",
    "X-Sum: a\0b",
    "X_Sum: 1",
    "Authorization: a",
    "GET /t HTTP/1.1",
    "Trailer: a",
    "content_length: 5",
];
/// Data that looks like the bytes after data.
const DATA: &[&str] = &[
    "a",
    "hello",
    "0\r\n\r\n",
    "\r\n0\r\n\r\n",
    "GET /d HTTP/1.1\r\nHost: a\r\n\r\n",
    "\r\n",
    "\0",
    "5\r\nhello\r\n",
    "0123456789abcdef",
];

/// A chunked body from its first size to the end of its trailers.
pub(super) fn chunked(rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..rng.usize(..4) {
        let data = pick(rng, DATA).repeat(if chance(rng, 4) { rng.usize(1..3000) } else { 1 });
        out.extend(size(rng, data.len()).bytes());
        extend_line(rng, &mut out);
        out.extend(data.bytes());
        out.extend(end(rng).bytes());
    }
    if chance(rng, 98) {
        let last = if chance(rng, 97) {
            "0"
        } else {
            pick(rng, &["00", "0x0", "-0", "", "000000000000000000", " 0", "0 "])
        };
        out.extend(last.bytes());
        extend_line(rng, &mut out);
    }
    for _ in 0..if chance(rng, 12) { rng.usize(1..3) } else { 0 } {
        out.extend(pick(rng, TRAILERS).bytes());
        out.extend(end(rng).bytes());
    }
    if chance(rng, 99) {
        out.extend(end(rng).bytes());
    }
    out
}

fn extend_line(rng: &mut Rng, out: &mut Vec<u8>) {
    if chance(rng, 7) {
        out.extend(pick(rng, EXTENSIONS).bytes());
    }
    if rng.u8(..) == 0 {
        out.extend(format!(";a={}", "b".repeat(rng.usize(1..5000))).bytes());
    }
    out.extend(end(rng).bytes());
}

fn end(rng: &mut Rng) -> &'static str {
    if rng.u8(..) < 3 { pick(rng, ODD_ENDS) } else { "\r\n" }
}

/// A chunk size in valid spellings, and in ones that may be read in two ways.
fn size(rng: &mut Rng, length: usize) -> String {
    match if chance(rng, 92) { u8::MAX } else { rng.u8(..19) } {
        0 => format!("{length:X}"),
        1 => format!("0{length:x}"),
        2 => format!("{length:016x}"),
        3 => format!("{length:017x}"),
        4 => format!("0x{length:x}"),
        5 => format!("+{length:x}"),
        6 => format!("-{length:x}"),
        7 => format!(" {length:x}"),
        8 => format!("{length:x} "),
        9 => format!("{length:x}g"),
        10 => format!("{length:x}_0"),
        11 => format!("{}", length + 1),
        12 => format!("{:x}", length.saturating_sub(1)),
        13 => format!("{:x}", u64::MAX),
        14 => format!("1{length:016x}"),
        15 => format!("{length:x}.0"),
        16 => format!("\"{length:x}\""),
        17 => String::new(),
        18 => format!("{length:x}\n"),
        _ => format!("{length:x}"),
    }
}
