//! Failures of the operating system: a log that cannot be written or is not read, files that may not grow, a full disk,
//! and no threads. Failures are logged or counted; clients are not affected.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use serde_json::{Value, json};

use crate::process::{busy, gated};
use crate::support::{Origin, Proxy, Setup, poll};

/// Part of the log line that ends the startup.
const STARTED: &str = "serving with ";
const DROPPED: &str = "sluice_access_log_dropped_total";

fn skipped(why: &str) {
    // Bypasses the test harness, which hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// A pipe for the log: read until startup is complete, and not read after that.
struct Pipe {
    path: PathBuf,
    passed_on: PathBuf,
}

impl Pipe {
    fn new(setup: &Setup) -> Self {
        let (path, passed_on) = (setup.folder.join("log"), setup.folder.join("passed-on"));
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        Self { path, passed_on }
    }

    fn preamble(&self) -> String {
        let (path, passed_on) = (self.path.display(), self.passed_on.display());
        format!("(sed '/{STARTED}/q' <'{path}' >&2; : >'{passed_on}') &\nexec 2>'{path}'")
    }

    /// Keeps it open with a reader that does not read.
    fn hold(&self) -> File {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&self.path).unwrap()
    }

    /// Waits until the log is no longer read.
    fn wait(&self) {
        poll("the end of the start", || self.passed_on.exists().then_some(()));
    }
}

/// Writes until the pipe is full.
fn fill(file: &mut File) {
    for piece in [&[b'x'; 4096][..], b"x"] {
        while match file.write(piece) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::StorageFull => false,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        } {}
    }
}

/// A proxy whose worker can be made to run out of descriptors, so that it has something to log.
fn starved(origin: &Origin) -> Setup {
    // The eBPF programs take descriptors too.
    let setup = Setup::to_origin(origin).with("kernel.bypass", "off").with("kernel.splice", "off");
    setup.with("clusters.default.pool.idle_max_per_endpoint", 0)
}

fn run_out_of_descriptors(proxy: &Proxy) {
    let mut clients: Vec<_> = (0..40).map(|_| proxy.connect()).collect();
    poll("a request without a descriptor", || {
        let answer = clients[0].ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        (answer.status() == 500).then_some(())
    });
}

/// Sockets that are still being closed may cause a failure at first.
fn serves(proxy: &Proxy) {
    poll("an answer", || (proxy.get("/").status() == 200).then_some(()));
}

#[test]
fn sluice_keeps_running_when_its_log_reader_exits() {
    let origin = Origin::saying("hi");
    let setup = starved(&origin);
    let pipe = Pipe::new(&setup);
    let Some(mut proxy) = setup.after(&format!("{}\nulimit -n 40", pipe.preamble())).start() else { return };
    pipe.wait();
    // Makes the control thread log something, then the worker.
    assert_eq!(proxy.command("reload", &[]).0, Some(0));
    run_out_of_descriptors(&proxy);
    serves(&proxy);
    assert_eq!(proxy.metric("sluice_panics_total"), 0.0);
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn an_unread_log_blocks_nothing() {
    let origin = Origin::saying("hi");
    let setup = starved(&origin);
    let pipe = Pipe::new(&setup);
    let mut held = pipe.hold();
    let Some(mut proxy) = setup.after(&format!("{}\nulimit -n 40", pipe.preamble())).start() else { return };
    pipe.wait();
    fill(&mut held);
    let mut config = proxy.config.clone();
    config["drain_timeout_ms"] = json!(31_000);
    proxy.rewrite(config);
    proxy.signal(Signal::SIGHUP);
    poll("the new configuration", || {
        let shown: Value = serde_json::from_slice(&proxy.admin("/config").body).unwrap();
        (shown["drain_timeout"] == "31s").then_some(())
    });
    run_out_of_descriptors(&proxy);
    serves(&proxy);
    assert_eq!(proxy.admin("/healthz").status(), 200);
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(0));
}

#[test]
fn an_access_log_on_a_full_disk_does_not_prevent_startup() {
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("access_log.output", "/dev/full");
    let Some(proxy) = setup.start() else { return };
    poll("lines that are lost", || {
        assert_eq!(proxy.get("/").text(), "hi");
        (proxy.metric(DROPPED) > 0.0).then_some(())
    });
    proxy.wait_for("cannot write the access log");
    assert_eq!(proxy.said("cannot write the access log"), 1, "once");
}

/// A process that writes beyond the limit gets a signal that kills it by default (setrlimit(2), RLIMIT_FSIZE).
#[test]
fn an_access_log_at_the_size_limit_only_loses_lines() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).after("ulimit -f 8").start() else { return };
    poll("lines that are lost", || {
        assert_eq!(proxy.get("/").text(), "hi");
        (proxy.metric(DROPPED) > 0.0).then_some(())
    });
    proxy.wait_for("cannot write the access log");
    let log = proxy.folder.join("access.log");
    fs::rename(&log, proxy.folder.join("access.log.1")).unwrap();
    proxy.signal(Signal::SIGUSR1);
    poll("a new file", || log.exists().then_some(()));
    assert_eq!(proxy.get("/after").text(), "hi");
    proxy.record("/after");
    proxy.wait_for("the access log can be written again");
}

fn can_mount() -> bool {
    let made = Command::new("unshare").args(["--mount", "true"]).output();
    let can = geteuid().is_root() && made.is_ok_and(|output| output.status.success());
    if !can {
        skipped("only root can make a mount namespace");
    }
    can
}

fn deploy(proxy: &Proxy, origin: &Origin, name: &str) -> (Option<i32>, String) {
    let host = format!("{name}.test");
    let arguments = [name, "--target", &origin.endpoint, "--host", &host, "--health-check-path", "/"];
    proxy.command("deploy", &arguments)
}

#[test]
fn a_full_disk_refuses_a_deploy_and_loses_lines() {
    if !can_mount() {
        return;
    }
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin);
    let (disk, pid) = (setup.folder.join("disk"), setup.folder.join("pid"));
    fs::create_dir(&disk).unwrap();
    let preamble = format!(
        "echo $$ >'{}'\nexec unshare --mount sh -c 'mount -t tmpfs -o size=200k,mode=700 none \"$0\" && exec \"$@\"' '{}' \"$@\"",
        pid.display(),
        disk.display()
    );
    let setup = setup
        .with("routes", json!([{"hosts": ["a.test"], "cluster": "default"}]))
        .with("access_log.output", disk.join("access.log").to_str().unwrap())
        .with("services", json!({"state_file": disk.join("services.json")}))
        .after(&preamble);
    let Some(mut proxy) = setup.start() else { return };
    let (code, said) = deploy(&proxy, &origin, "one");
    assert_eq!(code, Some(0), "{said}");
    // The disk as the process sees it.
    let pid = fs::read_to_string(&pid).unwrap();
    let seen = PathBuf::from(format!("/proc/{}/root{}", pid.trim(), disk.display()));
    let filler = seen.join("filler");
    fill(&mut File::create(&filler).unwrap());
    poll("lines that are lost", || {
        assert_eq!(proxy.get("/lost").text(), "hi");
        (proxy.metric(DROPPED) > 0.0).then_some(())
    });
    let (code, said) = deploy(&proxy, &origin, "two");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cannot write the state file"), "{said}");
    let (_, list) = proxy.command("list", &[]);
    assert!(list.contains("one") && !list.contains("two"), "{list}");
    fs::remove_file(&filler).unwrap();
    let (code, said) = deploy(&proxy, &origin, "three");
    assert_eq!(code, Some(0), "{said}");
    let lines = poll("lines that are written again", || {
        proxy.get("/after");
        let text = fs::read_to_string(seen.join("access.log")).unwrap();
        (text.contains("/after") && text.ends_with('\n')).then_some(text)
    });
    for line in lines.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "torn: {line}");
    }
    proxy.signal(Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(0));
}

/// A control group that can limit the number of threads of its processes.
struct Confined(PathBuf);

impl Confined {
    /// `None`, with a note on standard error, if none can be created.
    fn new() -> Option<Self> {
        let name = format!("sluice-it-{}", std::process::id());
        for root in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let folder = Path::new(root).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            if folder.join("pids.max").exists() {
                return Some(Self(folder));
            }
            let _ = fs::remove_dir(&folder);
        }
        skipped("no control group that limits threads can be created");
        None
    }

    fn preamble(&self) -> String {
        format!("echo $$ >'{}'", self.0.join("cgroup.procs").display())
    }

    /// Forbids further threads; existing ones stay.
    fn close(&self) {
        fs::write(self.0.join("pids.max"), "1").unwrap();
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_drain_needs_no_new_thread() {
    let Some(confined) = Confined::new() else { return };
    let (origin, go) = gated();
    let Some(mut proxy) = Setup::to_origin(&origin).after(&confined.preamble()).start() else { return };
    let mut client = busy(&proxy, &origin);
    confined.close();
    // Done or refused, but without a broken connection.
    let (_, said) = proxy.command("reload", &[]);
    assert_eq!(proxy.metric("sluice_panics_total"), 0.0, "{said}");
    proxy.signal(Signal::SIGTERM);
    proxy.wait_for("draining");
    go.send(()).unwrap();
    assert_eq!(client.response().text(), "/busy");
    assert_eq!(proxy.wait().code(), Some(0));
}
