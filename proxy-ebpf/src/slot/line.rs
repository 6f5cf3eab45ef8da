//! A line that the program puts into a response's head, after the status line.

use crate::word::Word;

/// Bytes of the longest line, including its CRLF.
pub const LINE_BYTES_MAX: usize = WORDS * 8;

const WORDS: usize = 7;

/// A header line with its CRLF, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    bytes: u64,
    words: [u64; WORDS],
}

/// A [`Line`] in memory that sluice and the program share: one cache line.
#[repr(C)]
#[cfg_attr(not(target_arch = "bpf"), derive(Debug, Default))]
pub struct AddedLine {
    bytes: Word,
    words: [Word; WORDS],
}

impl Line {
    /// The line of a field; `None` if it is too long. The caller has checked name and value.
    #[cfg(not(target_arch = "bpf"))]
    #[must_use]
    pub fn of_field(name: &[u8], value: &[u8]) -> Option<Self> {
        let mut text = [0; LINE_BYTES_MAX];
        let mut bytes = 0;
        for part in [name, b": ", value, b"\r\n"] {
            text.get_mut(bytes..bytes + part.len())?.copy_from_slice(part);
            bytes += part.len();
        }
        let mut words = [0; WORDS];
        for (word, eight) in words.iter_mut().zip(text.as_chunks().0) {
            *word = u64::from_ne_bytes(*eight);
        }
        Some(Self { bytes: bytes as u64, words })
    }
}

impl AddedLine {
    /// Stores a line. For sluice, while the program has nothing to do.
    #[cfg(not(target_arch = "bpf"))]
    pub(super) fn set(&self, line: &Line) {
        self.bytes.set(line.bytes);
        if line.bytes == 0 {
            return;
        }
        for (word, value) in self.words.iter().zip(line.words) {
            word.set(value);
        }
    }

    /// Bytes of the line; 0 if there is none.
    #[inline(always)]
    pub fn bytes(&self) -> u32 {
        self.bytes.get() as u32
    }

    /// The eight bytes at `index * 8`. Those after the line's end are arbitrary.
    #[inline(always)]
    pub fn word(&self, index: usize) -> u64 {
        self.words[index].get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &AddedLine) -> std::vec::Vec<u8> {
        let words = (0..WORDS).flat_map(|index| line.word(index).to_ne_bytes());
        words.take(line.bytes() as usize).collect()
    }

    #[test]
    fn a_field_is_stored_as_its_line() {
        let added = AddedLine::default();
        for length in 0..=40 {
            let id = std::vec![b'7'; length];
            added.set(&Line::of_field(b"X-Request-Id", &id).expect("it fits"));
            assert_eq!(text(&added), [b"X-Request-Id: ", &id[..], b"\r\n"].concat());
        }
        assert_eq!(Line::of_field(b"X-Request-Id", &[b'7'; 41]), None);
        added.set(&Line::default());
        assert_eq!(added.bytes(), 0);
    }
}
