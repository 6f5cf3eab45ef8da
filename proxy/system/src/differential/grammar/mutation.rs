//! Changes to single bytes and short stretches, anywhere in a message.

use fastrand::Rng;

use super::pick;

/// Changes to one case.
const MUTATIONS_MAX: usize = 3;
/// Bytes that end, separate or hide something.
const BYTES: &[u8] = b"\r\n\r\n\r\n\0 \t:,;=/0123456789afAF+-_\"'\\#?%.\x0b\x0c\x7f\x80\xa0\xff";
/// Stretches with a meaning for a parser.
const STRETCHES: &[&str] = &[
    "\r\n",
    "\r\n\r\n",
    "\n\n",
    "\r\n ",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "0\r\n\r\n",
    "GET /m HTTP/1.1\r\nHost: a\r\n\r\n",
    " HTTP/1.1\r\n",
    "Host: a\r\n",
    "HTTP/1.1 200 OK\r\n",
    "Connection: close\r\n",
];
/// The longest stretch that is copied or removed.
const STRETCH_MAX: usize = 24;

/// Changes `bytes` in one to three places.
pub(super) fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..rng.usize(1..=MUTATIONS_MAX) {
        if !bytes.is_empty() {
            change(rng, bytes);
        }
    }
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    let at = place(rng, bytes);
    let stretch = at..(at + rng.usize(1..STRETCH_MAX)).min(bytes.len());
    match rng.u8(..12) {
        0 | 1 => bytes.insert(at, BYTES[rng.usize(..BYTES.len())]),
        2 | 3 => bytes[at] = BYTES[rng.usize(..BYTES.len())],
        4 => bytes[at] ^= 1 << rng.u8(..8),
        5 => drop(bytes.remove(at)),
        6 => drop(bytes.drain(stretch)),
        7 => {
            let copy = bytes[stretch].to_vec();
            bytes.splice(at..at, copy);
        }
        8 => {
            let copy = bytes[stretch].to_vec();
            let to = place(rng, bytes);
            bytes.splice(to..to, copy);
        }
        9 => {
            let other = place(rng, bytes);
            bytes.swap(at, other);
        }
        10 => drop(bytes.splice(at..at, pick(rng, STRETCHES).bytes())),
        _ => bytes.truncate(at),
    }
}

/// A position in `bytes`: half of the time at the end of a line, where most is decided.
fn place(rng: &mut Rng, bytes: &[u8]) -> usize {
    let ends: Vec<usize> = (0..bytes.len()).filter(|at| matches!(bytes[*at], b'\r' | b'\n' | b':')).collect();
    if ends.is_empty() || rng.bool() { rng.usize(..bytes.len()) } else { ends[rng.usize(..ends.len())] }
}
