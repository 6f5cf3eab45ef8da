//! Passwords that were right a moment ago: a browser sends its own with every request, and comparing it takes as long
//! each time.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

/// How long a password stays right without being compared, in milliseconds.
const KEPT_MS: u64 = 60_000;
/// Maximum number of remembered passwords, 40 bytes each.
const RECENT_MAX: usize = 10_000;

/// A digest with a secret of this process: what is remembered is of no use to a reader of its memory.
pub(super) type Mark = [u8; 32];

/// Remembered passwords.
pub(super) struct RecentPasswords {
    secret: [u8; 32],
    until_ms: Mutex<HashMap<Mark, u64>>,
}

impl RecentPasswords {
    pub(super) fn new() -> Self {
        let mut secret = [0; 32];
        // The keys of each are of the system's generator.
        let random = || RandomState::new().hash_one(0).to_le_bytes();
        secret.chunks_mut(8).for_each(|part| part.copy_from_slice(&random()));
        Self { secret, until_ms: Mutex::default() }
    }

    /// The mark of a password for a hash: with another hash, it is another one.
    pub(super) fn mark(&self, hash: &str, password: &[u8]) -> Mark {
        let mut digest = Sha256::new();
        digest.update(self.secret);
        digest.update((hash.len() as u64).to_le_bytes());
        digest.update(hash);
        digest.update(password);
        digest.finalize().into()
    }

    pub(super) fn has(&self, mark: &Mark, now_ms: u64) -> bool {
        let until_ms = self.until_ms.lock().unwrap_or_else(PoisonError::into_inner);
        until_ms.get(mark).is_some_and(|until_ms| *until_ms > now_ms)
    }

    pub(super) fn note(&self, mark: Mark, now_ms: u64) {
        let mut until_ms = self.until_ms.lock().unwrap_or_else(PoisonError::into_inner);
        if until_ms.len() >= RECENT_MAX {
            until_ms.retain(|_, until_ms| *until_ms > now_ms);
        }
        if until_ms.len() < RECENT_MAX {
            until_ms.insert(mark, now_ms + KEPT_MS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_remembered_for_a_while() {
        let recent = RecentPasswords::new();
        let mark = recent.mark("hash", b"secret");
        recent.note(mark, 1000);
        assert!(recent.has(&mark, 1000 + KEPT_MS - 1) && !recent.has(&mark, 1000 + KEPT_MS));
        for (hash, password) in [("hash", &b"other"[..]), ("hashs", b"ecret"), ("other", b"secret")] {
            assert!(!recent.has(&recent.mark(hash, password), 1000), "{hash}");
        }
        assert!(!RecentPasswords::new().has(&mark, 1000));
    }

    #[test]
    fn the_number_is_limited() {
        let recent = RecentPasswords::new();
        (0..2 * RECENT_MAX).for_each(|number| recent.note(recent.mark("hash", &number.to_le_bytes()), 0));
        assert!(!recent.has(&recent.mark("hash", &RECENT_MAX.to_le_bytes()), 0));
        let late = recent.mark("hash", b"late");
        recent.note(late, KEPT_MS);
        assert!(recent.has(&late, KEPT_MS));
    }
}
