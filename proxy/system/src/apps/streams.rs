//! Responses that the origin produces bit by bit.

use anyhow::{Context, Result, ensure};

use super::rig::Rig;
use super::wire::Wire;
use super::{Check, checks, curl};

pub(super) const CHECKS: &[Check] = &[("stream", stream), ("first_byte_is_not_held_back", first_byte)];

/// Many small flushed pieces arrive in order and completely.
fn stream(rig: &Rig) -> Result<String> {
    const LINES: usize = 2000;
    let answer = curl::curl(rig, &["--no-buffer"], &[&format!("/stream?n={LINES}")])?;
    let wanted: String = (0..LINES).map(|i| format!("line {i}\n")).collect();
    ensure!(answer.text.trim_end() == wanted.trim_end(), "{} bytes", answer.size);
    Ok(String::new())
}

/// The origin holds its last line until told, which happens once the first one has arrived: no clock needed.
fn first_byte(rig: &Rig) -> Result<String> {
    let mut wire = Wire::connect(rig)?;
    wire.ask(rig, "GET", &rig.target("/gated?id=a"), "Connection: close\r\n")?;
    wire.until(b"first\n").context("the first line, while the origin holds the last")?;
    checks::answers(rig, "/release?id=a", "released")?;
    wire.until(b"last\n")?;
    wire.rest()?;
    Ok(String::new())
}
