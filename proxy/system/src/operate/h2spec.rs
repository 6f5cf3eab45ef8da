//! HTTP/2 conformance with h2spec, for each case of RFC 9113 and RFC 7541: `cargo xtask test h2spec`.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use serde_json::json;
use sluice_testkit::process::{Process, bound, free_ports, sluice};
use sluice_testkit::{pinned, workspace};

use super::site::local;

const TOOL: &str = "h2spec";
/// Time limit of one case, in seconds.
const PATIENCE: &str = "5";

/// Every case, including recommendations of RFC 9113, against a listener that accepts both versions.
pub(super) fn strict(binary: &Path) -> Result<String> {
    let program = pinned::tool(TOOL)?;
    let folder = workspace::scratch("operate")?.join(TOOL);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let [address, origin] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
    let config = json!({
        "listeners": [{"address": address, "http2": "prior_knowledge"}],
        "clusters": {"demo": {"endpoints": [origin]}},
        "demo_origin": origin,
        "control": "off",
        "access_log": "off",
        "workers": 1,
    });
    let file = folder.join("sluice.yaml");
    fs::write(&file, format!("{config:#}\n"))?;
    let mut command = sluice(binary);
    command.arg("--config").arg(&file);
    let log = workspace::scratch("logs")?.join("h2spec-sluice.log");
    let mut sluice = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
    sluice.wait_ready(address)?;

    let mut command = bound(program);
    command.args(["--strict", "--timeout", PATIENCE, "--host", "127.0.0.1", "--port"]);
    let output = command.arg(address.port().to_string()).output().context("h2spec")?;
    let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    fs::write(workspace::scratch("logs")?.join("h2spec.log"), &report)?;
    if !output.status.success() {
        let failures = report.split_once("Failures:").map_or(report.as_str(), |(_, failures)| failures);
        bail!("{failures}\n{}", sluice.tail());
    }
    Ok(report.lines().rev().find(|line| line.contains("passed")).unwrap_or_default().trim().to_owned())
}
