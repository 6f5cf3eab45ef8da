//! Bytes in memory that sluice and the programs share.

use crate::word::Word;

/// Room for a head that is kept until its body starts; a longer head is forwarded at once. A power of two.
pub const HELD_BYTES_MAX: usize = 1024;

/// A head, which the program writes as bytes and sluice reads as words.
#[repr(C)]
#[cfg_attr(not(target_arch = "bpf"), derive(Debug))]
pub struct Text([Word; HELD_BYTES_MAX / 8]);

#[cfg(not(target_arch = "bpf"))]
impl Default for Text {
    fn default() -> Self {
        Self(core::array::from_fn(|_| Word::default()))
    }
}

#[cfg(not(target_arch = "bpf"))]
impl Text {
    /// Its first bytes. For sluice, once the phase shows that the program no longer writes.
    #[must_use]
    pub fn bytes(&self, count: u64) -> alloc::vec::Vec<u8> {
        let count = (count as usize).min(HELD_BYTES_MAX);
        let words = &self.0[..count.div_ceil(8)];
        let mut bytes: alloc::vec::Vec<u8> = words.iter().flat_map(|word| word.get().to_ne_bytes()).collect();
        bytes.truncate(count);
        bytes
    }

    /// Writes the text as the program would, for simulations.
    pub fn set(&self, bytes: &[u8]) {
        for (word, piece) in self.0.iter().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..piece.len()].copy_from_slice(piece);
            word.set(u64::from_ne_bytes(whole));
        }
    }
}
