//! Network namespaces for a test, removed when dropped.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::sched::{CloneFlags, setns};

/// Runs `ip` with these arguments.
#[track_caller]
pub(crate) fn ip(words: &str) {
    let status = Command::new("ip").args(words.split_whitespace()).status().expect("ip runs");
    assert!(status.success(), "ip {words}: {status}");
}

/// A namespace with its loopback interface up.
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sl{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}"));
        let made = Self { name };
        ip(&format!("-n {} link set lo up", made.name));
        made
    }

    /// Lets packets on its loopback interface be handled by either core, regardless of the sender.
    pub(crate) fn steer_packets(&self) {
        // This mounts the namespace's own /sys; a plain path would be the host's.
        let steer = "echo 3 >/sys/class/net/lo/queues/rx-0/rps_cpus";
        let status = Command::new("ip").args(["netns", "exec", &self.name, "sh", "-c", steer]).status();
        assert!(status.unwrap().success(), "{steer}");
    }

    /// The path that names it.
    pub(crate) fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Runs a function on a thread inside. Sockets stay in the namespace in which they were created.
    pub(crate) fn inside<T: Send>(&self, does: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).unwrap();
        thread::scope(|scope| {
            let inside = scope.spawn(move || {
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                does()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}
