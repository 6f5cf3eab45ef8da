//! System calls that are interrupted or fail for lack of memory: strace(1) makes every third one fail while clients are
//! served.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Origin, Proxy, RUNTIME, Setup, ok, poll};

/// Interruptible calls that sluice makes. Calls on non-blocking descriptors are excluded: they are never interrupted,
/// and tokio panics if they are.
const INTERRUPTIBLE: &str = "accept,accept4,clock_nanosleep,connect,epoll_pwait,epoll_wait,flock,io_uring_enter,\
                             nanosleep,poll,ppoll,splice,wait4";
const ROUNDS: usize = 20;

/// strace, attached to all threads of a process until dropped.
struct Saboteur(Child);

impl Saboteur {
    /// `None`, with a note on standard error, if strace is missing or may not attach.
    fn attach(proxy: &Proxy, calls: &str, error: &str) -> Option<Self> {
        let pid = proxy.id();
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-e"]).arg(format!("inject={calls}:error={error}:when=2+3"));
        command.arg("-o").arg(trace(proxy)).args(["-p", &pid.to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => return skipped(&format!("strace: {error}")),
        };
        let attached = poll("strace", || match child.try_wait().unwrap() {
            Some(_) => Some(false),
            None => all_traced(pid).then_some(true),
        });
        if attached { Some(Self(child)) } else { skipped("strace may not attach") }
    }
}

impl Drop for Saboteur {
    fn drop(&mut self) {
        // strace detaches from the traced threads.
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

fn skipped<T>(why: &str) -> Option<T> {
    // Bypasses the test harness, which hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
    None
}

fn trace(proxy: &Proxy) -> PathBuf {
    proxy.folder.join("trace")
}

fn all_traced(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.flatten().all(|task| is_traced(&task.path()))
}

fn is_traced(task: &Path) -> bool {
    // A thread may have exited meanwhile.
    let status = fs::read_to_string(task.join("status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).is_none_or(|pid| pid.trim() != "0")
}

/// Serves, reloads and drains while every third of `calls` fails.
fn serves_in_spite_of(calls: &str, error: &str) {
    let origin = Origin::answering(|request| ok(request.text()));
    let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
    let Some(_saboteur) = Saboteur::attach(&proxy, calls, error) else { return };
    let body = "0123456789".repeat(30_000);
    let request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for round in 0..ROUNDS {
        let mut client = proxy.connect();
        for _ in 0..3 {
            client.send(&request);
            assert!(client.response().text() == body, "round {round}: another body");
        }
    }
    let (code, said) = proxy.command("reload", &[]);
    assert_eq!(code, Some(0), "{said}");
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(0));
    let trace = fs::read_to_string(trace(&proxy)).unwrap();
    assert!(trace.matches("(INJECTED)").count() > ROUNDS, "too few calls failed");
}

#[test]
fn interrupted_calls_are_retried() {
    serves_in_spite_of(INTERRUPTIBLE, "EINTR");
}

#[test]
fn a_busy_ring_is_entered_again() {
    match std::env::var(RUNTIME).as_deref() {
        Ok("epoll") => return skipped("epoll does not enter a ring").unwrap_or_default(),
        Ok("tokio_uring") => {
            let reason = "tokio-uring sleeps on a submission that the kernel postponed, until something \
                          else wakes it";
            return skipped(reason).unwrap_or_default();
        }
        _ => {}
    }
    for error in ["EAGAIN", "EBUSY", "ENOMEM"] {
        serves_in_spite_of("io_uring_enter", error);
    }
}
