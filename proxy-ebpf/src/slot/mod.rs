//! Direct return: what sluice and the program on an application's socket agree on for one exchange.
//!
//! A slot belongs to a joined connection of sluice's. sluice says in it which client the next answer is for; the
//! program sends that answer to the client itself, or leaves it, or the rest of it, to sluice. Who may write what
//! follows from [`Phase`] alone, which only changes by compare-and-swap where both might: while it is
//! [`Phase::Busy`] the program has the slot, in every other phase sluice. The code is the same in the kernel, in
//! sluice and in its model test.

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

pub use miss::{Miss, REFUSALS};
#[cfg(not(target_arch = "bpf"))]
pub use pool::Pool;
pub use text::{HELD_BYTES_MAX, Text};

/// How far an exchange is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Nothing is expected of the program.
    Idle = 0,
    /// sluice has said where the answer goes; the request has not been sent yet.
    Prepared = 1,
    /// The request has been sent: what the application sends now is its answer.
    Armed = 2,
    /// The program decides on a message.
    Busy = 3,
    /// A part of the answer has been sent to the client, and the program waits for the next one.
    Running = 4,
    /// The whole answer has been, or is being, put into the client's send queue.
    Done = 5,
    /// The answer, or the rest of it, comes to sluice.
    Left = 6,
    /// The program keeps the head, to send it with the begin of the body.
    Held = 7,
}

impl Phase {
    /// Arms in place of a table: Linux 6.1 refuses to read one at an index that the compiler keeps on the stack, for its
    /// verifier knows the bound only of the register that was compared.
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

/// Bits of the word of a phase that are the phase. The others count the connections that have had the slot, so that
/// a run that began for another one changes nothing.
const PHASE: u64 = 0xff;

/// One exchange of one connection. In cache lines: what sluice says, what the program answers, what it keeps.
#[repr(C, align(64))]
#[cfg_attr(not(target_arch = "bpf"), derive(Debug, Default))]
pub struct Slot {
    /// Cookie of sluice's end of the connection that the slot belongs to.
    pub owner: Word,
    /// Cookie of the client's socket, its key in the map of clients: never used again for another.
    pub client: Word,
    /// Kernel address of the client's `tcp_sock`, only ever read through.
    pub client_socket: Word,
    /// An answer with a larger body is left to sluice.
    pub body_bytes_max: Word,
    /// One with a smaller body is, too.
    pub body_bytes_min: Word,
    /// `write_seq` (32 bits) that the client's socket has when all that goes before the answer is in its send queue.
    pub sequence: Word,
    /// Bytes (32 bits) that sluice has received on the connection. If it was sent more, then something that nobody
    /// asked for.
    pub received: Word,
    /// 1 if a head that comes alone may be kept until the body begins.
    pub hold: Word,
    phase: Word,
    /// Bytes sent to the client, the head included.
    pub sent: Word,
    /// Bytes that the whole answer has as the client gets it.
    pub total: Word,
    /// When the first byte came, on the monotonic clock.
    pub first_ns: Word,
    /// When the last message was decided on.
    pub last_ns: Word,
    /// Of the answer.
    pub status: Word,
    /// A [`Miss`], or [`REFUSALS`] and more; 0 unless it was left to sluice.
    pub reason: Word,
    /// Bytes of the head as the client gets it.
    pub head_bytes: Word,
    /// Bytes of the head that are in `text`, and which the application counts as sent; 0 once they have gone.
    pub held: Word,
    /// How long after a head that came alone the body began; 0 if that is not known.
    pub gap_ns: Word,
    /// Bytes of the last message that was sent to the client.
    last_bytes: Word,
    /// Bytes of pages behind the client's send queue that TCP does not count, since it was last empty. It is the client's,
    /// and goes with it from slot to slot.
    pub slack: Word,
    /// The head as it came.
    pub text: Text,
}

const _: () = assert!(size_of::<Slot>() == 192 + HELD_BYTES_MAX);

/// What a client's socket was seen to be, and the message that would be sent to it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Whether it is the client's socket still, established and without an error.
    pub alive: bool,
    /// Its `write_seq`.
    pub sequence: u32,
    /// Whether nobody is inside a call on it.
    pub quiet: bool,
    /// Bytes that its send queue has room for, as the kernel accounts them.
    pub room: u32,
    /// Bytes that the kernel takes before it has sent some.
    pub unsent_room: u32,
    /// Whether memory is short.
    pub scarce: bool,
}

/// What the program has read in the head of an answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// As in the head.
    pub status: u32,
    /// Bytes of the head as it came.
    pub head_bytes: u32,
    /// Bytes of it that are cut out.
    pub cut_bytes: u32,
    /// Bytes of the body.
    pub body_bytes: u64,
}

/// What sluice says of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// See the fields of [`Slot`].
    pub client: u64,
    /// As there.
    pub client_socket: u64,
    /// As there.
    pub sequence: u32,
    /// As there.
    pub received: u32,
    /// As there.
    pub body_bytes_min: u32,
    /// As there.
    pub body_bytes_max: u64,
    /// As there.
    pub hold: bool,
    /// As there.
    pub slack: u64,
}

impl Slot {
    /// How far the exchange is. What the program has written before is seen after.
    #[inline(always)]
    pub fn phase(&self) -> Phase {
        Phase::of_word(self.phase.get_acquire())
    }

    /// Goes from one phase to another; false if it was in another one than the first.
    #[inline(always)]
    fn step(&self, from: Phase, to: Phase) -> bool {
        let word = self.phase.get_acquire();
        Phase::of_word(word) == from && self.phase.swap(word, (word & !PHASE) | to as u64)
    }
}
