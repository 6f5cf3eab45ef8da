//! uvicorn, one process, with a Starlette application below /api.

use anyhow::Result;
use nix::sys::signal::Signal;
use sluice_testkit::pinned;
use sluice_testkit::process::Process;

use super::rig::{Place, Rig};
use super::{App, COMPARED, LARGE, checks, clients, streams, uploads};

const TOOL: &str = "starlette";

/// See `config/examples/uvicorn.yaml`.
pub(super) const APP: App = App {
    name: "uvicorn",
    example: "uvicorn.yaml",
    sources: "uvicorn",
    host: "localhost",
    prefix: "/api",
    path: "/",
    hello: "hello from starlette",
    large: LARGE,
    compared: COMPARED,
    slow: &[],
    programs: &["python3", "curl", "wrk", "sha256sum"],
    tool: Some(TOOL),
    start,
    checks: &[checks::CHECKS, &[("load", load)], clients::CHECKS, uploads::CHECKS, streams::CHECKS],
};

fn start(place: &Place) -> Result<Process> {
    let mut command = place.command(pinned::tool(TOOL)?);
    let (ip, port) = (place.address.ip().to_string(), place.address.port().to_string());
    command
        .args(["--host", &ip, "--port", &port, "--no-access-log", "--log-level", "warning", "--app-dir"])
        .arg(&place.sources)
        .arg("starlette_app:app")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let mut process = Process::start("uvicorn", &mut command, place.log.clone(), Signal::SIGTERM)?;
    process.wait_ready(place.address)?;
    Ok(process)
}

fn load(rig: &Rig) -> Result<String> {
    checks::load(rig, "/bytes?n=1024")
}
