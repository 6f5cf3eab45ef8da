//! Direct return: the agreement between sluice and the program on an application's socket about one exchange.
//!
//! A slot belongs to one of sluice's joined connections. sluice writes into it for which client the next response is;
//! the program sends that response to the client itself, or leaves it or the rest of it to sluice. Who may write
//! follows from [`Phase`] alone, which changes only by compare-and-swap where both sides could change it: in
//! [`Phase::Busy`] the program owns the slot, in every other phase sluice does. The code is the same in the kernel, in
//! sluice and in its model test.

mod line;
mod miss;
#[cfg(test)]
mod model;
#[cfg(not(target_arch = "bpf"))]
mod pool;
mod program;
#[cfg(not(target_arch = "bpf"))]
mod sluice;
mod text;

use crate::word::Word;

use line::AddedLine;
pub use line::{LINE_BYTES_MAX, Line};
pub use miss::{Miss, REFUSALS};
#[cfg(not(target_arch = "bpf"))]
pub use pool::Pool;
pub use text::{HELD_BYTES_MAX, Text};

/// The progress of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// The program has nothing to do.
    Idle = 0,
    /// sluice has written where the response goes; the request has not been sent yet.
    Prepared = 1,
    /// The request has been sent: what the application sends now is its response.
    Armed = 2,
    /// The program is deciding about a message.
    Busy = 3,
    /// A part of the response has been sent to the client, and the program waits for the next message.
    Running = 4,
    /// The whole response has been, or is being, added to the client's send queue.
    Done = 5,
    /// The response, or the rest of it, goes to sluice.
    Left = 6,
    /// The program keeps the head, to send it with the start of the body.
    Held = 7,
}

impl Phase {
    /// Match arms instead of a table: Linux 6.1 refuses a table read at an index that the compiler spills to the stack,
    /// because its verifier only knows the bound of the register that was compared.
    fn of_word(word: u64) -> Self {
        match word & PHASE {
            0 => Self::Idle,
            1 => Self::Prepared,
            2 => Self::Armed,
            3 => Self::Busy,
            4 => Self::Running,
            5 => Self::Done,
            7 => Self::Held,
            _ => Self::Left,
        }
    }
}

/// The bits of the phase word that contain the phase. The other bits count the connections that have owned the slot, so
/// that a run that started for an earlier one changes nothing.
const PHASE: u64 = 0xff;

/// One exchange of one connection. In cache lines: sluice's input, the program's answers, the program's state.
#[repr(C, align(64))]
#[cfg_attr(not(target_arch = "bpf"), derive(Debug, Default))]
pub struct Slot {
    /// Cookie of sluice's end of the connection that owns the slot.
    pub owner: Word,
    /// Cookie of the client's socket, its key in the map of clients; never reused.
    pub client: Word,
    /// Kernel address of the client's `tcp_sock`, only used for reading.
    pub client_socket: Word,
    /// A response with a larger body is left to sluice.
    pub body_bytes_max: Word,
    /// A response with a smaller body is left to sluice, too.
    pub body_bytes_min: Word,
    /// The client's `write_seq` (32 bits) once everything before the response is in its send queue.
    pub sequence: Word,
    /// Bytes (32 bits) that sluice has received on the connection. If more were sent to it, they were not
    /// requested.
    pub received: Word,
    /// 1 if a head that arrives alone may be kept until the body starts.
    pub hold: Word,
    /// What the client's response contains after its status line, in addition to the application's.
    pub line: AddedLine,
    phase: Word,
    /// Bytes sent to the client, including the head.
    pub sent: Word,
    /// Bytes of the whole response as the client receives it.
    pub total: Word,
    /// Arrival of the first byte, on the monotonic clock.
    pub first_ns: Word,
    /// Time of the decision about the last message.
    pub last_ns: Word,
    /// Status of the response.
    pub status: Word,
    /// A [`Miss`], or [`REFUSALS`] plus a refusal; 0 unless the response was left to sluice.
    pub reason: Word,
    /// Bytes of the head as the client receives it.
    pub head_bytes: Word,
    /// Bytes of the head in `text`, which the application counts as sent; 0 once they have been forwarded.
    pub held: Word,
    /// Time between a head that arrived alone and the start of its body; 0 if unknown.
    pub gap_ns: Word,
    /// Bytes of the last message sent to the client.
    last_bytes: Word,
    /// Page bytes in the client's send queue that TCP does not count, since the queue was last empty. The value belongs
    /// to the client and moves with it from slot to slot.
    pub slack: Word,
    /// The head as received.
    pub text: Text,
}

const _: () = assert!(size_of::<Slot>() == 256 + HELD_BYTES_MAX);

/// The observed state of a client's socket, for the message to be sent to it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Whether it is still the client's socket, established and without an error.
    pub alive: bool,
    /// Its `write_seq`.
    pub sequence: u32,
    /// Whether no process is inside a call on it.
    pub quiet: bool,
    /// Bytes for which its send queue has room, by the kernel's accounting.
    pub room: u32,
    /// Unsent bytes that the kernel still accepts.
    pub unsent_room: u32,
    /// Whether memory is short.
    pub scarce: bool,
}

/// What the program has read in the head of a response.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The status in the head.
    pub status: u32,
    /// Bytes of the head as received.
    pub head_bytes: u32,
    /// Bytes of the head that are cut out.
    pub cut_bytes: u32,
    /// Bytes of the body.
    pub body_bytes: u64,
    /// Bytes that the client's head has in addition.
    pub added_bytes: u32,
}

impl Answer {
    /// Bytes that the client receives of a message of `size` bytes with the whole head.
    #[inline(always)]
    #[must_use]
    pub const fn seen_bytes(&self, size: u32) -> u32 {
        size - self.cut_bytes + self.added_bytes
    }
}

/// sluice's input for an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// See the field of the same name in [`Slot`].
    pub client: u64,
    /// Likewise.
    pub client_socket: u64,
    /// Likewise.
    pub sequence: u32,
    /// Likewise.
    pub received: u32,
    /// Likewise.
    pub body_bytes_min: u32,
    /// Likewise.
    pub body_bytes_max: u64,
    /// Likewise.
    pub hold: bool,
    /// Likewise.
    pub slack: u64,
    /// Likewise.
    pub line: Line,
}

impl Slot {
    /// The progress of the exchange. What the program wrote before the phase is visible afterwards.
    #[inline(always)]
    pub fn phase(&self) -> Phase {
        Phase::of_word(self.phase.get_acquire())
    }

    /// Changes the phase from `from` to `to`; false if it was not `from`.
    #[inline(always)]
    fn step(&self, from: Phase, to: Phase) -> bool {
        let word = self.phase.get_acquire();
        Phase::of_word(word) == from && self.phase.swap(word, (word & !PHASE) | to as u64)
    }
}
