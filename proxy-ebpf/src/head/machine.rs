//! Reads the lines of a head, one word per step. In the kernel `bpf_loop` (5.17) drives the steps, on the host a plain
//! loop. All state is in memory, so that the verifier only has to follow one step.

use core::ffi::{c_long, c_void};
#[cfg(target_arch = "bpf")]
use core::mem::offset_of;

use super::words::{first, lower, not_name, not_text, word};
use super::{FIELDS_MAX, NAME_BYTES_MAX, Refusal, Scratch, TEXT_BYTES};

/// Each step consumes at least 6 bytes: the shortest line, or 8 bytes of a longer one.
const STEPS: u32 = TEXT_BYTES as u32 / 6 + 2;

/// Most words of a name, and of a value, that one step consumes: a step costs as much as several words.
const NAME_WORDS: u32 = 2;
const VALUE_WORDS: u32 = 4;

/// Value of `outcome` once the end of the head is found; until then it is a [`Refusal`].
pub(super) const DONE: u64 = u64::MAX;

/// Kinds of lines, each with a mark: all lines that are only copied, and those that are looked at again.
pub(super) const OTHER: u64 = 0;
pub(super) const LENGTH: u64 = 1;
pub(super) const CONNECTION: u64 = 2;
pub(super) const KEEP_ALIVE: u64 = 3;
pub(super) const STATUS_LINE: u64 = 4;
pub(super) const REQUEST_ID: u64 = 5;
/// Number of marks, a power of two for the verifier.
pub(super) const MARKS: usize = 8;
/// Not a kind: the step is within a name.
const IN_NAME: u64 = MARKS as u64;

const CRLF: u64 = word(b"\r\n");

/// Position of a line; `end`, the position of its CR, is 0 if there was no such line.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    pub(super) start: u32,
    pub(super) end: u32,
}

/// State kept from step to step; positions are in bytes of the text.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    /// Bytes of the text that arrived.
    pub(super) length: u64,
    pub(super) position: u64,
    /// Start of the current line.
    pub(super) line: u64,
    /// Kind of the current line, or [`IN_NAME`].
    pub(super) kind: u64,
    /// Lines that have ended, including the status line.
    pub(super) lines: u64,
    pub(super) outcome: u64,
    /// The last line of each kind.
    pub(super) marks: [Mark; MARKS],
}

/// Runs the steps from `state` to an outcome.
///
/// # Safety
/// The contract of [`parse`](super::parse).
#[inline(always)]
pub(super) unsafe fn run(scratch: *mut Scratch) {
    // The helper only accepts a context on the stack.
    let mut scratch = scratch;
    let context = (&raw mut scratch).cast::<c_void>();
    #[cfg(target_arch = "bpf")]
    // SAFETY: the callback has the signature that the helper requires, and its context outlives the call.
    unsafe {
        aya_ebpf::helpers::generated::bpf_loop(STEPS, step as *mut c_void, context, 0);
    }
    #[cfg(not(target_arch = "bpf"))]
    for index in 0..STEPS {
        // SAFETY: the context is the pointer to the caller's scratch.
        if unsafe { step(index, context) } != 0 {
            break;
        }
    }
}

/// One step; returns 1 to end the loop.
unsafe extern "C" fn step(_index: u32, context: *mut c_void) -> c_long {
    // SAFETY: `context` is from `run` and points to the scratch of its caller, which nothing else uses meanwhile.
    unsafe {
        let scratch = *context.cast::<*mut Scratch>();
        match try_step(scratch) {
            Ok(()) => 0,
            Err(outcome) => {
                (*scratch).state.outcome = outcome;
                1
            }
        }
    }
}

/// Refuses, or reports an incomplete head if the bytes up to `end` have not all arrived and are therefore unknown.
#[inline(always)]
const fn refuse(end: u64, length: u64, refusal: Refusal) -> u64 {
    if end > length { Refusal::Incomplete as u64 } else { refusal as u64 }
}

#[inline(always)]
unsafe fn try_step(scratch: *mut Scratch) -> Result<(), u64> {
    // SAFETY: this is the caller's scratch; here and below only its fields are accessed.
    let state = unsafe { &raw mut (*scratch).state };
    // SAFETY: as above.
    let State { length, position: mut at, mut kind, .. } = unsafe { *state };
    if at >= length {
        return Err(Refusal::Incomplete as u64);
    }
    if kind == IN_NAME {
        // SAFETY: as above.
        let flags = unsafe { pass(scratch, &mut at, NAME_WORDS, not_name) };
        if flags == 0 {
            // SAFETY: as above.
            unsafe { (*state).position = at };
            return Ok(());
        }
        at += first(flags);
        // SAFETY: as above.
        kind = unsafe { end_name(scratch, at, length)? };
        at += 2;
    }
    // SAFETY: as above.
    let flags = unsafe { pass(scratch, &mut at, VALUE_WORDS, not_text) };
    if flags == 0 {
        // SAFETY: as above.
        unsafe {
            (*state).position = at;
            (*state).kind = kind;
        }
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { end_line(scratch, at + first(flags), length, kind) }
}

/// Consumes up to `words` words that are all of a class, and returns the flags of the first one that is not, if any.
/// Beyond the received bytes it reads arbitrary bytes: code that acts on the result checks for that.
#[inline(always)]
unsafe fn pass(scratch: *const Scratch, at: &mut u64, words: u32, not_of_class: impl Fn(u64) -> u64) -> u64 {
    for _ in 0..words {
        // SAFETY: this is the caller's scratch.
        let flags = not_of_class(unsafe { load(scratch, *at) });
        if flags != 0 {
            return flags;
        }
        *at += 8;
    }
    0
}

/// The name ends at `at`: determines the kind of the field.
#[inline(always)]
unsafe fn end_name(scratch: *mut Scratch, at: u64, length: u64) -> Result<u64, u64> {
    // SAFETY: this is the caller's scratch.
    let (line, after) = unsafe { ((*scratch).state.line, load(scratch, at)) };
    let name_bytes = at - line;
    // An empty value is detected at its end, because it then seems to end with a space.
    let separated = after & 0xffff == word(b": ") && after >> 16 & 0xff != 0x20;
    if name_bytes == 0 || name_bytes > NAME_BYTES_MAX || !separated {
        return Err(refuse(at + 3, length, Refusal::Odd));
    }
    // SAFETY: this is the caller's scratch.
    unsafe { kind_of(scratch, line, name_bytes) }.map_err(|refusal| refuse(at + 1, length, refusal))
}

/// The kind of the field whose name of `name_bytes` bytes starts at `line`.
///
/// Refusing too many names does no harm, so not all of their bytes are compared.
#[inline(always)]
unsafe fn kind_of(scratch: *mut Scratch, line: u64, name_bytes: u64) -> Result<u64, Refusal> {
    const LENGTHS: u64 = 1 << 2 | 1 << 7 | 1 << 10 | 1 << 12 | 1 << 14 | 0b1111 << 16;
    if LENGTHS >> name_bytes & 1 == 0 {
        return Ok(OTHER);
    }
    // SAFETY: this is the caller's scratch.
    let (start, rest) = unsafe { (lower(load(scratch, line)), lower(load(scratch, line + 8))) };
    // SAFETY: as above.
    let marks = unsafe { (*scratch).state.marks };
    let seen = |kind: u64| marks[kind as usize].end != 0;
    match name_bytes {
        2 if start & 0xffff == word(b"te") => Err(Refusal::HopByHop),
        7 if start & !(0xff << 56) == word(b"upgrade") => Err(Refusal::HopByHop),
        7 if start & !(0xff << 56) == word(b"trailer") => Err(Refusal::Coding),
        10 if start == word(b"connecti") && rest & 0xffff == word(b"on") => {
            if seen(CONNECTION) {
                Err(Refusal::Odd)
            } else {
                Ok(CONNECTION)
            }
        }
        10 if start == word(b"keep-ali") && rest & 0xffff == word(b"ve") => {
            if seen(KEEP_ALIVE) {
                Err(Refusal::Odd)
            } else {
                Ok(KEEP_ALIVE)
            }
        }
        12 if start == word(b"x-reques") && rest & 0xffff_ffff == word(b"t-id") => Ok(REQUEST_ID),
        14 if start == word(b"content-") && rest & !(0xffff << 48) == word(b"length") => {
            if seen(LENGTH) {
                Err(Refusal::Length)
            } else {
                Ok(LENGTH)
            }
        }
        14 if start == word(b"http2-se") => Err(Refusal::HopByHop),
        16..=19 if start & !(0xffff << 48) == word(b"proxy-") => Err(Refusal::HopByHop),
        17 if start == word(b"transfer") => Err(Refusal::Coding),
        _ => Ok(OTHER),
    }
}

/// A byte that is not text is at `at`: the end of the line, and possibly of the head.
#[inline(always)]
unsafe fn end_line(scratch: *mut Scratch, at: u64, length: u64, kind: u64) -> Result<(), u64> {
    // SAFETY: this is the caller's scratch.
    let (state, around) = unsafe { (&raw mut (*scratch).state, load(scratch, at - 1)) };
    // SAFETY: as above.
    let lines = unsafe { (*state).lines } + 1;
    if around & 0xff == 0x20 || around >> 8 & 0xffff != CRLF || lines > FIELDS_MAX + 1 {
        return Err(refuse(at + 2, length, Refusal::Odd));
    }
    if at + 2 > length {
        return Err(Refusal::Incomplete as u64);
    }
    // SAFETY: as above.
    unsafe {
        let mark = Mark { start: (*state).line as u32, end: at as u32 };
        set_mark(scratch, kind, mark);
        (*state).lines = lines;
        (*state).line = at + 2;
        (*state).position = at + 2;
        (*state).kind = IN_NAME;
    }
    match around >> 24 & 0xffff == CRLF {
        true if at + 4 > length => Err(Refusal::Incomplete as u64),
        true => Err(DONE),
        false => Ok(()),
    }
}

/// Eight bytes of the text. Beyond its end it starts over, which no caller reaches: this is for the verifier.
///
/// # Safety
/// `scratch` points to a whole scratch.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub(super) unsafe fn load(scratch: *const Scratch, at: u64) -> u64 {
    let mut word = at;
    // In assembly, because the compiler removes a mask that it considers unnecessary, and loads single bytes.
    // SAFETY: after the mask, all eight bytes are in the text, which is eight bytes longer than the mask allows.
    unsafe {
        core::arch::asm!(
            "{word} &= {mask}",
            "{word} += {scratch}",
            "{word} = *(u64 *)({word} + {text})",
            word = inout(reg) word,
            scratch = in(reg) scratch,
            mask = const TEXT_BYTES - 1,
            text = const offset_of!(Scratch, text),
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    word
}

/// Like the version for the kernel.
///
/// # Safety
/// `scratch` points to a whole scratch.
#[cfg(not(target_arch = "bpf"))]
#[inline(always)]
pub(super) unsafe fn load(scratch: *const Scratch, at: u64) -> u64 {
    let at = at as usize & (TEXT_BYTES - 1);
    // SAFETY: all eight bytes are in the text, which is eight bytes longer than the mask allows.
    let word = unsafe { (&raw const (*scratch).text).cast::<u8>().add(at).cast::<u64>().read_unaligned() };
    u64::from_le(word)
}

/// Stores the position of a line for its kind.
///
/// # Safety
/// `scratch` points to a whole scratch.
#[inline(always)]
unsafe fn set_mark(scratch: *mut Scratch, kind: u64, mark: Mark) {
    let mut kind = kind;
    #[cfg(target_arch = "bpf")]
    // SAFETY: no memory is accessed. In assembly for the same reason as in `load`.
    unsafe {
        core::arch::asm!(
            "{kind} &= {mask}",
            kind = inout(reg) kind,
            mask = const MARKS - 1,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    kind &= MARKS as u64 - 1;
    // SAFETY: the mask keeps `kind` below the number of marks.
    unsafe { (&raw mut (*scratch).state.marks).cast::<Mark>().add(kind as usize).write(mark) };
}
