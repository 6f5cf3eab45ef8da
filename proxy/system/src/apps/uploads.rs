//! Request bodies, whole and in pieces, below and above the limits of unread joined bytes (64 KB, 64 messages).

use std::fmt::{self, Display, Formatter};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checks::bytes_both_ways;
use super::rig::Rig;
use super::wire::Wire;
use super::{Check, clients};

pub(super) const CHECKS: &[Check] =
    &[("sizes", sizes), ("trickled_uploads", trickled_uploads), ("aborted_uploads", aborted_uploads)];

const SIZES: &[u64] = &[1000, 60_000, 65_536, 70_000, 1 << 20];

/// An upload as sent by a slow client, or one with small writes.
pub(super) struct Trickle {
    pieces: usize,
    piece_bytes: usize,
    pause_ms: u64,
    chunked: bool,
}

pub(super) const TRICKLES: &[Trickle] = &[
    Trickle { pieces: 40, piece_bytes: 100, pause_ms: 5, chunked: false },
    Trickle { pieces: 40, piece_bytes: 100, pause_ms: 5, chunked: true },
    // More messages than may be unread, but fewer bytes.
    Trickle { pieces: 1000, piece_bytes: 60, pause_ms: 0, chunked: false },
    // Less than Puma reads at once, 16 KB: if a read of 4 KB or more ends within a chunk size, Puma 5.6 responds
    // "maximum size of chunk header exceeded" (its decode_chunk counts the whole read).
    Trickle { pieces: 200, piece_bytes: 60, pause_ms: 0, chunked: true },
    // More of both.
    Trickle { pieces: 100, piece_bytes: 1000, pause_ms: 1, chunked: false },
    Trickle { pieces: 100, piece_bytes: 1000, pause_ms: 1, chunked: true },
    // The head alone, and then everything at once.
    Trickle { pieces: 1, piece_bytes: 60_000, pause_ms: 20, chunked: false },
];

/// Bodies of several sizes in each direction, uploads with a length and chunked.
fn sizes(rig: &Rig) -> Result<String> {
    for size in SIZES {
        bytes_both_ways(rig, *size).with_context(|| format!("{size} bytes"))?;
    }
    Ok(String::new())
}

/// Each gives the same hash as the body in one piece, sent directly to the origin.
fn trickled_uploads(rig: &Rig) -> Result<String> {
    let mut kept = Wire::connect(rig)?;
    for trickle in TRICKLES {
        let body = trickle.body();
        let count = body.len();
        let mut direct = Wire::to(rig.place.address)?;
        direct.ask(rig, "POST", "/upload", &format!("Content-Length: {count}\r\n"))?;
        direct.send(&body)?;
        let wanted = direct.reply().context("directly to the origin")?;
        trickle.send(rig, &mut kept, "POST", &body)?;
        let answer = kept.reply().with_context(|| trickle.to_string())?;
        ensure!(answer.status() == 200, "{trickle}: {}", answer.head);
        ensure!(answer.body == wanted.body, "{trickle}: hash {:?}", answer.text());
    }
    Ok(format!("{} uploads on one connection", TRICKLES.len()))
}

impl Display for Trickle {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let framing = if self.chunked { "chunked" } else { "with a length" };
        write!(f, "{} pieces of {} bytes, {framing}", self.pieces, self.piece_bytes)
    }
}

impl Trickle {
    /// The whole body.
    pub(super) fn body(&self) -> Vec<u8> {
        (0..self.pieces * self.piece_bytes).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    /// Sends head and body to /upload.
    ///
    /// # Errors
    /// When they cannot be written in time.
    pub(super) fn send(&self, rig: &Rig, wire: &mut Wire, method: &str, body: &[u8]) -> Result<()> {
        let length = match self.chunked {
            true => "Transfer-Encoding: chunked\r\n".to_owned(),
            false => format!("Content-Length: {}\r\n", body.len()),
        };
        wire.ask(rig, method, &rig.target("/upload"), &length)?;
        for piece in body.chunks(self.piece_bytes) {
            // This is tested: a body with pauses.
            thread::sleep(Duration::from_millis(self.pause_ms));
            match self.chunked {
                true => wire.send(&[format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat())?,
                false => wire.send(piece)?,
            }
        }
        if self.chunked {
            wire.send(b"0\r\n\r\n")?;
        }
        Ok(())
    }
}

/// Clients that disconnect within their upload do not affect later ones.
fn aborted_uploads(rig: &Rig) -> Result<String> {
    for round in 0..clients::ABORTS {
        let count = if round % 2 == 0 { 60_000 } else { 70_000 };
        let mut wire = Wire::connect(rig)?;
        wire.ask(rig, "POST", &rig.target("/upload"), &format!("Content-Length: {count}\r\n"))?;
        wire.send(&[b'x'; 1000])?;
        wire.abort()?;
    }
    clients::unharmed(rig)
}
