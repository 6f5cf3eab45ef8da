//! A minimal WebSocket client (RFC 6455) for an echo check.

use anyhow::{Context, Result, ensure};

use super::rig::Rig;
use super::wire::Wire;

/// The example of RFC 6455 1.3, with its response.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

const FINAL: u8 = 0x80;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Payload sizes around each length encoding (RFC 6455 5.2), and one of several reads.
const SIZES: &[usize] = &[0, 1, 125, 126, 65_535, 65_536, 300_000];

/// Performs a handshake on `/ws`, has messages echoed, pings, closes.
///
/// # Errors
/// When a response does not follow the RFC.
pub(super) fn echo(rig: &Rig) -> Result<String> {
    let mut wire = Wire::connect(rig)?;
    // The first frame is sent in the same write as the request: it must not get lost at the switch.
    let mut opening = format!(
        "GET /ws HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n",
        rig.host
    )
    .into_bytes();
    opening.extend(frame(BINARY, b"early"));
    wire.send(&opening)?;
    let head = wire.until(b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&head);
    ensure!(head.starts_with("HTTP/1.1 101 "), "no 101: {head}");
    ensure!(head.contains(ACCEPT), "wrong accept key: {head}");
    expect(&mut wire, BINARY, b"early").context("frame sent with the request")?;

    for &size in SIZES {
        let payload: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        wire.send(&frame(BINARY, &payload))?;
        expect(&mut wire, BINARY, &payload).with_context(|| format!("echo of {size} bytes"))?;
    }
    wire.send(&frame(PING, b"ping"))?;
    expect(&mut wire, PONG, b"ping").context("pong")?;
    wire.send(&frame(CLOSE, &1000u16.to_be_bytes()))?;
    expect(&mut wire, CLOSE, &1000u16.to_be_bytes()).context("close")?;
    let rest = wire.rest().context("the end after close")?;
    ensure!(rest.is_empty(), "{} bytes after close", rest.len());
    Ok(format!("{} messages", SIZES.len() + 1))
}

/// A final frame, masked as a client's must be.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![FINAL | opcode];
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length), _) if length < 126 => frame.push(FINAL | length),
        (_, Ok(length)) => {
            frame.push(FINAL | 126);
            frame.extend(length.to_be_bytes());
        }
        _ => {
            frame.push(FINAL | 127);
            frame.extend((payload.len() as u64).to_be_bytes());
        }
    }
    frame.extend(MASK);
    frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(a, b)| a ^ b));
    frame
}

fn expect(wire: &mut Wire, opcode: u8, payload: &[u8]) -> Result<()> {
    let head = wire.exactly(2)?;
    ensure!(head[0] == FINAL | opcode, "first byte {:#x}", head[0]);
    let length = match head[1] {
        126 => wire.exactly(2)?,
        127 => wire.exactly(8)?,
        short => vec![short],
    };
    let length = length.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    ensure!(length == payload.len() as u64, "length {length}");
    ensure!(wire.exactly(payload.len())? == payload, "payload differs");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_match_the_rfcs_example() {
        // RFC 6455 5.7: a masked "Hello", there as a text message.
        let hello = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(frame(1, b"Hello"), hello);
        assert_eq!(frame(BINARY, &[0; 126])[..4], [0x82, 0xfe, 0, 126]);
        assert_eq!(frame(BINARY, &[0; 65_536])[..6], [0x82, 0xff, 0, 0, 0, 0]);
    }
}
