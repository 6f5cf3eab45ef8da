//! The operations on a slot of the program on an application's socket.

use super::{Answer, HELD_BYTES_MAX, Miss, PHASE, Phase, Seen, Slot};

/// Sixty small responses, each in its own page. The queue of a client that reads becomes empty again and again.
const SLACK_MAX: u64 = 256 << 10;

impl Slot {
    /// For the program: from now on, what the application sends is the response.
    #[inline(always)]
    pub fn request_sent(&self, owner: u64) {
        let word = self.phase.get_acquire();
        if Phase::of_word(word) == Phase::Prepared && self.owner.get() == owner {
            self.phase.swap(word, (word & !PHASE) | Phase::Armed as u64);
        }
    }

    /// For the program: takes the slot for a message. Returns the phase that it was in.
    #[inline(always)]
    pub fn enter(&self, owner: u64) -> Option<Phase> {
        let word = self.phase.get_acquire();
        let phase = Phase::of_word(word);
        // The owner is read after the phase: if it is an older owner, the phase is older too, and the swap fails.
        if !matches!(phase, Phase::Armed | Phase::Running | Phase::Held)
            || self.owner.get() != owner
            || !self.phase.swap(word, (word & !PHASE) | Phase::Busy as u64)
        {
            return None;
        }
        // If loads may be reordered, the owner may still have been an older one. A message of the current owner may
        // have found the slot busy and gone to sluice, so everything after it must go there, too.
        if self.owner.get() != owner {
            self.leave_rest(Miss::Wanted as u32);
            return None;
        }
        Some(phase)
    }

    /// For the program, about the first message: whether the response may go to the client, after `to_sluice` bytes
    /// sent to sluice. [`Slot::judge`] decides about the message itself, unless the head is kept.
    #[inline(always)]
    pub fn judge_answer(&self, answer: &Answer, size: u32, to_sluice: u32) -> Result<(), Miss> {
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
        Ok(())
    }

    /// For the program, about a later message.
    #[inline(always)]
    pub fn judge_next(&self, size: u32, seen: &Seen) -> Result<(), Miss> {
        let sent = self.sent.get();
        if let Some(taken) = self.taken(sent, seen) {
            self.sent.set(taken);
            return Err(Miss::Partial);
        }
        if u64::from(size) > self.total.get().wrapping_sub(sent) {
            return Err(Miss::Surplus);
        }
        self.judge(size, sent, seen)
    }

    /// Bytes that have really been sent, if part of the last message has not. If the kernel cannot wait for room, it
    /// takes only a part and tells the application, which continues from there. While a process is inside a call on the
    /// socket, the kernel may still be taking the rest, or be about to take a message of which it has nothing yet. If
    /// lines were cut out of a head, an application that learns how much was taken continues from the wrong place.
    #[inline(always)]
    fn taken(&self, sent: u64, seen: &Seen) -> Option<u64> {
        let expected = (self.sequence.get() as u32).wrapping_add(sent as u32);
        let missing = u64::from(expected.wrapping_sub(seen.sequence));
        let is_part = missing != 0 && missing < self.last_bytes.get();
        let taken = sent.wrapping_sub(missing);
        (seen.alive && seen.quiet && is_part && taken >= self.head_bytes.get()).then_some(taken)
    }

    /// For the program: whether a message may go to the client, after `sent` bytes of the response.
    #[inline(always)]
    pub fn judge(&self, size: u32, sent: u64, seen: &Seen) -> Result<(), Miss> {
        if !seen.alive {
            return Err(Miss::Client);
        }
        if seen.sequence != (self.sequence.get() as u32).wrapping_add(sent as u32) {
            return Err(Miss::Order);
        }
        if seen.scarce {
            return Err(Miss::MemoryPressure);
        }
        if size >= seen.unsent_room {
            return Err(Miss::LowMark);
        }
        // Each segment has its own structure, and a message of many pieces takes several segments.
        let overhead = 4096 + size / 8;
        if size.saturating_add(overhead) > seen.room { Err(Miss::Room) } else { Ok(()) }
    }

    /// For the program: records what the head says, once it may be sent.
    #[inline(always)]
    pub fn begin(&self, answer: &Answer, now_ns: u64) {
        let head_bytes = answer.seen_bytes(answer.head_bytes);
        self.status.set(u64::from(answer.status));
        self.head_bytes.set(u64::from(head_bytes));
        self.total.set(u64::from(head_bytes) + answer.body_bytes);
        if self.held.get() == 0 {
            self.first_ns.set(now_ns);
        } else {
            self.held.set(0);
            self.gap_ns.set(now_ns.wrapping_sub(self.first_ns.get()));
        }
    }

    /// For the program: whether `bytes` more bytes may be in the client's send queue that TCP does not count.
    #[inline(always)]
    pub fn may_slack(&self, bytes: u32) -> bool {
        self.slack.get() + u64::from(bytes) <= SLACK_MAX
    }

    /// For the program: adds such bytes.
    #[inline(always)]
    pub fn add_slack(&self, bytes: u32) {
        self.slack.set(self.slack.get() + u64::from(bytes));
    }

    /// For the program, about a head that arrived alone: whether to keep it until the body starts.
    #[inline(always)]
    pub fn may_hold(&self, answer: &Answer, size: u32) -> bool {
        self.hold.get() != 0
            && size == answer.head_bytes
            && answer.body_bytes != 0
            && size as usize <= HELD_BYTES_MAX
    }

    /// For the program: keeps a head whose `size` bytes are now in the text. Returns the slot.
    #[inline(always)]
    pub fn leave_held(&self, size: u32, now_ns: u64) {
        self.first_ns.set(now_ns);
        self.held.set(u64::from(size));
        self.step(Phase::Busy, Phase::Held);
    }

    /// For the program: `size` bytes go to the client. Returns the slot.
    #[inline(always)]
    pub fn leave_sent(&self, size: u32, now_ns: u64) {
        let before = self.sent.get();
        if before != 0 && before == self.head_bytes.get() && self.gap_ns.get() == 0 {
            self.gap_ns.set(now_ns.wrapping_sub(self.first_ns.get()));
        }
        let sent = before + u64::from(size);
        self.sent.set(sent);
        self.last_bytes.set(u64::from(size));
        self.last_ns.set(now_ns);
        let whole = sent == self.total.get();
        self.step(Phase::Busy, if whole { Phase::Done } else { Phase::Running });
    }

    /// For the program: this message and all later ones go to sluice. Returns the slot.
    #[inline(always)]
    pub fn leave_rest(&self, reason: u32) {
        self.reason.set(u64::from(reason));
        self.step(Phase::Busy, Phase::Left);
    }
}
