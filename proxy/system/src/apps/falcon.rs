//! Falcon, one process, with the same Rack application as Puma.

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use sluice_testkit::pinned;
use sluice_testkit::process::Process;

use super::rig::{Place, Rig};
use super::{App, COMPARED, LARGE, checks, clients, streams, uploads};

const TOOL: &str = "falcon";

/// See `config/examples/falcon.yaml`.
pub(super) const APP: App = App {
    name: "falcon",
    example: "falcon.yaml",
    sources: "puma",
    host: "localhost",
    prefix: "",
    path: "/",
    hello: "hello from falcon",
    large: LARGE,
    compared: COMPARED,
    slow: &[],
    programs: &["ruby", "curl", "wrk", "sha256sum"],
    tool: Some(TOOL),
    start,
    checks: &[checks::CHECKS, &[("load", load)], clients::CHECKS, uploads::CHECKS, streams::CHECKS],
};

fn start(place: &Place) -> Result<Process> {
    let program = pinned::tool(TOOL)?;
    let gems = program.parent().and_then(|bin| bin.parent()).context("falcon has no folder")?;
    let mut command = place.command("ruby");
    command
        .arg(&program)
        .args(["serve", "--count", "1", "--bind", &format!("http://{}", place.address), "--config"])
        .arg(place.sources.join("config.ru"))
        .current_dir(&place.folder)
        .env("GEM_HOME", gems)
        .env("ORIGIN_NAME", "falcon");
    let mut process = Process::start("falcon", &mut command, place.log.clone(), Signal::SIGTERM)?;
    process.wait_ready(place.address)?;
    Ok(process)
}

fn load(rig: &Rig) -> Result<String> {
    checks::load(rig, "/bytes?n=1024")
}
