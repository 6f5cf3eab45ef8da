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

use crate::word::Word;

pub use miss::{Miss, REFUSALS};
#[cfg(not(target_arch = "bpf"))]
pub use pool::Pool;

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
}

impl Phase {
    fn of_word(word: u64) -> Self {
        const ALL: [Phase; 7] = [
            Phase::Idle,
            Phase::Prepared,
            Phase::Armed,
            Phase::Busy,
            Phase::Running,
            Phase::Done,
            Phase::Left,
        ];
        match ALL.get((word & PHASE) as usize) {
            Some(phase) => *phase,
            None => Phase::Left,
        }
    }
}

/// Bits of the word of a phase that are the phase. The others count the connections that have had the slot, so that
/// a run that began for another one changes nothing.
const PHASE: u64 = 0xff;

/// One exchange of one connection. In two cache lines: what sluice says, and what the program answers.
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
    reserved: u64,
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
}

const _: () = assert!(size_of::<Slot>() == 128);

/// What a client's socket was seen to be, and the message that would be sent to it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Whether it is the client's socket still, established and without an error.
    pub alive: bool,
    /// Its `write_seq`.
    pub sequence: u32,
    /// Bytes that its send queue has room for, as the kernel accounts them.
    pub room: u32,
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

    /// For sluice, outside of [`Phase::Busy`] and [`Phase::Running`]: gives the slot to a connection.
    #[cfg(not(target_arch = "bpf"))]
    pub fn assign(&self, owner: u64) {
        let word = self.phase.get_acquire();
        self.owner.set(owner);
        self.phase.set_release((word & !PHASE).wrapping_add(PHASE + 1) | Phase::Idle as u64);
    }

    /// For sluice, where nothing is expected of the program: says where the next answer goes.
    #[cfg(not(target_arch = "bpf"))]
    pub fn prepare(&self, order: &Order) {
        self.client.set(order.client);
        self.client_socket.set(order.client_socket);
        self.sequence.set(u64::from(order.sequence));
        self.received.set(u64::from(order.received));
        self.body_bytes_min.set(u64::from(order.body_bytes_min));
        self.body_bytes_max.set(order.body_bytes_max);
        self.sent.set(0);
        self.reason.set(0);
        let word = self.phase.get_acquire();
        self.phase.set_release((word & !PHASE) | Phase::Prepared as u64);
    }

    /// For sluice: takes over what has not been sent. The phase then: [`Phase::Left`], or [`Phase::Busy`] if the
    /// program has it at this moment, or [`Phase::Done`].
    #[cfg(not(target_arch = "bpf"))]
    pub fn take_over(&self) -> Phase {
        loop {
            let phase = self.phase();
            if !matches!(phase, Phase::Prepared | Phase::Armed | Phase::Running) {
                return phase;
            }
            // If not, the program has gone on meanwhile, and perhaps to one of these phases.
            if self.step(phase, Phase::Left) {
                self.reason.set(Miss::Wanted as u64);
                return Phase::Left;
            }
        }
    }

    /// For the program: what the application sends from now on is the answer.
    #[inline(always)]
    pub fn request_sent(&self, owner: u64) {
        let word = self.phase.get_acquire();
        if Phase::of_word(word) == Phase::Prepared && self.owner.get() == owner {
            self.phase.swap(word, (word & !PHASE) | Phase::Armed as u64);
        }
    }

    /// For the program: takes the slot for a message; the phase that it was in.
    #[inline(always)]
    pub fn enter(&self, owner: u64) -> Option<Phase> {
        let word = self.phase.get_acquire();
        let phase = Phase::of_word(word);
        // The owner is looked at after the phase: with an older one the phase is older, too, and not there any more.
        if !matches!(phase, Phase::Armed | Phase::Running)
            || self.owner.get() != owner
            || !self.phase.swap(word, (word & !PHASE) | Phase::Busy as u64)
        {
            return None;
        }
        // Where loads may pass each other it was perhaps an older one all the same. A message of the rightful one may
        // have found the slot busy and gone to sluice, so what follows has to go there, too.
        if self.owner.get() != owner {
            self.leave_rest(Miss::Wanted as u32);
            return None;
        }
        Some(phase)
    }

    /// For the program, of the first message: whether the answer and it may go to the client, with `to_sluice` bytes
    /// sent to sluice before.
    #[inline(always)]
    pub fn judge_first(&self, answer: &Answer, size: u32, to_sluice: u32, seen: &Seen) -> Result<(), Miss> {
        if to_sluice != self.received.get() as u32 {
            return Err(Miss::Unasked);
        }
        if answer.body_bytes < self.body_bytes_min.get() {
            return Err(Miss::Small);
        }
        if answer.body_bytes > self.body_bytes_max.get() {
            return Err(Miss::Large);
        }
        if u64::from(size) > u64::from(answer.head_bytes) + answer.body_bytes {
            return Err(Miss::Surplus);
        }
        self.judge(size, 0, seen)
    }

    /// For the program, of a later message.
    #[inline(always)]
    pub fn judge_next(&self, size: u32, seen: &Seen) -> Result<(), Miss> {
        let sent = self.sent.get();
        if u64::from(size) > self.total.get().wrapping_sub(sent) {
            return Err(Miss::Surplus);
        }
        self.judge(size, sent, seen)
    }

    #[inline(always)]
    fn judge(&self, size: u32, sent: u64, seen: &Seen) -> Result<(), Miss> {
        if !seen.alive {
            return Err(Miss::Client);
        }
        if seen.sequence != (self.sequence.get() as u32).wrapping_add(sent as u32) {
            return Err(Miss::Order);
        }
        // Each segment has a structure of its own, and a message of many pieces takes more than one.
        let overhead = 4096 + size / 8;
        if size.saturating_add(overhead) > seen.room { Err(Miss::Room) } else { Ok(()) }
    }

    /// For the program: notes what the first message says, once it may go.
    #[inline(always)]
    pub fn begin(&self, answer: &Answer, now_ns: u64) {
        let head_bytes = answer.head_bytes - answer.cut_bytes;
        self.status.set(u64::from(answer.status));
        self.head_bytes.set(u64::from(head_bytes));
        self.total.set(u64::from(head_bytes) + answer.body_bytes);
        self.first_ns.set(now_ns);
    }

    /// For the program: `size` bytes go to the client. Gives the slot back.
    #[inline(always)]
    pub fn leave_sent(&self, size: u32, now_ns: u64) {
        let sent = self.sent.get() + u64::from(size);
        self.sent.set(sent);
        self.last_ns.set(now_ns);
        let whole = sent == self.total.get();
        self.step(Phase::Busy, if whole { Phase::Done } else { Phase::Running });
    }

    /// For the program: this message and all that follow go to sluice. Gives the slot back.
    #[inline(always)]
    pub fn leave_rest(&self, reason: u32) {
        self.reason.set(u64::from(reason));
        self.step(Phase::Busy, Phase::Left);
    }
}
