//! What the tests are made of: the proxy as a process, scripted origins, and clients that speak in bytes.

mod origin;
mod proxy;
mod secure;
mod stray;
mod wire;

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) use origin::{Dead, Origin, Peer, ok};
pub(crate) use proxy::{ASSISTS, Proxy, RUNTIME, Setup};
pub(crate) use secure::{Authority, Identity, Secure};
pub(crate) use stray::{Stray, upgrade, upgrade_with};
pub(crate) use wire::{Message, Wire};

/// How long anything that must happen is waited for; only a failing test ever waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

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

/// A port that is free now, and that the kernel gives to nobody who does not name it: it hands out those from 32768 on.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    poll("a free port", || {
        let nth = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + u16::try_from(nth % 20_000).unwrap();
        TcpListener::bind(("127.0.0.1", port)).is_ok().then_some(port)
    })
}

/// Writes a program for the shell. Not by this process: whatever another test has just forked would hold the file open
/// for writing, which keeps it from being executed.
pub(crate) fn script(path: impl AsRef<Path>, text: &str) {
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("cat > \"$1\" && chmod 755 \"$1\"")
        .arg("sh")
        .arg(path.as_ref())
        .stdin(Stdio::piped());
    let mut writing = shell.spawn().unwrap();
    writing.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(writing.wait().unwrap().success());
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
