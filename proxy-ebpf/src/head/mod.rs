//! Response heads that may go to a client as they are: what direct return decides by, in the kernel.
//!
//! What is accepted here is what sluice itself would have sent, byte for byte, but for whole lines that are cut out.
//! So it takes far less than sluice does: whatever is doubtful is refused, which only means that sluice reads it. It
//! is built for the kernel and for the host, where sluice's own parser and encoder judge it by random heads.
#![allow(
    unsafe_code,
    reason = "the scratch is map memory, reached through a pointer that the verifier checks"
)]

mod machine;
mod refusal;
#[cfg(test)]
mod tests;
mod words;

use machine::{CONNECTION, DONE, KEEP_ALIVE, LENGTH, Mark, OTHER, State, load, run};
pub use refusal::Refusal;
use words::{decimal, lower, word};

/// Bytes of a head that are looked at; a longer head goes the ordinary way. A power of two.
pub const TEXT_BYTES: usize = 2048;

/// Most fields of a head, those that are cut out among them.
pub const FIELDS_MAX: u64 = 64;

/// Longest name of a field, in bytes.
const NAME_BYTES_MAX: u64 = 48;

/// Most digits of a Content-Length.
const LENGTH_DIGITS_MAX: u64 = 15;

/// `HTTP/1.1 200 `, behind which the reason phrase begins.
const STATUS_BYTES: u64 = 13;

/// Bytes of the shortest status line and the end of a head; with less there is nothing to look at.
const HEAD_BYTES_MIN: u64 = 18;

/// What the parser keeps while it runs, and what it found. It must be in map memory, which the verifier lets it use
/// from step to step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Scratch {
    /// What [`parse`] found, if it accepted the head.
    pub head: Head,
    state: State,
    /// The first bytes of the answer, and room for a last load of eight bytes.
    pub text: [u8; TEXT_BYTES + 8],
}

/// A head that may go to the client without its cuts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the body, below 10^15.
    pub content_length: u64,
    /// Bytes of the head as it came, with its empty line.
    pub head_bytes: u32,
    /// 200 to 599, but 204 and 304.
    pub status: u32,
    /// Fields, those that are cut out among them: the caller compares it with a limit that is configured.
    pub fields: u32,
    /// How many of `cuts` there are.
    pub cut_count: u32,
    /// In order; what is not used is 0.
    pub cuts: [Cut; 2],
}

/// A whole line, with its CRLF, that does not go to the client.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Where it starts in the head, in bytes.
    pub start: u32,
    /// Bytes of the line, never 0.
    pub bytes: u32,
}

/// Where the program that is only there to try the parser writes the [`Head`]: behind what the kernel takes for an
/// Ethernet header.
pub const TRIAL_HEAD_OFFSET: usize = 14;

/// Where that program finds the text, which is all the rest of the frame.
pub const TRIAL_TEXT_OFFSET: usize = TRIAL_HEAD_OFFSET + size_of::<Head>();

/// What it answers to a head that it accepts; else it is the number of a [`Refusal`].
pub const TRIAL_ACCEPTED: i32 = 256;

const _: () = assert!(TEXT_BYTES.is_power_of_two());
const _: () = assert!(size_of::<Head>() == 40 && align_of::<Head>() == 8);
const _: () = assert!(size_of::<Scratch>() == 40 + 80 + TEXT_BYTES + 8);

/// Parses the first `length` bytes of the text; more than [`TEXT_BYTES`] are not looked at, and what is behind them
/// makes no difference. What it found is in the scratch's `head`. HEAD and CONNECT are the caller's to leave out.
///
/// # Errors
/// The [`Refusal`]; `head` then means nothing.
///
/// # Safety
/// `scratch` points to a whole scratch with whatever in it, which nobody else uses meanwhile.
#[inline(always)]
pub unsafe fn parse(scratch: *mut Scratch, length: u32) -> Result<(), Refusal> {
    let length = u64::from(length).min(TEXT_BYTES as u64);
    if length < HEAD_BYTES_MIN {
        return Err(Refusal::Incomplete);
    }
    // SAFETY: the caller's scratch; here and below only its fields are reached.
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
    // SAFETY: the caller's scratch.
    let state = unsafe { &raw mut (*scratch).state };
    let words = [length, STATUS_BYTES, 0, OTHER, 0, Refusal::Incomplete as u64, 0, 0, 0, 0];
    const { assert!(size_of::<State>() == 10 * 8) };
    // Volatile, for the compiler would make a call of it that sets byte after byte.
    // SAFETY: the fields of a state are words of these, in this order, the marks half ones; all bytes are values.
    unsafe { state.cast::<[u64; 10]>().write_volatile(words) };
}

/// The status, if the text starts with a status line of HTTP/1.1 and may have a body.
#[inline(always)]
unsafe fn status(scratch: *const Scratch) -> Result<u64, Refusal> {
    // SAFETY: the caller's scratch.
    let (version, rest) = unsafe { (load(scratch, 0), load(scratch, 8)) };
    let spaced = rest & 0xff == 0x20 && rest >> 32 & 0xff == 0x20;
    let Some(status) = decimal(rest >> 8, 3).filter(|_| version == word(b"HTTP/1.1") && spaced) else {
        return Err(Refusal::NotHttp11);
    };
    if !matches!(status, 200..=599) || matches!(status, 204 | 304) {
        return Err(Refusal::Status);
    }
    // A reason phrase that is empty ends with the space before it, which is refused there.
    if rest >> 40 & 0xff == 0x20 { Err(Refusal::Odd) } else { Ok(status) }
}

/// The lines that had to be whole first. Outside the steps: the verifier goes through each of those many times.
#[inline(always)]
unsafe fn finish(scratch: *mut Scratch, status: u64) -> Result<(), Refusal> {
    // SAFETY: the caller's scratch, as in all of this.
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

/// The number of a Content-Length line.
#[inline(always)]
unsafe fn length(scratch: *const Scratch, line: Mark) -> Result<u64, Refusal> {
    let start = u64::from(line.start) + b"content-length: ".len() as u64;
    let digits = u64::from(line.end).wrapping_sub(start);
    if line.end == 0 || !matches!(digits, 1..=LENGTH_DIGITS_MAX) {
        return Err(Refusal::Length);
    }
    // SAFETY: the caller's scratch.
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

/// Whether a Connection line says `keep-alive` and nothing else.
#[inline(always)]
unsafe fn is_keep_alive(scratch: *const Scratch, line: Mark) -> bool {
    let start = u64::from(line.start) + b"connection: ".len() as u64;
    // SAFETY: the caller's scratch.
    let (value, rest) = unsafe { (lower(load(scratch, start)), lower(load(scratch, start + 8))) };
    u64::from(line.end) == start + 10 && value == word(b"keep-ali") && rest & 0xffff == word(b"ve")
}

/// [`parse`] of these bytes, for the host.
///
/// # Errors
/// As there.
#[cfg(not(target_arch = "bpf"))]
pub fn parse_text(text: &[u8]) -> Result<Head, Refusal> {
    let head = Head::default();
    let state = State::default();
    // What is behind the text must make no difference, so it is not made up of zeros.
    let mut scratch = Scratch { head, state, text: [b'7'; TEXT_BYTES + 8] };
    let length = text.len().min(TEXT_BYTES);
    let (place, _) = scratch.text.split_at_mut(length);
    place.copy_from_slice(text.split_at(length).0);
    // SAFETY: a whole scratch of this function's own.
    unsafe { parse(&raw mut scratch, length as u32)? };
    Ok(scratch.head)
}
