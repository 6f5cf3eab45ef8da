//! Faulty records and handshakes, based on the scripts of tlsfuzzer: `proxy/system/tls/faults.py`.
//!
//! tlsfuzzer itself is in no registry; the checks of its scripts are reimplemented with tlslite-ng, on which it is
//! based.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use sluice_testkit::process::bound;
use sluice_testkit::{pinned, workspace};

use super::Served;

const SCRIPT: &str = "proxy/system/tls/faults.py";

/// Every check of the script.
pub(super) fn bears(binary: &Path) -> Result<String> {
    let python = pinned::tool("tlslite")?;
    let served = Served::start("tlsfuzzer", binary)?;
    let mut command = bound(python);
    command.arg("-B").arg(workspace::root().join(SCRIPT));
    command.args([served.address.ip().to_string(), served.address.port().to_string()]);
    let output = command.stdin(Stdio::null()).output().context("faults.py")?;
    let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    fs::write(workspace::scratch("logs")?.join("tlsfuzzer.log"), &report)?;
    if !output.status.success() {
        let failed: Vec<&str> = report.lines().filter(|line| !line.starts_with("ok ")).collect();
        bail!("{}", failed.join("\n"));
    }
    Ok(report.lines().last().unwrap_or_default().to_owned())
}
