//! Node's own HTTP server.

use anyhow::Result;
use nix::sys::signal::Signal;
use sluice_testkit::process::Process;

use super::rig::{Place, Rig};
use super::{App, COMPARED, LARGE, checks, clients, streams, uploads};

/// See `config/examples/node.yaml`.
pub(super) const APP: App = App {
    name: "node",
    example: "node.yaml",
    sources: "node",
    host: "localhost",
    prefix: "",
    path: "/",
    hello: "hello from node",
    large: LARGE,
    compared: COMPARED,
    slow: &[],
    programs: &["node", "curl", "wrk", "sha256sum"],
    tool: None,
    start,
    checks: &[checks::CHECKS, &[("load", load)], clients::CHECKS, uploads::CHECKS, streams::CHECKS],
};

fn start(place: &Place) -> Result<Process> {
    let mut command = place.command("node");
    command.arg(place.sources.join("server.js")).args(["--listen", &place.address.to_string()]);
    let mut process = Process::start("node", &mut command, place.log.clone(), Signal::SIGTERM)?;
    process.wait_ready(place.address)?;
    Ok(process)
}

fn load(rig: &Rig) -> Result<String> {
    checks::load(rig, "/bytes?n=1024")
}
