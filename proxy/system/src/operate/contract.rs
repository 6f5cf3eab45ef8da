//! `config/openapi.yaml` against a running sluice: schemathesis generates valid and invalid requests from it, and
//! checks each response against it.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::Pid;
use serde_json::json;
use sluice_testkit::process::{bound, free_ports};
use sluice_testkit::{pinned, workspace};

use super::forwarder::Forwarder;
use super::site::{Site, local};
use super::upgrade::Successor;

const TOOL: &str = "schemathesis";
/// Every run sends the same requests.
const SEED: &str = "20";
/// Requests to an operation in each generating phase.
const EXAMPLES: &str = "5";
/// The folder with the settings and hooks of schemathesis.
const FOLDER: &str = "proxy/system/contract";

/// Every check of schemathesis, on every operation.
pub(super) fn conforms(binary: &Path) -> Result<String> {
    let program = pinned::tool(TOOL)?;
    // The only targets of its deploys: a healthy one, and one without a listener.
    let [well, dead] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
    let site = Site::start("contract", binary, json!({"demo_origin": well}))?;
    let forwarder = Forwarder::start(site.control())?;
    let folder = workspace::root().join(FOLDER);
    let mut command = bound(program);
    command.arg("--config-file").arg(folder.join("schemathesis.toml")).arg("run");
    command.arg(workspace::root().join("config/openapi.yaml"));
    command.args(["--url", &format!("http://{}", forwarder.address), "--checks", "all", "--seed", SEED]);
    command.args(["--max-examples", EXAMPLES, "--request-timeout", "60", "--generation-database", "none"]);
    command.env("SCHEMATHESIS_HOOKS", "hooks").env("PYTHONPATH", &folder).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("CONTRACT_TARGETS", format!("{well} {dead}")).env("NO_COLOR", "1");
    let output = command.current_dir(&site.folder).stdin(Stdio::null()).output().context("schemathesis")?;
    let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    fs::write(workspace::scratch("logs")?.join("contract-schemathesis.log"), &report)?;
    let _last = successor(&site)?;
    if !output.status.success() {
        bail!("{report}");
    }
    ensure!(site.must("list").is_ok(), "it no longer responds");
    summary(&report).with_context(|| report.clone())
}

/// The process that listens on the control socket now, if it is not the one we started.
fn successor(site: &Site) -> Result<Option<Successor>> {
    let listens = getsockopt(&UnixStream::connect(site.control())?, sockopt::PeerCredentials)?.pid();
    let other = u32::try_from(listens)? != site.sluice.pid();
    Ok(other.then(|| Successor(Pid::from_raw(listens))))
}

/// The lines of the report about how much was tested.
fn summary(report: &str) -> Result<String> {
    let lines: Vec<&str> = report.lines().map(str::trim).collect();
    let last = lines.iter().rposition(|line| line.starts_with("Test cases:")).context("no summary")?;
    let cases = lines.get(last + 1).copied().unwrap_or_default();
    Ok(cases.to_owned())
}
