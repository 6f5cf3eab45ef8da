//! Clients that are slow, pipelining, verbose or gone.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Check;
use super::rig::Rig;
use super::wire::Wire;

pub(super) const CHECKS: &[Check] = &[
    ("big_head", big_head),
    ("pipelined", pipelined),
    ("slow_client", slow_client),
    ("aborted_answers", aborted_answers),
];

/// Clients that disconnect, one after the other.
pub(super) const ABORTS: usize = 20;
const PIPELINED: usize = 10;
/// nginx first reads heads into 1 KB, and asks the kernel how much more there is.
const HEAD_BYTES: &[usize] = &[900, 1100, 3000, 6000];
const RECEIVE_BYTES: usize = 8192;
const SLOW_PIECE_BYTES: usize = 32_768;
const SLOW_PAUSE: Duration = Duration::from_millis(5);

/// Heads around and above the buffer sizes of origins, on one connection.
fn big_head(rig: &Rig) -> Result<String> {
    let mut wire = Wire::connect(rig)?;
    for bytes in HEAD_BYTES {
        let fill = format!("X-Fill: {}\r\n", "f".repeat(*bytes));
        wire.ask(rig, "GET", &rig.target(rig.app.path), &fill)?;
        let answer = wire.reply().with_context(|| format!("a field of {bytes} bytes"))?;
        ensure!(answer.status() == 200 && answer.text() == rig.app.hello, "{bytes}: {}", answer.head);
    }
    Ok(String::new())
}

/// Requests in one write get their responses in order.
fn pipelined(rig: &Rig) -> Result<String> {
    let mut wire = Wire::connect(rig)?;
    let request = |path: &str| format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", rig.target(path), rig.host);
    let both = [request(rig.app.path), request("/no-such-path")].concat();
    wire.send(both.repeat(PIPELINED / 2).as_bytes())?;
    for number in 0..PIPELINED {
        let answer = wire.reply().with_context(|| format!("answer {number}"))?;
        let wanted = if number % 2 == 0 { 200 } else { 404 };
        ensure!(answer.status() == wanted, "answer {number}: {}", answer.head);
    }
    Ok(String::new())
}

/// A client that reads slowly gets everything, and others are served meanwhile.
fn slow_client(rig: &Rig) -> Result<String> {
    let mut direct = Wire::to(rig.place.address)?;
    direct.ask(rig, "GET", rig.app.large, "")?;
    let wanted = direct.reply().context("directly from the origin")?;
    let mut slow = Wire::connect(rig)?;
    // Still far less than the response; with a smaller one TCP itself would take ten seconds.
    slow.receive_buffer(SLOW_PIECE_BYTES)?;
    slow.ask(rig, "GET", &rig.target(rig.app.large), "")?;
    slow.until(b"\r\n\r\n")?;
    let mut got = Vec::new();
    while got.len() < wanted.body.len() {
        thread::sleep(SLOW_PAUSE);
        got.extend(slow.exactly(SLOW_PIECE_BYTES.min(wanted.body.len() - got.len()))?);
        if got.len() == 2 * SLOW_PIECE_BYTES {
            unharmed(rig).context("while a client is slow")?;
        }
    }
    ensure!(got == wanted.body, "bytes differ");
    Ok(format!("{} bytes", got.len()))
}

/// Clients that disconnect before and within a response do not affect later ones.
fn aborted_answers(rig: &Rig) -> Result<String> {
    for round in 0..ABORTS {
        let mut wire = Wire::connect(rig)?;
        wire.receive_buffer(RECEIVE_BYTES)?;
        wire.ask(rig, "GET", &rig.target(rig.app.large), "")?;
        if round % 2 == 0 {
            wire.exactly(1000)?;
        }
        wire.abort()?;
    }
    unharmed(rig)
}

/// Enough requests to meet every idle connection are answered correctly.
pub(super) fn unharmed(rig: &Rig) -> Result<String> {
    for _ in 0..ABORTS {
        let mut wire = Wire::connect(rig)?;
        wire.ask(rig, "GET", &rig.target(rig.app.path), "")?;
        let answer = wire.reply().context("another client")?;
        ensure!(answer.status() == 200 && answer.text() == rig.app.hello, "another client: {}", answer.head);
    }
    Ok(String::new())
}
