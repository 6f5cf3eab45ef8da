//! What the program on an application's socket does with a slot.

use super::{Answer, HELD_BYTES_MAX, Miss, PHASE, Phase, Seen, Slot};

/// Sixty small answers, each in a page of its own. A client that reads has its queue empty again and again.
const SLACK_MAX: u64 = 256 << 10;

impl Slot {
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
        if !matches!(phase, Phase::Armed | Phase::Running | Phase::Held)
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

    /// For the program, of the first message: whether the answer may go to the client, with `to_sluice` bytes sent to
    /// sluice before. Whether the message may, [`Slot::judge`] says; one that is kept need not be asked for.
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

    /// For the program, of a later message.
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

    /// Bytes that have been sent in truth, if a part of the last message has not. The kernel takes a part where it cannot
    /// wait for room, and says so to the application, which goes on from there. While somebody is inside a call on the
    /// socket it may still be taking the rest, and a message of which it has nothing it may be about to take. In a head
    /// lines were cut out, so an application that is told how much of it was taken goes on from elsewhere.
    #[inline(always)]
    fn taken(&self, sent: u64, seen: &Seen) -> Option<u64> {
        let expected = (self.sequence.get() as u32).wrapping_add(sent as u32);
        let missing = u64::from(expected.wrapping_sub(seen.sequence));
        let is_part = missing != 0 && missing < self.last_bytes.get();
        let taken = sent.wrapping_sub(missing);
        (seen.alive && seen.quiet && is_part && taken >= self.head_bytes.get()).then_some(taken)
    }

    /// For the program: whether a message may go to the client, with `sent` bytes of the answer sent there before.
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
        // Each segment has a structure of its own, and a message of many pieces takes more than one.
        let overhead = 4096 + size / 8;
        if size.saturating_add(overhead) > seen.room { Err(Miss::Room) } else { Ok(()) }
    }

    /// For the program: notes what the head says, once it may go.
    #[inline(always)]
    pub fn begin(&self, answer: &Answer, now_ns: u64) {
        let head_bytes = answer.head_bytes - answer.cut_bytes;
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

    /// For the program: whether `bytes` more may be behind the client's send queue that TCP does not count.
    #[inline(always)]
    pub fn may_slack(&self, bytes: u32) -> bool {
        self.slack.get() + u64::from(bytes) <= SLACK_MAX
    }

    /// For the program: notes them.
    #[inline(always)]
    pub fn add_slack(&self, bytes: u32) {
        self.slack.set(self.slack.get() + u64::from(bytes));
    }

    /// For the program, of a head that came alone: whether to keep it until the body begins.
    #[inline(always)]
    pub fn may_hold(&self, answer: &Answer, size: u32) -> bool {
        self.hold.get() != 0
            && size == answer.head_bytes
            && answer.body_bytes != 0
            && size as usize <= HELD_BYTES_MAX
    }

    /// For the program: keeps a head whose `size` bytes are in the text by now. Gives the slot back.
    #[inline(always)]
    pub fn leave_held(&self, size: u32, now_ns: u64) {
        self.first_ns.set(now_ns);
        self.held.set(u64::from(size));
        self.step(Phase::Busy, Phase::Held);
    }

    /// For the program: `size` bytes go to the client. Gives the slot back.
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

    /// For the program: this message and all that follow go to sluice. Gives the slot back.
    #[inline(always)]
    pub fn leave_rest(&self, reason: u32) {
        self.reason.set(u64::from(reason));
        self.step(Phase::Busy, Phase::Left);
    }
}
