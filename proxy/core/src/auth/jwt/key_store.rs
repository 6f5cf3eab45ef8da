//! The keys of one issuer, as they were fetched last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwapOption;
use tokio::sync::watch;

use super::KeySet;

/// How old keys must be before a token with an unknown key has them fetched again, in milliseconds: anybody can make
/// such tokens.
const UNKNOWN_KEY_MS: u64 = 10_000;
/// How long after a failure the next attempt is made, in milliseconds.
const AFTER_FAILURE_MS: u64 = 5_000;
/// How old keys are when they are not used any more, in milliseconds: an issuer that has been away for a day may have
/// withdrawn one of them.
const KEPT_MS: u64 = 24 * 3600 * 1000;

/// The keys, shared by the routes that use them.
pub struct KeyStore {
    keys: ArcSwapOption<KeySet>,
    /// Grows with each set.
    version: AtomicU64,
    fetched_ms: AtomicU64,
    /// When the next attempt may be made.
    next_ms: AtomicU64,
    /// Whether they are being fetched. Waiting for a change of it is waiting for the end.
    is_fetching: watch::Sender<bool>,
    /// They are of a file, and never fetched.
    is_fixed: bool,
}

/// What to do for a request.
pub enum Supply {
    /// Use these.
    Fresh(Arc<KeySet>),
    /// Use these, and fetch them again.
    Old(Arc<KeySet>),
    /// Fetch them, and wait.
    None,
    /// They cannot be had for now.
    Unavailable,
}

impl KeyStore {
    /// Keys that will be fetched.
    pub fn empty() -> Self {
        Self {
            keys: ArcSwapOption::empty(),
            version: AtomicU64::new(0),
            fetched_ms: AtomicU64::new(0),
            next_ms: AtomicU64::new(0),
            is_fetching: watch::Sender::new(false),
            is_fixed: false,
        }
    }

    /// Keys of a file.
    pub fn fixed(keys: KeySet) -> Self {
        Self { keys: ArcSwapOption::from_pointee(keys), is_fixed: true, ..Self::empty() }
    }

    /// The keys for a request; `refresh_ms` is how old they may be.
    pub fn supply(&self, refresh_ms: u64, now_ms: u64) -> Supply {
        let Some(keys) = self.keys.load_full() else {
            let may_try = self.may_try(now_ms) || *self.is_fetching.borrow();
            return if may_try { Supply::None } else { Supply::Unavailable };
        };
        if self.is_fixed {
            return Supply::Fresh(keys);
        }
        match now_ms.saturating_sub(self.fetched_ms.load(Relaxed)) {
            age if age < refresh_ms => Supply::Fresh(keys),
            age if age < KEPT_MS => Supply::Old(keys),
            _ if self.may_try(now_ms) || *self.is_fetching.borrow() => Supply::None,
            _ => Supply::Unavailable,
        }
    }

    /// Whether to fetch them for a token of an unknown key.
    pub fn may_have_changed(&self, now_ms: u64) -> bool {
        let age = now_ms.saturating_sub(self.fetched_ms.load(Relaxed));
        !self.is_fixed && (*self.is_fetching.borrow() || (age >= UNKNOWN_KEY_MS && self.may_try(now_ms)))
    }

    fn may_try(&self, now_ms: u64) -> bool {
        now_ms >= self.next_ms.load(Relaxed)
    }

    /// Takes the turn to fetch them; false if somebody else has it, or it is too early.
    pub fn begin(&self, now_ms: u64) -> bool {
        self.may_try(now_ms)
            && !self.is_fixed
            && self.is_fetching.send_if_modified(|is| !std::mem::replace(is, true))
    }

    /// Waits for the end of the attempt that is under way.
    pub async fn ended(&self) {
        // The sender is here, so this cannot fail.
        let _ = self.is_fetching.subscribe().wait_for(|is_fetching| !is_fetching).await;
    }

    /// Ends an attempt. After a failure, the keys before stay.
    pub fn end(&self, keys: Option<KeySet>, now_ms: u64) {
        match keys {
            Some(mut keys) => {
                keys.version = self.version.fetch_add(1, Relaxed) + 1;
                self.keys.store(Some(Arc::new(keys)));
                self.fetched_ms.store(now_ms, Relaxed);
            }
            None => self.next_ms.store(now_ms + AFTER_FAILURE_MS, Relaxed),
        }
        self.is_fetching.send_replace(false);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PEM: &[u8] = b"-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";

    fn keys() -> Option<KeySet> {
        Some(KeySet::parse(PEM, false).unwrap())
    }

    #[test]
    fn one_fetches_and_the_others_wait() {
        let store = KeyStore::empty();
        assert!(matches!(store.supply(1000, 0), Supply::None));
        assert!(store.begin(0) && !store.begin(0));
        store.end(keys(), 0);
        assert!(matches!(store.supply(1000, 999), Supply::Fresh(_)));
        assert!(matches!(store.supply(1000, 1000), Supply::Old(_)));
    }

    #[test]
    fn a_failure_keeps_the_keys_for_a_day_and_is_not_repeated_at_once() {
        let store = KeyStore::empty();
        assert!(store.begin(0));
        store.end(None, 0);
        assert!(matches!(store.supply(1000, 1), Supply::Unavailable) && !store.begin(1));
        assert!(store.begin(AFTER_FAILURE_MS));
        store.end(keys(), AFTER_FAILURE_MS);
        let later = AFTER_FAILURE_MS + KEPT_MS;
        assert!(store.begin(later - 1));
        store.end(None, later - 1);
        assert!(matches!(store.supply(1000, later - 1), Supply::Old(_)));
        assert!(matches!(store.supply(1000, later), Supply::Unavailable));
    }

    #[test]
    fn unknown_keys_have_a_young_set_fetched_only_once() {
        let store = KeyStore::empty();
        assert!(store.begin(0));
        store.end(keys(), 0);
        assert!(!store.may_have_changed(UNKNOWN_KEY_MS - 1) && store.may_have_changed(UNKNOWN_KEY_MS));
        assert!(!KeyStore::fixed(keys().unwrap()).may_have_changed(UNKNOWN_KEY_MS));
    }
}
