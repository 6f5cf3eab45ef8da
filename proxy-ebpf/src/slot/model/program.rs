//! The program's run for a message, one step at a time: `bin/bypass/direct.rs` in the same order.

use std::vec::Vec;

use super::bytes::{Byte, Text, UNASKED};
use super::ends::{Connection, Push};
use super::world::{ROOM, World};
use crate::slot::{Answer, Miss, Phase, REFUSALS, Seen};

/// What each segment and message counts in addition to its bytes.
const OVERHEAD: usize = 4096 + 1;

/// The progress of a run.
#[derive(Clone, Debug)]
enum Stage {
    Enter,
    Look { phase: Phase },
    LookAgain { phase: Phase, seen: Seen },
    Judge { phase: Phase, seen: Seen },
    Keep,
    Redirect,
    Promise { cookie: u64 },
    Leave { reason: u32 },
    Pass,
}

pub(super) struct Run {
    message: Vec<Byte>,
    stage: Stage,
}

impl Run {
    pub(super) fn new(message: Vec<Byte>) -> Self {
        Self { message, stage: Stage::Enter }
    }
}

impl World {
    /// Runs one step.
    pub(super) fn step(&self, connection: &Connection) {
        // Taken out, because other actors may look at the connection while this one acts; they never touch the run.
        let Some(Run { mut message, stage }) = connection.run.borrow_mut().take() else {
            return;
        };
        if let Some(stage) = self.next(connection, &mut message, stage) {
            *connection.run.borrow_mut() = Some(Run { message, stage });
        }
    }

    fn next(&self, connection: &Connection, message: &mut Vec<Byte>, stage: Stage) -> Option<Stage> {
        let slot = &self.slots[connection.slot as usize];
        let size = message.len() as u32;
        Some(match stage {
            Stage::Enter if connection.slot == 0 => Stage::Pass,
            Stage::Enter => match slot.enter(connection.number as u64) {
                Some(phase) => Stage::Look { phase },
                None => Stage::Pass,
            },
            Stage::Look { phase } => {
                if phase == Phase::Armed && self.parse(message).is_none() {
                    return Some(Stage::Leave { reason: REFUSALS });
                }
                let address = slot.client_socket.get() as usize;
                let client = self.clients[address].borrow();
                let room = (ROOM + OVERHEAD - client.queue.len()) as u32;
                let (sequence, unsent_room) = (client.write_seq, u32::MAX);
                let scarce = self.chance(60);
                let seen = Seen { alive: false, sequence, quiet: true, room, unsent_room, scarce };
                Stage::LookAgain { phase, seen }
            }
            Stage::LookAgain { phase, seen } => {
                let (cookie, address) = (slot.client.get(), slot.client_socket.get() as usize);
                let client = self.clients[address].borrow();
                Stage::Judge {
                    phase,
                    seen: Seen { alive: client.is_open() && client.cookie == cookie, ..seen },
                }
            }
            Stage::Judge { phase, seen } => return self.judge(connection, message, phase, &seen),
            Stage::Keep => {
                *connection.kept.borrow_mut() = std::mem::take(message);
                slot.leave_held(size, 0);
                return None;
            }
            Stage::Redirect => {
                let cookie = slot.client.get();
                let found = self.clients.iter().any(|client| {
                    let client = client.borrow();
                    client.cookie == cookie && client.in_map && client.is_open()
                });
                if found && !self.chance(30) {
                    Stage::Promise { cookie }
                } else {
                    Stage::Leave { reason: Miss::Redirect as u32 }
                }
            }
            Stage::Promise { cookie } => {
                slot.leave_sent(size, 0);
                let bytes = std::mem::take(message);
                connection.pushes.borrow_mut().push_back(Push { cookie, bytes });
                return None;
            }
            Stage::Leave { reason } => {
                slot.leave_rest(reason);
                Stage::Pass
            }
            Stage::Pass => {
                connection.to_sluice.set(connection.to_sluice.get().wrapping_add(size));
                connection.inbox.borrow_mut().extend(message.drain(..));
                return None;
            }
        })
    }

    fn judge(
        &self,
        connection: &Connection,
        message: &mut Vec<Byte>,
        phase: Phase,
        seen: &Seen,
    ) -> Option<Stage> {
        let slot = &self.slots[connection.slot as usize];
        let size = message.len() as u32;
        if phase == Phase::Running {
            return Some(match slot.judge_next(size, seen) {
                Ok(()) => Stage::Redirect,
                Err(miss) => Stage::Leave { reason: miss as u32 },
            });
        }
        let kept = if phase == Phase::Held { connection.kept.borrow().clone() } else { Vec::new() };
        let whole = [&kept[..], message].concat();
        let text = self.parse(&whole)?;
        let answer = Answer {
            status: 200,
            head_bytes: text.head,
            cut_bytes: text.cut,
            body_bytes: text.body.into(),
            added_bytes: slot.line.bytes(),
        };
        let size = whole.len() as u32;
        if let Err(miss) = slot.judge_answer(&answer, size, connection.to_sluice.get()) {
            return Some(Stage::Leave { reason: miss as u32 });
        }
        if phase == Phase::Armed && slot.may_hold(&answer, size) {
            return Some(Stage::Keep);
        }
        if let Err(miss) = slot.judge(size + answer.added_bytes, 0, seen) {
            return Some(Stage::Leave { reason: miss as u32 });
        }
        // There may be no memory to put it back in front.
        if phase == Phase::Held && self.chance(30) {
            return Some(Stage::Leave { reason: Miss::Unreadable as u32 });
        }
        *message = whole;
        message.retain(|byte| !text.is_cut(*byte));
        if answer.added_bytes != 0 {
            message.splice(1..1, text.additional());
        }
        slot.begin(&answer, 0);
        Some(Stage::Redirect)
    }

    /// The response whose whole head is at the start of a message.
    fn parse(&self, message: &[Byte]) -> Option<Text> {
        let first = message.first()?;
        let text = self.text(*first)?;
        (first.at == 0 && message.len() >= text.head as usize).then_some(text)
    }

    /// The response to which a byte belongs.
    pub(super) fn text(&self, byte: Byte) -> Option<Text> {
        if byte.answer == UNASKED {
            return None;
        }
        self.texts.borrow().iter().find(|text| text.number == byte.answer).copied()
    }

    /// The program on sluice's socket, for a request; then the application receives it.
    pub(super) fn sender(&self, connection: &Connection) {
        match connection.sending.get() {
            Some((text, false)) => {
                connection.sending.set(Some((text, true)));
                if connection.slot != 0 {
                    self.slots[connection.slot as usize].request_sent(connection.number as u64);
                }
            }
            Some((text, true)) => {
                connection.sending.set(None);
                connection.requests.borrow_mut().push_back(text);
            }
            None => {}
        }
    }
}
