//! The parts of the tests: the proxy as a process, scripted origins, and clients that exchange raw bytes.

mod answer;
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

pub(crate) use answer::{Answer, until};
pub(crate) use origin::{Dead, Origin, Peer, ok};
pub(crate) use proxy::{ASSISTS, Proxy, RUNTIME, Setup, allowed_cores};
pub(crate) use secure::{Authority, Identity, Secure};
pub(crate) use stray::{Stray, upgrade, upgrade_with};
pub(crate) use wire::{Message, Wire};

/// Maximum wait for anything that must happen; only a failing test waits that long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `ask` until it returns something.
pub(crate) fn poll<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < PATIENCE, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A port that is free now on every IPv4 address, and that the kernel does not assign by itself: it assigns ports from 32768 on.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    poll("a free port", || {
        let nth = std::process::id().wrapping_mul(101).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + u16::try_from(nth % 20_000).unwrap();
        TcpListener::bind(("0.0.0.0", port)).is_ok().then_some(port)
    })
}

/// Writes a shell script. Not by this process: a child forked by another test could hold the file open for writing,
/// which prevents executing it.
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

/// Bytes in which losses, duplicates and swaps show.
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
    assert_eq!((got.len(), differs), (wanted.len(), None), "length, and the first different byte");
}
