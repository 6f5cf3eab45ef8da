//! The configurations of other proxies and their translations, side by side: the same answers to tables of requests, with
//! the real nginx, HAProxy, Caddy and Traefik as oracles.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use sluice_testkit::process::bound;
use sluice_testkit::workspace;

/// The folder with the tables and their runner.
const FOLDER: &str = "proxy/system/migration";

pub(super) fn nginx(binary: &Path) -> Result<String> {
    compare("nginx", binary)
}

pub(super) fn haproxy(binary: &Path) -> Result<String> {
    compare("haproxy", binary)
}

pub(super) fn caddy(binary: &Path) -> Result<String> {
    compare("caddy", binary)
}

pub(super) fn traefik(binary: &Path) -> Result<String> {
    compare("traefik", binary)
}

/// Sends every row of a table to both proxies. The last line of the report is its summary.
fn compare(peer: &str, binary: &Path) -> Result<String> {
    let mut command = bound("python3");
    command.arg(workspace::root().join(FOLDER).join("run.py")).arg(peer);
    command.env("SLUICE", binary).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.stdin(Stdio::null()).output().context("python3")?;
    let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        bail!("{report}");
    }
    Ok(report.trim_end().lines().last().unwrap_or_default().to_owned())
}
