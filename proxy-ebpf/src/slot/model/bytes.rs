//! Bytes that say where they belong.

use std::vec::Vec;

/// Answers have numbers from 1; this stands for what nobody asked for.
pub(super) const UNASKED: u32 = 0;
/// The place of the one byte that stands for an error of sluice's own.
pub(super) const ERROR: u32 = 999;

/// One byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Byte {
    pub(super) answer: u32,
    pub(super) at: u32,
}

/// An answer as the application sends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub(super) number: u32,
    pub(super) head: u32,
    /// Bytes that are cut out of the head, from its second on.
    pub(super) cut: u32,
    pub(super) body: u32,
    /// Bytes more than its head says.
    pub(super) surplus: u32,
}

impl Text {
    /// What is sent from `start` on, at most `length` bytes.
    pub(super) fn part(&self, start: u32, length: u32) -> Vec<Byte> {
        let whole = self.head + self.body;
        let end = (start + length).min(whole + self.surplus);
        (start..end).map(|at| Byte { answer: if at < whole { self.number } else { UNASKED }, at }).collect()
    }

    pub(super) fn length(&self) -> u32 {
        self.head + self.body + self.surplus
    }

    /// Whether a byte of its head is for sluice alone.
    pub(super) fn is_cut(&self, byte: Byte) -> bool {
        byte.answer == self.number && (1..=self.cut).contains(&byte.at)
    }

    /// The byte of it that a client gets at that place.
    pub(super) fn expected(&self, index: u32) -> Option<Byte> {
        let at = if index == 0 { 0 } else { index + self.cut };
        (at < self.head + self.body).then_some(Byte { answer: self.number, at })
    }

    /// Bytes that a client gets.
    pub(super) fn expected_length(&self) -> u32 {
        self.head - self.cut + self.body
    }
}
