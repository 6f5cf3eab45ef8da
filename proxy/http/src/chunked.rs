//! The chunked coding (RFC 9112 section 7.1): a decoder, one small function per state.

use super::chunk_extension::Extension;
use super::error::ParseError;
use super::grammar::is_value_byte;
use super::trailers::Trailers;

/// Most hexadecimal digits of a chunk size, including leading zeros.
const SIZE_DIGITS_MAX: usize = 16;

/// Largest chunk and largest body, in bytes. Nobody sends an exbibyte: a larger size is meant to overflow the
/// arithmetic of the next recipient.
const BODY_BYTES_MAX: u64 = 1 << 60;

/// Bytes of extensions that a body may have beyond the allowance for its data. Without this limit, a stream of tiny
/// chunks with long extensions could keep sluice busy (CVE-2023-39326).
const EXTENSION_EXCESS_BYTES_MAX: u64 = 16 * 1024;

/// Bytes of extensions that every chunk may have without counting as excess.
const EXTENSION_FREE_BYTES: u64 = 16;

/// The limits of a chunked body in addition to its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkLimits {
    /// Bytes of a chunk-size line, with its extensions and without its CRLF.
    pub line_bytes_max: usize,
    /// Bytes of the trailer section, including the CRLF of every field line.
    pub trailer_bytes_max: usize,
}

/// The result of [`ChunkDecoder::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes of the body, at least one.
    Data(&'a [u8]),
    /// The input is used up and the body has not ended.
    NeedMore,
    /// The body has ended.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    SizeStart,
    Size,
    Extension(Extension),
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerLine,
    TrailerLf,
    EndLf,
    Done,
    Failed,
}

/// Decodes one chunked body from input in pieces of any size.
///
/// Strict: CRLF only; whitespace after a size only before an extension; extensions must follow their grammar and are
/// dropped; trailers are checked like fields. After an error every further call fails.
#[derive(Debug)]
pub struct ChunkDecoder {
    limits: ChunkLimits,
    state: State,
    digits: usize,
    /// Bytes of this chunk that are still to come. While the size is being read: the size so far.
    remaining: u64,
    /// Bytes of this chunk-size line so far.
    line_bytes: usize,
    excess_bytes: u64,
    data_bytes: u64,
    trailer_bytes: usize,
    line: Vec<u8>,
    trailers: Trailers,
    /// Lower-case names of additional trailers that are dropped.
    refused: Vec<Vec<u8>>,
}

impl ChunkDecoder {
    /// A decoder for one body.
    pub fn new(limits: ChunkLimits) -> ChunkDecoder {
        ChunkDecoder {
            limits,
            state: State::SizeStart,
            digits: 0,
            remaining: 0,
            line_bytes: 0,
            excess_bytes: 0,
            data_bytes: 0,
            trailer_bytes: 0,
            line: Vec::new(),
            trailers: Trailers::default(),
            refused: Vec::new(),
        }
    }

    /// Also drops trailers with these lower-case names.
    pub fn refuse_trailers(&mut self, names: Vec<Vec<u8>>) {
        self.refused = names;
    }

    /// Reads `input` up to the next piece and returns how many bytes it consumed, including the piece. After
    /// [`Piece::Done`], the remaining input belongs to the next message.
    ///
    /// # Errors
    /// [`ParseError::BadBody`] and [`ParseError::TrailersTooLarge`].
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Piece<'a>), ParseError> {
        let mut at = 0;
        loop {
            let rest = &input[at..];
            match (self.state, rest) {
                (State::Done, _) => return Ok((at, Piece::Done)),
                (State::Failed, _) => return Err(ParseError::BadBody),
                (_, []) => return Ok((at, Piece::NeedMore)),
                (State::Data, _) => {
                    let data = self.take_data(rest);
                    return Ok((at + data.len(), Piece::Data(data)));
                }
                (_, [byte, ..]) => {
                    let next = self.step(*byte);
                    self.state = next.unwrap_or(State::Failed);
                    next?;
                    at += 1;
                }
            }
        }
    }

    /// The trailers that may be forwarded; complete once the body has ended.
    pub fn trailers(&self) -> &Trailers {
        &self.trailers
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Bytes of data returned so far.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }
}

/// The state transitions. All refusals of a malformed body are here.
impl ChunkDecoder {
    fn step(&mut self, byte: u8) -> Result<State, ParseError> {
        match self.state {
            State::SizeLf => self.size_lf(byte),
            State::DataCr => expect(byte, b'\r', State::DataLf),
            State::DataLf => self.data_lf(byte),
            State::TrailerStart => self.trailer_start(byte),
            State::TrailerLine => self.trailer_line(byte),
            State::TrailerLf => self.trailer_lf(byte),
            State::EndLf => expect(byte, b'\n', State::Done),
            State::Data | State::Done | State::Failed => Err(ParseError::BadBody),
            State::SizeStart | State::Size | State::Extension(_) => self.step_size_line(byte),
        }
    }

    fn step_size_line(&mut self, byte: u8) -> Result<State, ParseError> {
        if byte != b'\r' {
            self.line_bytes += 1;
        }
        if self.line_bytes > self.limits.line_bytes_max {
            return Err(ParseError::BadBody);
        }
        match self.state {
            State::Extension(extension) => match extension.step(byte)? {
                Extension::Ended => Ok(State::SizeLf),
                next => Ok(State::Extension(next)),
            },
            State::Size => self.size(byte),
            _ => self.digit(byte),
        }
    }

    fn digit(&mut self, byte: u8) -> Result<State, ParseError> {
        let value = (byte as char).to_digit(16).ok_or(ParseError::BadBody)?;
        self.digits += 1;
        // Sixteen digits fill the number exactly, so no bit is shifted out.
        self.remaining = self.remaining << 4 | u64::from(value);
        if self.digits > SIZE_DIGITS_MAX || self.remaining > BODY_BYTES_MAX {
            return Err(ParseError::BadBody);
        }
        Ok(State::Size)
    }

    fn size(&mut self, byte: u8) -> Result<State, ParseError> {
        match byte {
            b';' => Ok(State::Extension(Extension::NameStart)),
            b' ' | b'\t' => Ok(State::Extension(Extension::Space)),
            b'\r' => Ok(State::SizeLf),
            _ => self.digit(byte),
        }
    }

    fn size_lf(&mut self, byte: u8) -> Result<State, ParseError> {
        let extension_bytes = (self.line_bytes - self.digits) as u64;
        let allowance = EXTENSION_FREE_BYTES + self.remaining;
        self.excess_bytes = (self.excess_bytes + extension_bytes).saturating_sub(allowance);
        let too_large = self.data_bytes.saturating_add(self.remaining) > BODY_BYTES_MAX;
        if too_large || self.excess_bytes > EXTENSION_EXCESS_BYTES_MAX {
            return Err(ParseError::BadBody);
        }
        let next = if self.remaining == 0 { State::TrailerStart } else { State::Data };
        expect(byte, b'\n', next)
    }

    fn take_data<'a>(&mut self, input: &'a [u8]) -> &'a [u8] {
        let wanted = usize::try_from(self.remaining).unwrap_or(usize::MAX);
        let data = &input[..input.len().min(wanted)];
        self.remaining -= data.len() as u64;
        self.data_bytes += data.len() as u64;
        if self.remaining == 0 {
            self.state = State::DataCr;
        }
        data
    }

    fn data_lf(&mut self, byte: u8) -> Result<State, ParseError> {
        self.digits = 0;
        self.line_bytes = 0;
        expect(byte, b'\n', State::SizeStart)
    }

    fn trailer_start(&mut self, byte: u8) -> Result<State, ParseError> {
        self.line.clear();
        if byte == b'\r' { Ok(State::EndLf) } else { self.trailer_line(byte) }
    }

    fn trailer_line(&mut self, byte: u8) -> Result<State, ParseError> {
        // The LF is counted with its CR, so that a line over the limit is refused before it ends.
        self.trailer_bytes += if byte == b'\r' { 2 } else { 1 };
        if self.trailer_bytes > self.limits.trailer_bytes_max {
            return Err(ParseError::TrailersTooLarge);
        }
        match byte {
            b'\r' => Ok(State::TrailerLf),
            _ if is_value_byte(byte) => {
                self.line.push(byte);
                Ok(State::TrailerLine)
            }
            _ => Err(ParseError::BadBody),
        }
    }

    fn trailer_lf(&mut self, byte: u8) -> Result<State, ParseError> {
        let next = expect(byte, b'\n', State::TrailerStart)?;
        self.trailers.take_line(&self.line, &self.refused)?;
        Ok(next)
    }
}

fn expect(byte: u8, wanted: u8, next: State) -> Result<State, ParseError> {
    if byte == wanted { Ok(next) } else { Err(ParseError::BadBody) }
}
