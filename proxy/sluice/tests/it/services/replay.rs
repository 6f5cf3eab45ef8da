//! Command lines replayed as `kamal-proxy`: output and exit codes must be identical to those of kamal-proxy 0.9.2,
//! recorded in `transcript.txt`.
//!
//! If SLUICE_TEST_KAMAL_PROXY names its binary, it is run as well, which verifies the transcript.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::poll;

/// Command lines, each after a `$`, followed by its output, then `rc` and the exit code.
const TRANSCRIPT: &str = include_str!("transcript.txt");

/// A running kamal-proxy, the original or ours.
pub(super) struct Server {
    child: Child,
    program: PathBuf,
    folder: PathBuf,
}

impl Server {
    fn start(program: PathBuf, folder: &Path) -> Self {
        Self::start_with(program, folder, &["--http-port=0"], &[])
    }

    /// With arguments of `run`, and environment variables.
    pub(super) fn start_with(
        program: PathBuf,
        folder: &Path,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        for part in ["run", "home"] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
        }
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let mut command = in_folder(&program, folder);
        command.arg("run").args(arguments).env("HTTPS_PORT", "0").envs(environment.iter().copied());
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut server = Self { child, program, folder: folder.to_owned() };
        poll("the control socket", || {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", std::fs::read_to_string(folder.join("log")).unwrap());
            folder.join("run/kamal-proxy.sock").exists().then_some(())
        });
        server
    }

    /// The output lines and the exit code of a command line.
    pub(super) fn ask(&self, line: &str) -> (Vec<String>, String) {
        let words = words(line);
        let output = in_folder(&self.program, &self.folder).args(words).output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (said.lines().map(str::to_owned).collect(), format!("{}", output.status.code().unwrap()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn in_folder(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("XDG_RUNTIME_DIR", folder.join("run")).env("HOME", folder.join("home"));
    command
}

/// The words of a line; quotes keep spaces together.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Each command line with its expected output.
fn expected() -> Vec<(&'static str, Vec<&'static str>, &'static str)> {
    let commands = TRANSCRIPT.split("$ kamal-proxy ").skip(1);
    commands
        .map(|block| {
            let mut lines: Vec<&str> = block.lines().collect();
            let code = lines.pop().unwrap().strip_prefix("rc ").unwrap();
            (lines.remove(0), lines, code)
        })
        .collect()
}

pub(super) fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("sluice-it-{name}-{}", std::process::id()))
}

/// The original kamal-proxy, if it should be tested too.
pub(super) fn kamal_proxy() -> Option<PathBuf> {
    std::env::var_os("SLUICE_TEST_KAMAL_PROXY").map(PathBuf::from)
}

/// Prints that there is none.
pub(super) fn skip() {
    let _ = writeln!(std::io::stderr(), "skipped: SLUICE_TEST_KAMAL_PROXY names no kamal-proxy 0.9.2");
}

#[test]
fn sluice_matches_the_transcript() {
    let folder = folder("as-kamal");
    std::fs::create_dir_all(&folder).unwrap();
    let link = folder.join("kamal-proxy");
    symlink(env!("CARGO_BIN_EXE_sluice"), &link).unwrap();
    if crate::support::Setup::to(&["127.0.0.1:1"]).start().is_none() {
        return;
    }
    let server = Server::start(link, &folder);
    for (line, said, code) in expected() {
        let (mut got, got_code) = server.ask(line);
        // The results of the targets' last checks are additional lines.
        if said
            .first()
            .is_some_and(|said| said.starts_with("Error: target failed") || said.starts_with("Error: unable"))
        {
            got.truncate(said.len());
        }
        assert_eq!(
            (got.as_slice(), got_code.as_str()),
            (said.iter().map(|&line| line.to_owned()).collect::<Vec<_>>().as_slice(), code),
            "{line}"
        );
    }
}

#[test]
fn kamal_proxy_matches_the_transcript() {
    let Some(program) = kamal_proxy() else { return skip() };
    let server = Server::start(program, &folder("kamal"));
    for (line, said, code) in expected() {
        let (got, got_code) = server.ask(line);
        assert_eq!(
            (got, got_code.as_str()),
            (said.iter().map(|&line| line.to_owned()).collect(), code),
            "{line}"
        );
    }
}
