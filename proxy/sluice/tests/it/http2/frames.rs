//! A client that writes raw frames, to send what no library would.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::support::{PATIENCE, Proxy};

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const PRIORITY: u8 = 2;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

pub(super) const PROTOCOL_ERROR: u32 = 1;
pub(super) const FRAME_SIZE_ERROR: u32 = 6;
pub(super) const ENHANCE_YOUR_CALM: u32 = 11;

/// A received frame.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

impl Frame {
    /// The error of RST_STREAM, or of GOAWAY.
    pub(super) fn error(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    /// The status of HEADERS, for statuses in the static table (RFC 7541 appendix A).
    pub(super) fn status(&self) -> u16 {
        match self.payload[0] {
            0x88 => 200,
            0x89 => 204,
            0x8c => 400,
            0x8d => 404,
            0x8e => 500,
            // A literal after the name of the eighth entry: plain or Huffman-coded digits.
            byte if byte & 0x0f == 8 || byte == 0x48 => literal(&self.payload[1..]),
            byte => panic!("no status but {byte:x}"),
        }
    }
}

fn literal(value: &[u8]) -> u16 {
    if value[0] & 0x80 == 0 {
        return std::str::from_utf8(&value[1..4]).unwrap().parse().unwrap();
    }
    // Digits have codes of five bits (0 to 2) and six (3 to 9).
    let bits: Vec<bool> = value[1..=usize::from(value[0] & 0x7f)]
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1 == 1))
        .collect();
    let (mut at, mut status) = (0, 0);
    for _ in 0..3 {
        let number =
            |count: usize| bits[at..at + count].iter().fold(0_u16, |sum, bit| sum * 2 + u16::from(*bit));
        let digit = if number(5) < 3 { number(5) } else { number(6) - 0x19 + 3 };
        at += if number(5) < 3 { 5 } else { 6 };
        status = status * 10 + digit;
    }
    status
}

pub(super) struct Raw(TcpStream);

impl Raw {
    /// Connects, and sends preface and settings.
    pub(super) fn connect(proxy: &Proxy) -> Self {
        Self::with_settings(proxy, &[])
    }

    pub(super) fn with_settings(proxy: &Proxy, settings: &[(u16, u32)]) -> Self {
        let socket = TcpStream::connect(proxy.address()).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut raw = Self(socket);
        raw.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let each =
            settings.iter().flat_map(|(key, value)| [&key.to_be_bytes()[..], &value.to_be_bytes()].concat());
        raw.send(SETTINGS, 0, 0, &each.collect::<Vec<u8>>());
        raw
    }

    /// Writes; the proxy may already have closed.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    pub(super) fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.write(&frame(kind, flags, stream, payload));
    }

    /// Sends a head of these fields as literals.
    pub(super) fn head(&mut self, stream: u32, flags: u8, fields: &[(&str, &[u8])]) {
        self.send(HEADERS, END_HEADERS | flags, stream, &block(fields));
    }

    /// Sends a complete `GET path`.
    pub(super) fn get(&mut self, stream: u32, path: &str) {
        self.head(stream, END_STREAM, &request("GET", path));
    }

    /// The next frame; `None` at the end of the connection, however it ended.
    pub(super) fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).ok()?;
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap()) & 0x7fff_ffff;
        Some(Frame { kind: head[3], flags: head[4], stream, payload })
    }

    /// Waits for a frame of this kind.
    pub(super) fn until(&mut self, kind: u8) -> Frame {
        std::iter::from_fn(|| self.next()).find(|frame| frame.kind == kind).expect("the connection has ended")
    }

    /// Waits for the next frame that decides the outcome of a stream: HEADERS or RST_STREAM.
    pub(super) fn outcome(&mut self) -> Frame {
        let mut frames = std::iter::from_fn(|| self.next());
        frames.find(|frame| matches!(frame.kind, HEADERS | RST_STREAM)).expect("the connection has ended")
    }

    /// Waits for the GOAWAY that ends the connection, and its end.
    pub(super) fn end(&mut self) -> u32 {
        let error = self.until(GOAWAY).error();
        // The proxy keeps reading for a while, unless it sees the end.
        let _ = self.0.shutdown(Shutdown::Write);
        while let Some(frame) = self.next() {
            assert_ne!(frame.kind, HEADERS, "{frame:?}");
        }
        error
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, high, middle, low] = (payload.len() as u32).to_be_bytes();
    let mut bytes = vec![high, middle, low, kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The fields of every request.
pub(super) fn request<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a [u8]); 4] {
    [
        (":method", method.as_bytes()),
        (":scheme", b"http"),
        (":authority", b"a.test"),
        (":path", path.as_bytes()),
    ]
}

/// Fields as literals without indexing, not Huffman-coded (RFC 7541 section 6.2.2).
pub(super) fn block(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name.as_bytes(), value] {
            length(&mut block, text.len());
            block.extend_from_slice(text);
        }
    }
    block
}

/// An integer with a prefix of seven bits (RFC 7541 section 5.1).
fn length(block: &mut Vec<u8>, length: usize) {
    if length < 127 {
        return block.push(length as u8);
    }
    block.push(127);
    let mut rest = length - 127;
    while rest >= 128 {
        block.push(rest as u8 | 128);
        rest >>= 7;
    }
    block.push(rest as u8);
}
