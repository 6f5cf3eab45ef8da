//! Real servers with an application that records every request it receives.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use nix::sys::signal::Signal;
use sluice_testkit::packages::Tools;
use sluice_testkit::pinned;
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::workspace::{self, must, scratch};

/// Address of the servers. Not the address of sluice, nor that of a client.
const IP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// uvicorn, as installed by the tools of `bench`.
const UVICORN: &str = "starlette";

/// One kind of server.
pub(super) struct ServerKind {
    /// The name of its check.
    pub(super) check: &'static str,
    programs: &'static [&'static str],
    /// The tool of `bench` that it needs.
    tool: Option<&'static str>,
    command: fn(SocketAddr) -> Result<Command>,
    /// `max_in_flight`: the number of its threads, if each waits on an idle connection.
    pub(super) max_in_flight: &'static str,
    /// Whether its application sees the target as it was sent.
    pub(super) keeps_target: bool,
}

/// Every tested server.
pub(super) const SERVERS: [ServerKind; 5] = [
    ServerKind {
        check: "differential::puma",
        programs: &["puma", "ruby", "rack"],
        tool: None,
        command: puma,
        max_in_flight: "4",
        keeps_target: true,
    },
    ServerKind {
        check: "differential::go",
        programs: &["go"],
        tool: None,
        command: go,
        max_in_flight: "off",
        keeps_target: true,
    },
    ServerKind {
        check: "differential::node",
        programs: &["node"],
        tool: None,
        command: node,
        max_in_flight: "off",
        keeps_target: true,
    },
    ServerKind {
        check: "differential::uvicorn",
        programs: &["python3"],
        tool: Some(UVICORN),
        command: |address| uvicorn(address, "httptools"),
        max_in_flight: "off",
        keeps_target: false,
    },
    ServerKind {
        check: "differential::uvicorn_h11",
        programs: &["python3"],
        tool: Some(UVICORN),
        command: |address| uvicorn(address, "h11"),
        max_in_flight: "off",
        keeps_target: false,
    },
];

impl ServerKind {
    /// Why it cannot be tested here, if so.
    pub(super) fn lack(&self, tools: &Tools) -> Option<String> {
        tools.lack(self.programs).or_else(|| {
            let tool = self.tool?;
            Some(format!("{tool} is not available: {:#}", pinned::tool(tool).err()?))
        })
    }

    /// The last part of its name.
    pub(super) fn short_name(&self) -> &'static str {
        self.check.rsplit("::").next().unwrap_or(self.check)
    }

    /// Starts it; returns when it listens.
    ///
    /// # Errors
    /// When it does not start; with its log.
    pub(super) fn start(&self) -> Result<(Process, SocketAddr)> {
        let [port] = free_ports(IP.into())?;
        let address = SocketAddr::from((IP, port));
        let name = self.short_name();
        let log = scratch("logs")?.join(format!("differential-{name}.log"));
        let mut process = Process::start(name, &mut (self.command)(address)?, log, Signal::SIGTERM)?;
        process.wait_ready(address)?;
        Ok((process, address))
    }
}

fn sources() -> PathBuf {
    workspace::root().join("proxy/system/differential/servers")
}

fn puma(address: SocketAddr) -> Result<Command> {
    let mut command = bound("puma");
    command
        .args(["-C", "-", "--environment", "production", "--threads", "4:4"])
        .args(["--bind", &format!("tcp://{address}")])
        .arg(sources().join("config.ru"))
        .current_dir(scratch("differential")?);
    Ok(command)
}

fn go(address: SocketAddr) -> Result<Command> {
    let program = scratch("differential")?.join("go-server");
    let mut build = bound("go");
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(sources().join("go"))
        // It only needs the standard library: no toolchain and no module is fetched.
        .env("GOTOOLCHAIN", "local")
        .env("GOPROXY", "off")
        .env("GOFLAGS", "-mod=mod -buildvcs=false")
        .env("GOCACHE", scratch("go-cache")?)
        .env("CGO_ENABLED", "0");
    must(&mut build)?;
    let mut command = bound(&program);
    command.args(["-listen", &address.to_string()]);
    Ok(command)
}

fn node(address: SocketAddr) -> Result<Command> {
    let mut command = bound("node");
    command.arg(sources().join("server.js")).arg(address.to_string());
    Ok(command)
}

fn uvicorn(address: SocketAddr, parser: &str) -> Result<Command> {
    let mut command = bound(pinned::tool(UVICORN)?);
    command
        .args(["--host", &address.ip().to_string(), "--port", &address.port().to_string()])
        .args(["--http", parser, "--no-access-log", "--log-level", "critical", "--lifespan", "off"])
        .arg("--app-dir")
        .arg(sources())
        .arg("app:app")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}
