//! Bytes that identify where they belong.

use std::vec::Vec;

/// Responses are numbered from 1; this number stands for bytes that were not requested.
pub(super) const UNASKED: u32 = 0;
/// The position of the single byte that stands for an error response of sluice.
pub(super) const ERROR: u32 = 999;

/// The position of the first byte of the line that is added for the client.
pub(super) const ADDED: u32 = 500;

/// One byte of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Byte {
    pub(super) answer: u32,
    pub(super) at: u32,
}

/// A response as the application sends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    pub(super) number: u32,
    pub(super) head: u32,
    /// Bytes that are cut out of the head, from its second byte on.
    pub(super) cut: u32,
    pub(super) body: u32,
    /// Bytes beyond what the head announces.
    pub(super) surplus: u32,
    /// Bytes that the client's head has in addition, after its first byte.
    pub(super) added: u32,
}

impl Text {
    /// The bytes from `start` on, at most `length`.
    pub(super) fn part(&self, start: u32, length: u32) -> Vec<Byte> {
        let whole = self.head + self.body;
        let end = (start + length).min(whole + self.surplus);
        (start..end).map(|at| Byte { answer: if at < whole { self.number } else { UNASKED }, at }).collect()
    }

    pub(super) fn length(&self) -> u32 {
        self.head + self.body + self.surplus
    }

    /// The bytes that the client's head has in addition.
    pub(super) fn additional(&self) -> impl Iterator<Item = Byte> + use<> {
        let number = self.number;
        (ADDED..ADDED + self.added).map(move |at| Byte { answer: number, at })
    }

    /// Whether it is such a byte.
    pub(super) fn is_additional(byte: Byte) -> bool {
        (ADDED..ERROR).contains(&byte.at)
    }

    /// Whether it is a byte of the head that only sluice receives.
    pub(super) fn is_cut(&self, byte: Byte) -> bool {
        byte.answer == self.number && (1..=self.cut).contains(&byte.at)
    }

    /// The byte that a client receives at that position.
    pub(super) fn expected(&self, index: u32) -> Option<Byte> {
        let at = match index {
            0 => 0,
            index if index <= self.added => ADDED + index - 1,
            index => index - self.added + self.cut,
        };
        if at >= ADDED {
            return Some(Byte { answer: self.number, at });
        }
        (at < self.head + self.body).then_some(Byte { answer: self.number, at })
    }

    /// Number of bytes that a client receives.
    pub(super) fn expected_length(&self) -> u32 {
        self.head - self.cut + self.added + self.body
    }
}
