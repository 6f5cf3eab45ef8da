//! Puma, one process with four threads, with a Rack application.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use sluice_testkit::process::Process;

use super::rig::{Place, Rig};
use super::{App, COMPARED, LARGE, SLOW, checks, clients, curl, storm, streams, uploads};

const BYTES: u64 = 8 << 20;

/// See `config/examples/puma.yaml`.
pub(super) const APP: App = App {
    name: "puma",
    example: "puma.yaml",
    sources: "puma",
    host: "localhost",
    prefix: "",
    path: "/",
    hello: "hello from puma",
    large: LARGE,
    compared: COMPARED,
    slow: SLOW,
    programs: &["puma", "ruby", "rack", "curl", "wrk", "sha256sum"],
    tool: None,
    start,
    checks: &[
        checks::CHECKS,
        &[
            ("delayed_answer", delayed_answer),
            ("bytes_both_ways", |rig| checks::bytes_both_ways(rig, BYTES)),
            ("load", |rig| checks::load(rig, "/")),
        ],
        clients::CHECKS,
        uploads::CHECKS,
        streams::CHECKS,
        &[("storm", storm::storm)],
    ],
};

fn start(place: &Place) -> Result<Process> {
    let mut command = place.command("puma");
    command
        // `-C -`: ignores configuration files of the current user.
        .args(["-C", "-", "--environment", "production", "--threads", "4:4"])
        .args(["--bind", &format!("tcp://{}", place.address)])
        .arg(place.sources.join("config.ru"))
        .current_dir(&place.folder);
    let mut process = Process::start("puma", &mut command, place.log.clone(), Signal::SIGTERM)?;
    process.wait_ready(place.address)?;
    Ok(process)
}

/// Ten slow requests on four threads: some wait in the queue, none is lost.
fn delayed_answer(rig: &Rig) -> Result<String> {
    let paths = ["/delay?ms=50"; 10];
    let answer = curl::curl(rig, &["--parallel", "--parallel-immediate"], &paths)?;
    ensure!(answer.connects.len() == paths.len(), "{} answers", answer.connects.len());
    let right = answer.text.lines().filter(|line| *line == "waited").count();
    ensure!(right == paths.len(), "{right} correct responses: {}", answer.text);
    Ok(String::new())
}
