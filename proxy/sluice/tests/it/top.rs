//! `sluice top` on a pseudo-terminal, and without one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, Termios, tcgetattr};
use nix::unistd::Pid;
use serde_json::Value;

use crate::support::{Origin, Proxy, Setup, poll};

fn top(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("top").args(args).stdin(Stdio::null()).output().unwrap()
}

fn admin(proxy: &Proxy) -> String {
    format!("unix:{}", proxy.folder.join("admin.sock").display())
}

/// A terminal that runs `sluice top`.
struct Terminal {
    master: File,
    slave: OwnedFd,
    before: Termios,
    written: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    fn start(proxy: &Proxy, columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let (master, slave) = (File::from(pty.master), pty.slave);
        let before = tcgetattr(&slave).unwrap();
        let end = || Stdio::from(slave.try_clone().unwrap());
        // As its controlling terminal, so that it is notified of resizing.
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_sluice"), "top", "--admin", &admin(proxy)]);
        command.env("TERM", "xterm-256color").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let (shared, mut reader) = (Arc::clone(&written), master.try_clone().unwrap());
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut piece) {
                shared.lock().unwrap().extend_from_slice(&piece[..n]);
            }
        });
        Self { master, slave, before, written, child }
    }

    /// Waits for a text, and forgets everything up to now.
    fn wait_for(&self, text: &str) {
        poll(text, || {
            let mut written = self.written.lock().unwrap();
            let found = String::from_utf8_lossy(&written).contains(text);
            found.then(|| written.clear())
        });
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn resize(&self, columns: u16, rows: u16) {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", self.slave.as_raw_fd())).unwrap();
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let mut stty = Command::new("stty");
        stty.arg("-F").arg(name).args(["cols", &columns, "rows", &rows]);
        assert!(stty.status().unwrap().success());
    }

    /// Waits until it exits, and checks that the terminal is restored.
    fn ended(mut self) -> ExitStatus {
        let status = poll("the end", || self.child.try_wait().unwrap());
        self.wait_for("\x1b[?1049l");
        let now = tcgetattr(&self.slave).unwrap();
        assert_eq!(now.local_flags, self.before.local_flags);
        assert_eq!((now.input_flags, now.output_flags), (self.before.input_flags, self.before.output_flags));
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_work_and_the_terminal_is_restored() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut terminal = Terminal::start(&proxy, 120, 40);
    terminal.wait_for("ENDPOINT");
    assert!(!tcgetattr(&terminal.slave).unwrap().local_flags.contains(LocalFlags::ICANON));
    terminal.press("r");
    terminal.wait_for("REQ/Sv");
    terminal.press("\r");
    terminal.wait_for(&format!("{} of", origin.endpoint));
    terminal.press("\x1b");
    terminal.wait_for("ENDPOINT");
    terminal.resize(80, 24);
    terminal.wait_for("ENDPOINT");
    terminal.press("q");
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn keys_pressed_while_the_terminal_is_resized_are_not_lost() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let mut terminal = Terminal::start(&proxy, 120, 40);
    terminal.wait_for("ENDPOINT");
    let process = Pid::from_raw(terminal.child.id().cast_signed());
    for columns in 100..150 {
        // Stopped meanwhile, so that it is likely to find the signal and then the key in one look.
        kill(process, Signal::SIGSTOP).unwrap();
        terminal.resize(columns, 40);
        kill(process, Signal::SIGCONT).unwrap();
        terminal.press("\r");
        // "esc back" without its first letter, which "enter detail" has in the same place: it is not drawn again.
        terminal.wait_for("sc back");
        terminal.press("\x1b");
        terminal.wait_for("nter de");
    }
    terminal.press("q");
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn a_tiny_terminal_and_a_signal_are_handled() {
    let origin = Origin::saying("hi");
    let Some(mut proxy) = Setup::to_origin(&origin).start() else { return };
    let mut terminal = Terminal::start(&proxy, 20, 5);
    terminal.wait_for("sluice ");
    for keys in ["j", "k", "r", "\r", "\x1b[6~", "\x1b[F", "x"] {
        terminal.press(keys);
    }
    // Drawn again with the next document: all keys have been handled by then.
    terminal.resize(90, 5);
    terminal.wait_for("other endpoint");
    proxy.signal(Signal::SIGTERM);
    proxy.wait();
    terminal.wait_for("no process");
    kill(Pid::from_raw(terminal.child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(terminal.ended().code(), Some(0));
}

#[test]
fn once_prints_a_table_or_the_document() {
    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    poll("the first sample", || proxy.admin("/status.json").text().contains("\"label\"").then_some(()));
    let table = top(&["--once", "--admin", &admin(&proxy)]);
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(table.status.success() && text.starts_with("sluice "), "{text}");
    assert!(text.contains("CLUSTER  ENDPOINT") && text.contains(&origin.endpoint), "{text}");
    let file = proxy.folder.join("sluice.yaml");
    let json = top(&["--once", "--json", "--config", file.to_str().unwrap()]);
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(document["clusters"][0]["endpoints"][0]["label"], origin.endpoint);
}

#[test]
fn errors_are_reported() {
    let said = |args: &[&str]| {
        let output = top(args);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = said(&["--once", "--admin", "unix:/no/such.sock"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("no process is listening at unix:/no/such.sock") && text.contains("is sluice running"),
        "{text}"
    );
    let (code, text) = said(&["--admin", "nonsense"]);
    assert_eq!(code, Some(2));
    assert!(text.contains("--admin: "), "{text}");
    let (code, _) = said(&["--json"]);
    assert_eq!(code, Some(2));

    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    let (code, text) = said(&["--admin", &admin(&proxy)]);
    assert_eq!(code, Some(1));
    assert!(text.contains("standard output is not a terminal; use --once"), "{text}");
    let (_, text) = said(&["--once", "--admin", &proxy.address().to_string()]);
    assert!(
        text.contains("not a status document of this version") || text.contains("no /status.json"),
        "{text}"
    );
}
