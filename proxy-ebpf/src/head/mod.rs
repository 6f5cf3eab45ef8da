//! Response heads that may go to a client unchanged: the basis for direct return's decision, in the kernel.
//!
//! A head that is accepted here is what sluice itself would have sent, byte for byte, except for whole lines that are
//! cut out. So this parser accepts far less than sluice: anything doubtful is refused, and sluice then reads it. It is
//! built for the kernel and for the host, where sluice's own parser and encoder check it with random heads.
#![allow(
    unsafe_code,
    reason = "the scratch is map memory, reached through a pointer that the verifier checks"
)]

mod machine;
mod refusal;
#[cfg(test)]
mod tests;
mod words;

use machine::{CONNECTION, DONE, KEEP_ALIVE, LENGTH, Mark, REQUEST_ID, STATUS_LINE, State, load, run};
pub use refusal::Refusal;
use words::{decimal, lower, word};

/// Most bytes of a head that are examined; a longer head goes through sluice. A power of two.
pub const TEXT_BYTES: usize = 2048;

/// Most fields of a head, including those that are cut out.
pub const FIELDS_MAX: u64 = 64;

/// Longest name of a field, in bytes.
const NAME_BYTES_MAX: u64 = 48;

/// Most digits of a Content-Length.
const LENGTH_DIGITS_MAX: u64 = 15;

/// Bytes of `HTTP/1.1 200 `, after which the reason phrase starts.
const STATUS_BYTES: u64 = 13;

/// Bytes of the shortest status line and the end of a head; with fewer there is nothing to parse.
const HEAD_BYTES_MIN: u64 = 18;

/// The parser's state and its result. It must be in map memory, which the verifier allows it to use from step to
/// step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// The result of [`parse`], if it accepted the head.
    pub head: Head,
    state: State,
    /// The first bytes of the response, and room for a last load of eight bytes.
    pub text: [u8; TEXT_BYTES + 8],
}

/// A head that may go to the client without its cuts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the body, below 10^15.
    pub content_length: u64,
    /// Bytes of the head as received, including its empty line.
    pub head_bytes: u32,
    /// 200 to 599, except 204 and 304.
    pub status: u32,
    /// Number of fields, including those that are cut out: the caller compares it with a configured limit.
    pub fields: u32,
    /// Number of `cuts` in use.
    pub cut_count: u32,
    /// In order; unused entries are 0.
    pub cuts: [Cut; 2],
    /// Bytes of the status line with its CRLF.
    pub status_line_bytes: u32,
    /// 1 if the head has an X-Request-Id.
    pub has_request_id: u32,
}

/// A whole line, with its CRLF, that does not go to the client.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Start of the line in the head, in bytes.
    pub start: u32,
    /// Bytes of the line, never 0.
    pub bytes: u32,
}

/// Where the program that only tests the parser writes the [`Head`]: after the bytes that the kernel treats as an
/// Ethernet header.
pub const TRIAL_HEAD_OFFSET: usize = 14;

/// Where that program reads the text, which is the rest of the frame.
pub const TRIAL_TEXT_OFFSET: usize = TRIAL_HEAD_OFFSET + size_of::<Head>();

/// What it returns for an accepted head; otherwise it returns the number of a [`Refusal`].
pub const TRIAL_ACCEPTED: i32 = 256;

const _: () = assert!(TEXT_BYTES.is_power_of_two());
const _: () = assert!(size_of::<Head>() == 48 && align_of::<Head>() == 8);
const _: () = assert!(size_of::<Scratch>() == 48 + 112 + TEXT_BYTES + 8);

/// Parses the first `length` bytes of the text, at most [`TEXT_BYTES`]; bytes after them have no effect. The result is
/// in the scratch's `head`. The caller must exclude responses to HEAD and CONNECT.
///
/// # Errors
/// The [`Refusal`]; the contents of `head` are then undefined.
///
/// # Safety
/// `scratch` points to a whole scratch with any contents, which nothing else uses during the call.
#[inline(always)]
pub unsafe fn parse(scratch: *mut Scratch, length: u32) -> Result<(), Refusal> {
    let length = u64::from(length).min(TEXT_BYTES as u64);
    if length < HEAD_BYTES_MIN {
        return Err(Refusal::Incomplete);
    }
    // SAFETY: this is the caller's scratch; here and below only its fields are accessed.
    let status = unsafe { status(scratch)? };
    // SAFETY: as above.
    unsafe {
        begin(scratch, length);
        run(scratch);
        let outcome = (*scratch).state.outcome;
        if outcome != DONE {
            return Err(Refusal::from_number(outcome as u32).unwrap_or(Refusal::Odd));
        }
        finish(scratch, status)
    }
}

/// The state before the first step.
#[inline(always)]
unsafe fn begin(scratch: *mut Scratch, length: u64) {
    // SAFETY: this is the caller's scratch.
    let state = unsafe { &raw mut (*scratch).state };
    let words = [length, STATUS_BYTES, 0, STATUS_LINE, 0, Refusal::Incomplete as u64, 0, 0, 0, 0, 0, 0, 0, 0];
    const { assert!(size_of::<State>() == 14 * 8) };
    // Volatile, because the compiler would turn it into a call that sets single bytes.
    // SAFETY: the fields of a state are these words, in this order, and marks are half words; any bytes are valid.
    unsafe { state.cast::<[u64; 14]>().write_volatile(words) };
}

/// The status, if the text starts with a status line of HTTP/1.1 and the response may have a body.
#[inline(always)]
unsafe fn status(scratch: *const Scratch) -> Result<u64, Refusal> {
    // SAFETY: this is the caller's scratch.
    let (version, rest) = unsafe { (load(scratch, 0), load(scratch, 8)) };
    let spaced = rest & 0xff == 0x20 && rest >> 32 & 0xff == 0x20;
    let Some(status) = decimal(rest >> 8, 3).filter(|_| version == word(b"HTTP/1.1") && spaced) else {
        return Err(Refusal::NotHttp11);
    };
    if !matches!(status, 200..=599) || matches!(status, 204 | 304) {
        return Err(Refusal::Status);
    }
    // An empty reason phrase ends with the space before it, which is refused at the end of the line.
    if rest >> 40 & 0xff == 0x20 { Err(Refusal::Odd) } else { Ok(status) }
}

/// Checks the lines that had to be complete first. Outside the steps, which the verifier analyses many times.
#[inline(always)]
unsafe fn finish(scratch: *mut Scratch, status: u64) -> Result<(), Refusal> {
    // SAFETY: this is the caller's scratch, also below.
    let State { position, lines, marks, .. } = unsafe { (*scratch).state };
    // SAFETY: as above.
    let content_length = unsafe { length(scratch, marks[LENGTH as usize])? };
    let connection = marks[CONNECTION as usize];
    // SAFETY: as above.
    if connection.end != 0 && !unsafe { is_keep_alive(scratch, connection) } {
        return Err(Refusal::HopByHop);
    }
    let (mut first, mut second) = (cut(connection), cut(marks[KEEP_ALIVE as usize]));
    let cut_count = u32::from(first.bytes != 0) + u32::from(second.bytes != 0);
    if first.bytes == 0 || (second.bytes != 0 && second.start < first.start) {
        (first, second) = (second, first);
    }
    let head = Head {
        content_length,
        head_bytes: position as u32 + 2,
        status: status as u32,
        fields: lines as u32 - 1,
        cut_count,
        cuts: [first, second],
        status_line_bytes: marks[STATUS_LINE as usize].end + 2,
        has_request_id: u32::from(marks[REQUEST_ID as usize].end != 0),
    };
    // SAFETY: as above.
    unsafe { (*scratch).head = head };
    Ok(())
}

#[inline(always)]
const fn cut(mark: Mark) -> Cut {
    let bytes = if mark.end == 0 { 0 } else { mark.end + 2 - mark.start };
    Cut { start: mark.start, bytes }
}

/// The value of a Content-Length line.
#[inline(always)]
unsafe fn length(scratch: *const Scratch, line: Mark) -> Result<u64, Refusal> {
    let start = u64::from(line.start) + b"content-length: ".len() as u64;
    let digits = u64::from(line.end).wrapping_sub(start);
    if line.end == 0 || !matches!(digits, 1..=LENGTH_DIGITS_MAX) {
        return Err(Refusal::Length);
    }
    // SAFETY: this is the caller's scratch.
    let text = unsafe { load(scratch, start) };
    let number = if digits <= 8 {
        decimal(text, digits)
    } else {
        // SAFETY: as above.
        let rest = unsafe { load(scratch, start + digits - 8) };
        match (decimal(text, digits - 8), decimal(rest, 8)) {
            (Some(number), Some(rest)) => Some(number * 100_000_000 + rest),
            _ => None,
        }
    };
    let needless_zero = text & 0xff == 0x30 && digits > 1;
    number.filter(|_| !needless_zero).ok_or(Refusal::Length)
}

/// Whether the value of a Connection line is only `keep-alive`.
#[inline(always)]
unsafe fn is_keep_alive(scratch: *const Scratch, line: Mark) -> bool {
    let start = u64::from(line.start) + b"connection: ".len() as u64;
    // SAFETY: this is the caller's scratch.
    let (value, rest) = unsafe { (lower(load(scratch, start)), lower(load(scratch, start + 8))) };
    u64::from(line.end) == start + 10 && value == word(b"keep-ali") && rest & 0xffff == word(b"ve")
}

/// [`parse`] for a byte slice, on the host.
///
/// # Errors
/// The errors of [`parse`].
#[cfg(not(target_arch = "bpf"))]
pub fn parse_text(text: &[u8]) -> Result<Head, Refusal> {
    let head = Head::default();
    let state = State::default();
    // Bytes after the text must have no effect, so they are not zeros.
    let mut scratch = Scratch { head, state, text: [b'7'; TEXT_BYTES + 8] };
    let length = text.len().min(TEXT_BYTES);
    let (place, _) = scratch.text.split_at_mut(length);
    place.copy_from_slice(text.split_at(length).0);
    // SAFETY: this is a whole scratch that only this function uses.
    unsafe { parse(&raw mut scratch, length as u32)? };
    Ok(scratch.head)
}
