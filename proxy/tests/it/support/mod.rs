//! What the tests are made of: the proxy as a process, scripted origins, and clients that speak in bytes.

mod origin;
mod proxy;
mod secure;
mod wire;

use std::time::{Duration, Instant};

pub(crate) use origin::{Dead, Origin, Peer, ok};
pub(crate) use proxy::{ASSISTS, Proxy, Setup};
pub(crate) use secure::{Authority, Identity, Secure};
pub(crate) use wire::{Message, Wire};

/// How long anything that must happen is waited for; only a failing test ever waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Asks again and again until there is an answer.
pub(crate) fn poll<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that show when some of them are lost, doubled or swapped.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(next).collect()
}

/// Compares long bodies without printing them.
pub(crate) fn assert_same(got: &[u8], wanted: &[u8]) {
    let differs = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    assert_eq!((got.len(), differs), (wanted.len(), None), "length, and the first byte that differs");
}
