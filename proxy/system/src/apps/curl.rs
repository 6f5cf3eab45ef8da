//! curl and its companions as functions. Returns results, judges nothing.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use sluice_testkit::process::bound;
use sluice_testkit::workspace;

use super::rig::Rig;

/// Time limit of one transfer, in seconds; reached only by a hang.
const TIME_MAX_S: &str = "300";

/// The output of one curl run.
pub(super) struct Answer {
    /// Status of the last transfer.
    pub(super) status: u16,
    /// Body bytes that arrived in the last transfer.
    pub(super) size: u64,
    /// Connections made by each transfer.
    pub(super) connects: Vec<u32>,
    /// Everything printed: bodies, and heads if requested.
    pub(super) text: String,
}

/// Runs curl with the rig's Host, `args` and the URLs of `paths` through sluice.
///
/// # Errors
/// When curl reports one: a broken transfer is one, a status is not.
pub(super) fn curl(rig: &Rig, args: &[&str], paths: &[&str]) -> Result<Answer> {
    let mut command = bound("curl");
    command
        .args(["--silent", "--show-error", "--noproxy", "*", "--max-time"])
        .args([TIME_MAX_S, "--write-out", "\\n=%{http_code} %{size_download} %{num_connects}\\n"])
        .args(["--header", &format!("Host: {}", rig.host)])
        .args(args)
        .args(paths.iter().map(|path| rig.url(path)));
    let text = output(&mut command)?;
    let mut answer = Answer { status: 0, size: 0, connects: Vec::new(), text: String::new() };
    for line in text.lines() {
        let figures = line.strip_prefix('=').and_then(figures);
        match figures {
            Some((status, size, connects)) => {
                (answer.status, answer.size) = (status, size);
                answer.connects.push(connects);
            }
            None => {
                answer.text.push_str(line);
                answer.text.push('\n');
            }
        }
    }
    if answer.connects.is_empty() {
        bail!("curl printed no figures: {text}");
    }
    Ok(answer)
}

fn figures(line: &str) -> Option<(u16, u64, u32)> {
    let mut words = line.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Fetches a URL directly from the origin into a file.
///
/// # Errors
/// When curl reports one or the status is an error.
pub(super) fn fetch(url: &str, file: &Path) -> Result<()> {
    let mut command = bound("curl");
    command
        .args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", TIME_MAX_S])
        .arg("--output")
        .arg(file)
        .arg(url);
    output(&mut command).map(drop)
}

/// The SHA-256 of a file, in hex.
///
/// # Errors
/// When it cannot be read.
pub(super) fn sha256(file: &Path) -> Result<String> {
    let text = output(bound("sha256sum").arg(file))?;
    let sum = text.split_whitespace().next();
    Ok(sum.context("sha256sum printed nothing")?.to_owned())
}

/// Runs wrk for two seconds; returns its report.
///
/// # Errors
/// When it cannot run.
pub(super) fn wrk(rig: &Rig, path: &str) -> Result<String> {
    let mut command = bound("wrk");
    command
        .args(["-t1", "-c16", "-d2s", "--timeout", "30s", "-H", &format!("Host: {}", rig.host)])
        .arg(rig.url(path));
    output(&mut command)
}

fn output(command: &mut Command) -> Result<String> {
    let words = workspace::describe(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| words.clone())?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{words}`: {} {}", output.status, errors.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
