//! Checks that a response is correct before anything is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sluice_testkit::pinned::PinnedTools;

/// The SHA-256 of the body at a URL, requested twice, each time with status 200. Both requests use one connection if
/// `keep_alive` is set and the connection stays open.
///
/// # Errors
/// A response is missing or different, or the second body differs from the first.
pub(super) fn body_hash(url: &str, keep_alive: bool, folder: &Path, tools: &PinnedTools) -> Result<String> {
    let bodies = ["first", "second"].map(|name| folder.join(format!("checked-{name}")));
    let mut curl = Command::new(tools.path("curl")?);
    // The certificate is self-signed.
    curl.args(["--silent", "--show-error", "--insecure", "--max-time", "10", "--write-out", "%{http_code} "]);
    if !keep_alive {
        curl.args(["--header", "Connection: close"]);
    }
    for body in &bodies {
        curl.arg("--output").arg(body).arg(url);
    }
    let output = curl.output()?;
    let statuses = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let good = output.status.success() && statuses.trim() == "200 200";
    ensure!(good, "two requests, keep-alive {keep_alive}: status {statuses}{}", error.trim());
    let [first, second] = bodies.map(|body| hash(body, tools));
    let (first, second) = (first?, second?);
    ensure!(first == second, "the second body differs from the first");
    Ok(first)
}

fn hash(file: PathBuf, tools: &PinnedTools) -> Result<String> {
    let output = Command::new(tools.path("sha256sum")?).arg(file).output()?;
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    line.split_whitespace().next().map(str::to_owned).context("sha256sum prints nothing")
}
