//! sluice as PID 1 of a PID namespace, as in a container without an init process: signals without a handler are not
//! delivered, orphans become its children, and all others are killed when it exits.

use std::fs;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::proxy_support::{Origin, Proxy, Setup, poll};

/// A running sluice, and its pid outside the namespace.
struct First {
    proxy: Proxy,
    pid: Pid,
}

impl First {
    fn start(origin: &Origin) -> Option<Self> {
        let setup = Setup::to_origin(origin);
        let note = setup.folder.join("pid");
        // `unshare` stays outside as its parent, and exits with its code.
        let preamble = format!(
            "echo $$ > '{}'\nset -- unshare --pid --mount-proc --kill-child -- \"$@\"",
            note.display()
        );
        let proxy = setup.after(&preamble).start()?;
        let outside = fs::read_to_string(note).unwrap().trim().parse().unwrap();
        let pid = poll("its pid", || children(outside).first().copied());
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
        assert_eq!(inner.split_whitespace().last(), Some("1"), "{inner}");
        Some(Self { proxy, pid: Pid::from_raw(pid) })
    }

    fn serves(&self) {
        assert_eq!(self.proxy.get("/").text(), "served");
    }

    /// Makes a process in its namespace lose its parent; returns its pid outside the namespace.
    fn orphan(&self) -> Pid {
        let before = children(self.pid.as_raw());
        let command = "sleep 3600 </dev/null >/dev/null 2>&1 &";
        let target = self.pid.to_string();
        let entered =
            Command::new("nsenter").args(["--pid", "--target", &target, "sh", "-c", command]).status();
        assert!(entered.unwrap().success());
        let adopted = poll("the orphan to be adopted", || {
            children(self.pid.as_raw()).into_iter().find(|pid| !before.contains(pid))
        });
        Pid::from_raw(adopted)
    }
}

/// The children of a process.
fn children(parent: i32) -> Vec<i32> {
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter(|pid: &i32| {
        // A process that has exited since has no parent.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let parent_is = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        parent_is.is_some_and(|pid| pid.trim() == parent.to_string())
    })
    .collect()
}

#[test]
#[ignore = "makes a PID namespace: root"]
fn either_signal_drains_the_first_process() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let origin = Origin::saying("served");
        let Some(mut first) = First::start(&origin) else { return };
        first.serves();
        kill(first.pid, signal).unwrap();
        assert_eq!(first.proxy.wait().code(), Some(0), "{signal}");
        first.proxy.wait_for("drained");
    }
}

#[test]
#[ignore = "makes a PID namespace: root"]
fn sighup_does_not_end_the_first_process() {
    let origin = Origin::saying("served");
    let Some(mut first) = First::start(&origin) else { return };
    kill(first.pid, Signal::SIGHUP).unwrap();
    first.serves();
    // Handled after the other one, which therefore had its chance.
    kill(first.pid, Signal::SIGUSR1).unwrap();
    first.serves();
    kill(first.pid, Signal::SIGTERM).unwrap();
    assert_eq!(first.proxy.wait().code(), Some(0));
}

#[test]
#[ignore = "makes a PID namespace: root"]
fn orphans_do_not_disturb_the_first_process() {
    let origin = Origin::saying("served");
    let Some(mut first) = First::start(&origin) else { return };
    let (ended, lasting) = (first.orphan(), first.orphan());
    kill(ended, Signal::SIGKILL).unwrap();
    first.serves();
    assert!(first.proxy.is_running());
    kill(first.pid, Signal::SIGTERM).unwrap();
    assert_eq!(first.proxy.wait().code(), Some(0), "a running orphan does not delay it");
    poll("the kernel to kill the rest", || kill(lasting, None).is_err().then_some(()));
}
