//! An HTTP/2 client that sends what it is told, well-formed or not, and returns the responses as HTTP/1.1.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result, anyhow};
use loona_hpack::Decoder;

use super::answer::Answer;
use super::plans::{LOOK, Session, is_gone};
use super::translate::{Field, Message};

const PIECE: usize = 64 * 1024;
const FRAME_MAX: usize = 16_384;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Settings: windows of 2^31-1 bytes for received data (0x4), so that none has to be updated.
const SETTINGS: &[u8] = &[0, 4, 0x7f, 0xff, 0xff, 0xff];
const WINDOW_MORE: [u8; 4] = (i32::MAX as u32 - 65_535).to_be_bytes();

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS_FRAME: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// A connection to the proxy.
pub(super) struct Http2Session {
    wire: TcpStream,
    input: Vec<u8>,
    decoder: Decoder<'static>,
    /// What the proxy allows us to send: over the connection, and on a new stream.
    window: i64,
    initial: i64,
    stream: u32,
}

/// A request that is being sent.
struct Upload<'m> {
    id: u32,
    message: &'m Message,
    /// Bytes of its body sent so far.
    sent: usize,
    window: i64,
    ended: bool,
}

impl Http2Session {
    /// Connects by prior knowledge.
    ///
    /// # Errors
    /// When the proxy does not accept it.
    pub(super) fn open(proxy: SocketAddr) -> Result<Self> {
        let wire = TcpStream::connect(proxy)?;
        wire.set_nodelay(true)?;
        wire.set_read_timeout(Some(LOOK))?;
        let (input, decoder) = (Vec::new(), Decoder::new());
        let mut session = Self { wire, input, decoder, window: 65_535, initial: 65_535, stream: 1 };
        session.wire.write_all(PREFACE)?;
        session.send(SETTINGS_FRAME, 0, 0, SETTINGS)?;
        session.send(WINDOW_UPDATE, 0, 0, &WINDOW_MORE)?;
        Ok(session)
    }

    /// Sends as much as the windows allow.
    fn upload(&mut self, upload: &mut Upload<'_>) -> Result<()> {
        let Message { body, trailers, whole, .. } = upload.message;
        while !upload.ended && upload.sent < body.len() && upload.window.min(self.window) > 0 {
            let room = usize::try_from(upload.window.min(self.window))?.min(FRAME_MAX);
            let piece = &body[upload.sent..body.len().min(upload.sent + room)];
            upload.sent += piece.len();
            upload.ended = *whole && trailers.is_empty() && upload.sent == body.len();
            upload.window -= i64::try_from(piece.len())?;
            self.window -= i64::try_from(piece.len())?;
            self.send(DATA, if upload.ended { END_STREAM } else { 0 }, upload.id, piece)?;
        }
        if !upload.ended && *whole && upload.sent == body.len() {
            self.send_head(upload.id, trailers, true)?;
            upload.ended = true;
        }
        Ok(())
    }

    /// Handles frames of the connection.
    fn connection(&mut self, frame: &Frame) -> Result<()> {
        match frame.kind {
            WINDOW_UPDATE if frame.stream == 0 => self.window += i64::from(word(&frame.payload)?),
            SETTINGS_FRAME if frame.flags & ACK == 0 => {
                for one in frame.payload.chunks_exact(6) {
                    if one[..2] == [0, 4] {
                        self.initial = i64::from(word(&one[2..])?);
                    }
                }
                self.send(SETTINGS_FRAME, ACK, 0, &[])?;
            }
            PING if frame.flags & ACK == 0 => self.send(PING, ACK, 0, &frame.payload)?,
            _ => {}
        }
        Ok(())
    }

    /// Passes a part of a response to the runner.
    fn pass(&mut self, frame: &Frame, answer: &mut Answer<'_>) -> Result<()> {
        let ends = frame.flags & END_STREAM != 0;
        if frame.kind == DATA {
            return answer.data(&frame.payload, ends);
        }
        let fields = self.decoder.decode(&frame.payload).map_err(|error| anyhow!("{error:?}"))?;
        answer.fields(&fields, ends)
    }

    fn send_head(&mut self, id: u32, fields: &[Field], ends: bool) -> Result<()> {
        let block: Vec<u8> = fields.iter().flat_map(literal).collect();
        let mut kind = HEADERS;
        let mut flags = if ends { END_STREAM } else { 0 };
        let mut pieces = block.chunks(FRAME_MAX).peekable();
        while let Some(piece) = pieces.next() {
            flags |= if pieces.peek().is_none() { END_HEADERS } else { 0 };
            self.send(kind, flags, id, piece)?;
            (kind, flags) = (CONTINUATION, 0);
        }
        Ok(())
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let length = u32::try_from(payload.len())?.to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.wire.write_all(&[&head, payload].concat()).context("send")
    }

    /// The next frame, a head with all its parts; none if the proxy has closed the connection or the runner is gone.
    fn receive(&mut self, client: &TcpStream) -> Result<Option<Frame>> {
        let Some(mut frame) = self.frame(client)? else {
            return Ok(None);
        };
        while frame.kind == HEADERS && frame.flags & END_HEADERS == 0 {
            let Some(more) = self.frame(client)? else {
                return Ok(None);
            };
            frame.payload.extend_from_slice(&more.payload);
            frame.flags |= more.flags & END_HEADERS;
        }
        Ok(Some(frame))
    }

    fn frame(&mut self, client: &TcpStream) -> Result<Option<Frame>> {
        let mut piece = vec![0; PIECE];
        loop {
            if let Some(frame) = self.take() {
                return Ok(Some(frame));
            }
            match self.wire.read(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(count) => self.input.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if is_gone(client)? {
                        return Ok(None);
                    }
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error).context("receive"),
            }
        }
    }

    fn take(&mut self) -> Option<Frame> {
        let head = self.input.get(..9)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let (kind, flags) = (head[3], head[4]);
        let stream = word(&head[5..]).ok()?;
        let payload = self.input.get(9..9 + length)?.to_vec();
        self.input.drain(..9 + length);
        Some(Frame { kind, flags, stream, payload })
    }
}

impl Session for Http2Session {
    fn exchange(&mut self, message: &Message, client: &mut TcpStream) -> Result<bool> {
        let id = self.stream;
        self.stream += 2;
        let ended = message.whole && message.body.is_empty() && message.trailers.is_empty();
        self.send_head(id, &message.fields, ended)?;
        let mut upload = Upload { id, message, sent: 0, window: self.initial, ended };
        let mut answer = Answer::new(client, message.is_head());
        loop {
            self.upload(&mut upload)?;
            let Some(frame) = self.receive(answer.client)? else {
                return Ok(false);
            };
            match frame.kind {
                WINDOW_UPDATE if frame.stream == id => upload.window += i64::from(word(&frame.payload)?),
                RST_STREAM if frame.stream == id => return Ok(false),
                DATA | HEADERS if frame.stream == id => {
                    self.pass(&frame, &mut answer)?;
                    if frame.flags & END_STREAM != 0 {
                        return Ok(upload.ended && !answer.closes());
                    }
                }
                _ => self.connection(&frame)?,
            }
        }
    }
}

/// A field as a literal that is never indexed, without Huffman coding (RFC 7541 section 6.2.2): it can contain any
/// byte.
fn literal((name, value): &Field) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        match text.len() {
            short @ 0..127 => bytes.push(u8::try_from(short).unwrap_or_default()),
            long => {
                bytes.push(127);
                let mut rest = long - 127;
                while rest >= 128 {
                    bytes.push(u8::try_from(rest % 128).unwrap_or_default() | 128);
                    rest /= 128;
                }
                bytes.push(u8::try_from(rest).unwrap_or_default());
            }
        }
        bytes.extend_from_slice(text);
    }
    bytes
}

fn word(bytes: &[u8]) -> Result<u32> {
    let four = bytes.get(..4).and_then(|four| four.try_into().ok()).context("a short frame")?;
    Ok(u32::from_be_bytes(four) & 0x7fff_ffff)
}
