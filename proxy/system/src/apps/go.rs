//! Go's net/http: large bodies, streams, header fields, a WebSocket.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use sluice_testkit::process::{Process, bound};
use sluice_testkit::workspace::{must, scratch};

use super::rig::{Place, Rig};
use super::{App, COMPARED, LARGE, SLOW, checks, clients, curl, streams, uploads, websocket};

const BYTES: u64 = 64 << 20;
const BYTES_BIG: u64 = 1 << 30;

/// See `config/examples/go.yaml`.
pub(super) const APP: App = App {
    name: "go",
    example: "go.yaml",
    sources: "go",
    host: "api.example.com",
    prefix: "",
    path: "/",
    hello: "hello from go",
    large: LARGE,
    compared: COMPARED,
    slow: SLOW,
    programs: &["go", "curl", "wrk", "sha256sum"],
    tool: None,
    start,
    checks: &[
        checks::CHECKS,
        &[
            ("fields", fields),
            ("websocket", websocket::echo),
            ("bytes_both_ways", bytes_both_ways),
            ("load", |rig| checks::load(rig, "/bytes?n=1024")),
        ],
        clients::CHECKS,
        uploads::CHECKS,
        streams::CHECKS,
    ],
};

fn start(place: &Place) -> Result<Process> {
    let program = scratch("apps")?.join("go-origin");
    let mut build = bound("go");
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(&place.sources)
        // It only needs the standard library: no toolchain and no module is fetched.
        .env("GOTOOLCHAIN", "local")
        .env("GOPROXY", "off")
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("GOCACHE", scratch("go-cache")?)
        .env("CGO_ENABLED", "0");
    must(&mut build)?;
    let mut command = place.command(&program);
    command.args(["-listen", &place.address.to_string()]);
    let mut process = Process::start("go", &mut command, place.log.clone(), Signal::SIGTERM)?;
    process.wait_ready(place.address)?;
    Ok(process)
}

fn bytes_both_ways(rig: &Rig) -> Result<String> {
    checks::bytes_both_ways(rig, if rig.big { BYTES_BIG } else { BYTES })
}

/// Hop-by-hop fields are removed (RFC 9110 7.6.1), and the fields that sluice adds arrive.
fn fields(rig: &Rig) -> Result<String> {
    let sent = ["--header", "Connection: x-hop", "--header", "X-Hop: 1", "--header", "X-End: 2"];
    let answer = curl::curl(rig, &sent, &["/echo"])?;
    let text = format!("\n{}", answer.text);
    for wanted in ["Host: api.example.com", "X-End: 2", "X-Forwarded-For: 127.0.0.1"] {
        ensure!(text.contains(&format!("\n{wanted}\n")), "no {wanted}:{text}");
    }
    for wanted in ["X-Request-Id: ", "X-Request-Start: t=", "X-Forwarded-Proto: http"] {
        ensure!(text.contains(&format!("\n{wanted}")), "no {wanted}:{text}");
    }
    ensure!(!text.contains("\nX-Hop:"), "hop-by-hop field forwarded:{text}");
    Ok(String::new())
}
