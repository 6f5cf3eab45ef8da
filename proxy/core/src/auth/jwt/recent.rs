//! Tokens that were right a moment ago: a client sends its own with every request, and a signature takes longer to check
//! than a request to forward.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::TokenHolder;

/// How long a token stays right without being checked, in seconds.
const KEPT_S: u64 = 60;
/// Parts of the memory, so that workers seldom wait for each other.
const PARTS: usize = 16;
/// Maximum number of tokens of one part.
const OF_PART_MAX: usize = 256;
/// Maximum bytes of the fields of a token that is remembered: 4096 of them take 8 MB at most.
const FIELDS_BYTES_MAX: usize = 2048;

type Mark = [u8; 32];
type Part = HashMap<Mark, (u64, Arc<TokenHolder>)>;

/// Remembered tokens, by a digest with a secret of this process.
pub(super) struct RecentTokens {
    secret: [u8; 16],
    parts: [Mutex<Part>; PARTS],
}

impl RecentTokens {
    pub(super) fn new() -> Self {
        let mut secret = [0; 16];
        // The keys of each are of the system's generator.
        secret
            .chunks_mut(8)
            .for_each(|part| part.copy_from_slice(&RandomState::new().hash_one(0).to_le_bytes()));
        Self { secret, parts: Default::default() }
    }

    /// The mark of a token under a set of keys: with another set, it is another one.
    pub(super) fn mark(&self, token: &[u8], version: u64) -> Mark {
        let mut digest = Sha256::new();
        digest.update(self.secret);
        digest.update(version.to_le_bytes());
        digest.update(token);
        digest.finalize().into()
    }

    fn part(&self, mark: &Mark) -> std::sync::MutexGuard<'_, Part> {
        self.parts[usize::from(mark[0]) % PARTS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, mark: &Mark, now_s: u64) -> Option<Arc<TokenHolder>> {
        let part = self.part(mark);
        part.get(mark).filter(|(until_s, _)| *until_s > now_s).map(|(_, holder)| Arc::clone(holder))
    }

    pub(super) fn note(&self, mark: Mark, holder: &Arc<TokenHolder>, now_s: u64) {
        let size: usize = holder.fields.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > FIELDS_BYTES_MAX {
            return;
        }
        let mut part = self.part(&mark);
        if part.len() >= OF_PART_MAX {
            part.retain(|_, (until_s, _)| *until_s > now_s);
        }
        if part.len() < OF_PART_MAX {
            part.insert(mark, ((now_s + KEPT_S).min(holder.until_unix_s), Arc::clone(holder)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(until_unix_s: u64) -> Arc<TokenHolder> {
        Arc::new(TokenHolder { user: None, fields: Vec::new(), until_unix_s })
    }

    #[test]
    fn a_token_is_remembered_for_a_while_but_never_beyond_its_expiry() {
        let recent = RecentTokens::new();
        let (long, short) = (recent.mark(b"long", 1), recent.mark(b"short", 1));
        recent.note(long, &holder(u64::MAX), 0);
        recent.note(short, &holder(10), 0);
        assert!(recent.get(&long, KEPT_S - 1).is_some() && recent.get(&long, KEPT_S).is_none());
        assert!(recent.get(&short, 9).is_some() && recent.get(&short, 10).is_none());
        assert!(recent.get(&recent.mark(b"long", 2), 0).is_none());
    }

    #[test]
    fn the_number_is_limited() {
        let recent = RecentTokens::new();
        let marks: Vec<Mark> = (0..20_000u32).map(|number| recent.mark(&number.to_le_bytes(), 0)).collect();
        marks.iter().for_each(|mark| recent.note(*mark, &holder(u64::MAX), 0));
        let kept = marks.iter().filter(|mark| recent.get(mark, 0).is_some()).count();
        assert!(kept <= PARTS * OF_PART_MAX && kept > PARTS * OF_PART_MAX / 2, "{kept}");
    }
}
