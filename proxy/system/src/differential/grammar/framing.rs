//! Content-Length and Transfer-Encoding lines, valid and invalid.

use fastrand::Rng;

use super::{chance, pick};

const LENGTH_NAMES: &[&str] = &[
    "content-length",
    "CONTENT-LENGTH",
    "Content_Length",
    "Content-Length ",
    " Content-Length",
    "Content-Length\t",
    "\x0bContent-Length",
    "Content Length",
    "Content-Length\0",
    "Content-Lengt\u{125}",
];
const CODING_NAMES: &[&str] = &[
    "transfer-encoding",
    "TRANSFER-ENCODING",
    "Transfer_Encoding",
    "Transfer-Encoding ",
    " Transfer-Encoding",
    "Transfer-Encoding\t",
    "\x0bTransfer-Encoding",
    "Transfer Encoding",
    "Transfer-Encoding\0",
    "TE",
];
const CODINGS: &[&str] = &[
    "Chunked",
    "CHUNKED",
    "chunked ",
    "\tchunked",
    "\x0bchunked",
    "chunked\x0b",
    "chunked,",
    ",chunked",
    "chunked, chunked",
    "gzip, chunked",
    "chunked, gzip",
    "identity",
    "chunked, identity",
    "identity, chunked",
    "xchunked",
    "chunkedx",
    "chunked;a=b",
    "\"chunked\"",
    "'chunked'",
    "chun\\ked",
    "chunked\0",
    "",
    "gzip",
    "cow",
    "chunked\r\n , cow",
    "\r\n chunked",
    "\u{1d04}hunked",
    "chunked\n",
    "c\u{fb}nked",
];

/// Field lines for a body of this many bytes.
pub(super) fn counted(rng: &mut Rng, length: usize) -> Vec<String> {
    let name = if chance(rng, 97) { "Content-Length" } else { pick(rng, LENGTH_NAMES) };
    let value = if chance(rng, 93) { length.to_string() } else { odd_length(rng, length) };
    let mut lines = vec![format!("{name}: {value}")];
    match rng.u8(..120) {
        0 => lines.push(format!("Content-Length: {length}")),
        1 => lines.push(format!("Content-Length: {}", length + 1)),
        2 => lines.push("Content-Length: 0".to_owned()),
        3 => lines.push("Transfer-Encoding: chunked".to_owned()),
        4 => lines.push(coding(rng)),
        5 => lines.insert(0, coding(rng)),
        _ => {}
    }
    lines
}

/// Field lines for a chunked body.
pub(super) fn chunked(rng: &mut Rng) -> Vec<String> {
    let mut lines = vec![if chance(rng, 93) { "Transfer-Encoding: chunked".to_owned() } else { coding(rng) }];
    match rng.u8(..120) {
        0 => lines.push("Transfer-Encoding: chunked".to_owned()),
        1 => lines.push(coding(rng)),
        2 => lines.push("Content-Length: 5".to_owned()),
        3 => lines.insert(0, "Content-Length: 0".to_owned()),
        4 => lines.push("Content_Length: 5".to_owned()),
        _ => {}
    }
    lines
}

fn coding(rng: &mut Rng) -> String {
    let name = if chance(rng, 50) { "Transfer-Encoding" } else { pick(rng, CODING_NAMES) };
    let value = if chance(rng, 40) { "chunked" } else { pick(rng, CODINGS) };
    format!("{name}: {value}")
}

fn odd_length(rng: &mut Rng, length: usize) -> String {
    match rng.u8(..24) {
        0 => format!("+{length}"),
        1 => format!("-{length}"),
        2 => format!("0x{length:x}"),
        3 => format!("0{length}"),
        4 => format!("{length:019}"),
        5 => format!("{length:020}"),
        6 => format!("{length},{length}"),
        7 => format!("{length}, {length}"),
        8 => format!("{length},{}", length + 1),
        9 => format!("{length} {length}"),
        10 => format!("{length}.0"),
        11 => format!("{length}e0"),
        12 => format!("{length}_0"),
        13 => (length + 1).to_string(),
        14 => length.saturating_sub(1).to_string(),
        15 => (length + 100_000).to_string(),
        16 => u64::MAX.to_string(),
        17 => format!("{}", (1u128 << 64) + length as u128),
        18 => format!("{}", (1u64 << 32) + length as u64),
        19 => format!("\u{660}{length}"),
        20 => format!("{length}\0"),
        21 => format!("\"{length}\""),
        22 => format!("{length}\x0b"),
        _ => String::new(),
    }
}
