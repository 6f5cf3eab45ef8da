//! An agent of Consul in memory alone, which can be killed and started again.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sluice_testkit::pinned;
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::workspace;

use super::site::local;

/// An agent.
pub(super) struct Consul {
    program: PathBuf,
    ports: [u16; 4],
    process: Option<Process>,
}

impl Consul {
    /// One that is started.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn started() -> Result<Self> {
        let ports = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let mut consul = Self { program: pinned::tool("consul")?, ports, process: None };
        consul.start()?;
        Ok(consul)
    }

    /// The URL of its interface.
    pub(super) fn url(&self) -> String {
        format!("http://{}", local(self.ports[0]))
    }

    /// Starts it, again if it was killed.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(&mut self) -> Result<()> {
        let [http, server, lan, wan] = self.ports.map(|port| port.to_string());
        let mut command = bound(&self.program);
        command.args(["agent", "-dev", "-bind", "127.0.0.1", "-dns-port", "-1", "-grpc-port", "-1"]);
        command.args(["-grpc-tls-port", "-1", "-http-port", &http, "-server-port", &server]);
        command.args(["-serf-lan-port", &lan, "-serf-wan-port", &wan]);
        let log = workspace::scratch("logs")?.join("consul.log");
        let mut consul = Process::start("consul", &mut command, log, Signal::SIGTERM)?;
        consul.wait_ready(local(self.ports[0]))?;
        self.process = Some(consul);
        Ok(())
    }

    /// Kills it as a power failure would.
    ///
    /// # Errors
    /// It cannot be killed.
    pub(super) fn kill(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            kill(Pid::from_raw(i32::try_from(process.pid())?), Signal::SIGKILL)?;
        }
        Ok(())
    }
}
