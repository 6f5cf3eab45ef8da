//! `sluice logs` with the access log of a running proxy.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Origin, PATIENCE, Setup, poll};

fn logs(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.arg("logs").args(args).env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// Its output for this standard input.
fn piped(args: &[&str], input: &str) -> Output {
    let mut child =
        logs(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may exit before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A process that follows, killed when dropped.
struct Following(Child, Receiver<String>);

impl Following {
    fn start(file: &Path, args: &[&str]) -> Self {
        let mut child = logs(&["-f", "--file"]).arg(file).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line).ok())
        });
        Self(child, lines)
    }

    fn next(&self) -> String {
        self.1.recv_timeout(PATIENCE).unwrap()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn follow_continues_across_rotation() {
    let origin = Origin::saying("");
    for format in ["json", "ltsv", "combined"] {
        let setup = Setup::to_origin(&origin).with("access_log.format", format);
        let Some(proxy) = setup.start() else { return };
        let file = proxy.folder.join("access.log");
        let following = Following::start(&file, &[]);
        proxy.get("/one");
        let line = following.next();
        assert!(line.contains(" 200 GET ") && line.contains("/one"), "{format}: {line}");
        std::fs::rename(&file, proxy.folder.join("access.log.1")).unwrap();
        proxy.get("/two");
        assert!(following.next().contains("/two"));
        proxy.signal(Signal::SIGUSR1);
        poll("the new file", || file.exists().then_some(()));
        proxy.get("/three");
        assert!(following.next().contains("/three"));
    }
}

#[test]
fn the_file_is_found_through_the_configuration() {
    let origin = Origin::saying("");
    let Some(proxy) = Setup::to_origin(&origin).start() else { return };
    for target in ["/a", "/b", "/none"] {
        proxy.get(target);
        proxy.record(target);
    }
    let file = proxy.folder.join("sluice.yaml");
    let file = file.to_str().unwrap();
    let output = logs(&["--config", file, "-n", "2", "--status", "2xx,404"]).output().unwrap();
    assert!(output.status.success());
    let shown = text(&output.stdout);
    assert_eq!(shown.lines().count(), 2, "{shown}");
    assert!(
        shown.contains("a.test/b") && shown.contains("a.test/none") && !shown.contains('\x1b'),
        "{shown}"
    );
    let output = logs(&["--config", file, "--path", "/b", "--color", "always"]).output().unwrap();
    assert_eq!(text(&output.stdout).lines().count(), 1);
    assert!(text(&output.stdout).contains("\x1b[32m200\x1b[0m"));
    let output = logs(&["--config", file, "--set", "access_log=stdout"]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(2), ""));
    assert!(text(&output.stderr).contains("the log goes to standard output"));
}

#[test]
fn standard_input_is_read() {
    let line =
        |status: u16, ms: f64| json!({"status": status, "duration_ms": ms, "path": "copy"}).to_string();
    let input = format!("{}\n\u{1b}[2Jgarbage\n{}\n{}", line(200, 1.0), line(503, 250.0), line(504, 9.0));
    let all = piped(&[], &input);
    assert_eq!(text(&all.stdout).lines().count(), 4, "{}", text(&all.stdout));
    assert!(text(&all.stdout).contains("\\x1b[2Jgarbage"));
    for (args, count) in [
        (&["--status", "5xx"][..], 2),
        (&["--status", "500-503,200"], 2),
        (&["--min-duration-ms", "9"], 2),
        (&["--status", "5xx", "-n", "1"], 1),
        (&["-n", "0"], 0),
        (&["--file", "-", "--path-taken", "direct"], 0),
        (&["--reason", "any"], 0),
    ] {
        assert_eq!(text(&piped(args, &input).stdout).lines().count(), count, "{args:?}");
    }
    for args in
        [&["--status", "9xx"][..], &["--path-taken", "x"], &["--min-duration-ms", "-1"], &["--color", "x"]]
    {
        assert_eq!(piped(args, "").status.code(), Some(2), "{args:?}");
    }
    let missing = logs(&["--file", "no/such/file"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).starts_with("sluice: no/such/file: "));
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let folder = std::env::temp_dir().join(format!("sluice-it-logs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("log");
    let line = json!({"status": 200, "target": "x".repeat(1000)}).to_string() + "\n";
    std::fs::write(&file, line.repeat(1000)).unwrap();
    for args in [&["-n", "900"][..], &["-f"], &["-f", "-n", "900"]] {
        let mut command = logs(&["--file"]);
        let mut child =
            command.arg(&file).args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(first.starts_with("- "), "{first}");
        // The pipe is closed. A following process must notice this even without new lines.
        let status = poll("its end", || child.try_wait().unwrap());
        let said = child.wait_with_output().unwrap().stderr;
        assert_eq!((status.code(), text(&said)), (Some(0), ""), "{args:?}");
    }
    // A pipe instead of a file is read to its end.
    OpenOptions::new().append(true).open(&file).unwrap().write_all(b"end\n").unwrap();
    let input = std::fs::File::open(&file).unwrap();
    let output = logs(&["--file", "/dev/stdin", "-n", "1"]).stdin(input).output().unwrap();
    assert_eq!(text(&output.stdout), "end\n");
    std::fs::remove_dir_all(&folder).unwrap();
}
