//! Which QUIC handshakes resume a session. rustls knows, but the protocol library between it and us does not pass it on.
//!
//! A session is recognised while the client's first message is processed, in a call on the worker's thread that belongs to
//! one connection. What rustls asks for sessions notes here that it has found one, and the caller looks right after.

use std::cell::Cell;
use std::sync::Arc;

use rustls::server::{ProducesTickets, StoresServerSessions};

thread_local! {
    static IS_RECOGNISED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a session was recognised on this thread since this was last asked.
pub fn take_recognised() -> bool {
    IS_RECOGNISED.replace(false)
}

fn note<T>(found: Option<T>) -> Option<T> {
    found.inspect(|_| IS_RECOGNISED.set(true))
}

/// Tickets that are noted when they are recognised.
#[derive(Debug)]
pub(super) struct NotedTickets(pub(super) Arc<dyn ProducesTickets>);

impl ProducesTickets for NotedTickets {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        note(self.0.decrypt(cipher))
    }
}

/// The same for stored sessions.
#[derive(Debug)]
pub(super) struct NotedSessions(pub(super) Arc<dyn StoresServerSessions>);

impl StoresServerSessions for NotedSessions {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.0.put(key, value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        note(self.0.get(key))
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        note(self.0.take(key))
    }

    fn can_cache(&self) -> bool {
        self.0.can_cache()
    }
}
