//! A control group with little memory for TCP: writes wait for memory, and do not fail. sluice and the origins are in
//! the group, their slow clients are not, as if both ran in a container.
//!
//! Only cgroup v1 has a separate limit for TCP; without its memory controller this is skipped.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use super::readers::{Reader, read_on, read_slowly};
use super::writers::{Way, Writer};
use super::{exchanges, start};
use crate::direct::missed;
use crate::proxy_support::{Proxy, pattern};
use crate::support::wait_for;

const CONTROLLER: &str = "/sys/fs/cgroup/memory";
/// TCP memory of the group, and the size that its clients request: many times that in total.
const LIMIT_BYTES: u64 = 1_500_000;
const SIZE: usize = 1_500_000;
/// Clients of each origin.
const CLIENTS: usize = 8;
const RECEIVE_BUFFER: usize = 40_000;
/// How long the clients are slow, in tenths of a second.
const TICKS: u32 = 10;

/// A group for this test, empty and removed when dropped.
struct Group(PathBuf);

impl Group {
    /// `None` if there are no such groups.
    fn new() -> Option<Self> {
        let folder = PathBuf::from(format!("{CONTROLLER}/sluice-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let group = Self(folder);
        fs::write(group.0.join("memory.kmem.tcp.limit_in_bytes"), LIMIT_BYTES.to_string()).ok()?;
        Some(group)
    }

    /// Runs a function on a thread that is in the group, together with the threads and processes it starts.
    fn inside<T: Send>(&self, does: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                fs::write(self.0.join("tasks"), nix::unistd::gettid().to_string()).unwrap();
                does()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for task in fs::read_to_string(self.0.join("tasks")).unwrap_or_default().lines() {
            let _ = fs::write(format!("{CONTROLLER}/tasks"), task);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// Compares every byte of every response with what was requested.
fn play(direct: bool) {
    let Some(group) = Group::new() else {
        eprintln!("skipped: there is no {CONTROLLER} with a limit for TCP");
        return;
    };
    let content = Arc::new(pattern(SIZE));
    let (writers, proxy) = group.inside(|| {
        let writers = [Way::Level, Way::Blocking]
            .map(|way| Writer::start(way, format!("{way:?}-pressed"), Arc::clone(&content)));
        let proxy = start(&writers, direct);
        (writers, proxy)
    });
    for writer in &writers {
        // All have been served before the first one takes the memory: none of it is released while no one reads.
        let meet = |_| Reader::meet(RECEIVE_BUFFER, proxy.address(), writer.way.host(), &content[..SIZE]);
        let mut readers: Vec<_> = (0..CLIENTS).map(meet).collect();
        readers.iter_mut().for_each(|reader| reader.begin(writer.way.host()));
        read_slowly(&mut readers, TICKS);
        read_on(&mut readers);
    }
    assert!(fallbacks(&proxy) > 0.0, "memory was never short: {}", missed(&proxy));
    // Once all have read, responses are as before.
    let before = exchanges(&proxy);
    let returns = || {
        let mut wire = proxy.connect();
        for _ in 0..3 {
            let answer = wire.ask("GET /2000 HTTP/1.1\r\nHost: level\r\n\r\n");
            assert_eq!(answer.body.len(), 2000);
        }
        exchanges(&proxy) > before
    };
    if direct {
        wait_for("direct returns again", returns);
    }
}

/// Messages that used TCP for lack of memory, and responses that were left to sluice.
fn fallbacks(proxy: &Proxy) -> f64 {
    proxy.metric("sluice_bypass_fallbacks_total{reason=\"memory_pressure\"}")
        + proxy.metric("sluice_direct_return_missed_total{reason=\"memory_pressure\"}")
}

#[test]
#[ignore = "needs root and BPF"]
fn responses_are_complete_with_little_tcp_memory() {
    play(false);
    play(true);
}
