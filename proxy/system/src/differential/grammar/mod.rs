//! Generates the bytes of a case from its seed and index only: messages from a grammar with unusual spellings, then
//! mutations.

mod chunks;
mod fields;
mod framing;
mod mutation;
mod request;
mod response;
mod target;

use fastrand::Rng;

pub(super) use response::response;

/// Percentage of cases that only the grammar generates. The others are mutated at byte level too.
const UNMUTATED_PERCENT: u8 = 70;
/// Percentage of cases that are sent in several writes.
const SPLIT_PERCENT: u8 = 40;
/// Maximum further writes.
const CUTS_MAX: usize = 4;

/// The bytes that one peer writes.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) bytes: Vec<u8>,
    /// The positions where one write ends and the next starts, in order.
    pub(super) cuts: Vec<usize>,
}

impl Case {
    /// All of `bytes` in one write.
    pub(super) fn whole(bytes: Vec<u8>) -> Self {
        Self { bytes, cuts: Vec::new() }
    }

    /// The bytes of each write.
    pub(super) fn writes(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.cuts.iter().copied().chain([self.bytes.len()]);
        let starts = [0].into_iter().chain(self.cuts.iter().copied());
        starts.zip(ends).map(|(start, end)| self.bytes.get(start..end).unwrap_or_default())
    }
}

/// The random generator of one case.
pub(super) fn dice(seed: u64, index: u64) -> Rng {
    // Multiplied by an odd constant, so that neighbours share nothing.
    Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03))
}

/// The bytes that the client of one case sends.
pub(super) fn requests(seed: u64, index: u64) -> Case {
    let mut rng = dice(seed, index);
    finish(&mut rng, request::requests)
}

/// Generates bytes, mutates some of them, and divides them into writes.
fn finish(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> Vec<u8>) -> Case {
    let mut bytes = make(rng);
    if rng.u8(..100) >= UNMUTATED_PERCENT {
        mutation::mutate(rng, &mut bytes);
    }
    let mut cuts = Vec::new();
    if rng.u8(..100) < SPLIT_PERCENT && bytes.len() > 1 {
        cuts.extend((0..rng.usize(1..=CUTS_MAX)).map(|_| rng.usize(1..bytes.len())));
        cuts.sort_unstable();
        cuts.dedup();
    }
    Case { bytes, cuts }
}

/// One of `choices`.
fn pick<'c, T: ?Sized>(rng: &mut Rng, choices: &[&'c T]) -> &'c T {
    choices[rng.usize(..choices.len())]
}

/// True in `percent` of cases.
fn chance(rng: &mut Rng, percent: u8) -> bool {
    rng.u8(..100) < percent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_depends_on_its_seed_and_index_only() {
        let (one, same) = (requests(7, 9), requests(7, 9));
        assert_eq!((&one.bytes, &one.cuts), (&same.bytes, &same.cuts));
        assert_ne!(one.bytes, requests(7, 10).bytes);
        assert_ne!(one.bytes, requests(8, 9).bytes);
    }

    #[test]
    fn writes_are_all_of_the_bytes() {
        for index in 0..200 {
            let case = requests(1, index);
            assert_eq!(case.writes().collect::<Vec<_>>().concat(), case.bytes);
        }
    }
}
