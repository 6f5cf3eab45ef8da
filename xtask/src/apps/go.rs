//! Go's net/http: large bodies, streams, header fields, a WebSocket.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;

use super::rig::{Place, Rig};
use super::wire::Wire;
use super::{App, checks, curl, websocket};
use crate::process::{Process, bound};
use crate::workspace::{must, scratch};

const HELLO: &str = "hello from go";
const BYTES: u64 = 64 << 20;
const BYTES_BIG: u64 = 1 << 30;

/// See `config/examples/go.yaml`.
pub(super) const APP: App = App {
    name: "go",
    example: "go.yaml",
    host: "api.example.com",
    programs: &["go", "curl", "wrk", "sha256sum"],
    start,
    checks: &[
        ("get", |rig| checks::get(rig, "/", HELLO)),
        ("head", |rig| checks::head(rig, "/")),
        ("not_found", checks::not_found),
        ("keep_alive", |rig| checks::keep_alive(rig, "/")),
        ("fields", fields),
        ("stream", stream),
        ("first_byte_is_not_held_back", first_byte),
        ("websocket", websocket::echo),
        ("bytes_both_ways", bytes_both_ways),
        ("parallel", |rig| checks::parallel(rig, "/", HELLO)),
        ("wrk", |rig| checks::load(rig, "/bytes?n=1024")),
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
        // The standard library is all it needs: no toolchain and no module is fetched.
        .env("GOTOOLCHAIN", "local")
        .env("GOPROXY", "off")
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("GOCACHE", scratch("go-cache")?)
        .env("CGO_ENABLED", "0");
    must(&mut build)?;
    let mut command = bound(&program);
    command.args(["-listen", &place.address.to_string()]);
    let mut process = Process::start("go", &mut command, place.log.clone(), Signal::SIGTERM)?;
    process.wait_ready(place.address)?;
    Ok(process)
}

fn bytes_both_ways(rig: &Rig) -> Result<String> {
    checks::bytes_both_ways(rig, if rig.big { BYTES_BIG } else { BYTES })
}

/// Hop-by-hop fields stay behind (RFC 9110 7.6.1), the fields that sluice owes the origin arrive.
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

/// Many small flushed pieces arrive in order and whole.
fn stream(rig: &Rig) -> Result<String> {
    const LINES: usize = 2000;
    let answer = curl::curl(rig, &["--no-buffer"], &[&format!("/stream?n={LINES}")])?;
    let wanted: String = (0..LINES).map(|i| format!("line {i}\n")).collect();
    ensure!(answer.text.trim_end() == wanted.trim_end(), "{} bytes", answer.size);
    Ok(String::new())
}

/// The origin keeps its last line until asked, which happens once the first has arrived: no clock needed.
fn first_byte(rig: &Rig) -> Result<String> {
    let mut wire = Wire::connect(rig)?;
    let request = format!("GET /gated?id=a HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", rig.host);
    wire.send(request.as_bytes())?;
    wire.until(b"first\n").context("the first line, while the origin holds the last")?;
    checks::get(rig, "/release?id=a", "released")?;
    wire.until(b"last\n")?;
    wire.rest()?;
    Ok(String::new())
}
