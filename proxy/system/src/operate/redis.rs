//! A Redis in memory alone, which can be killed and started again.

use std::net::Ipv4Addr;

use anyhow::Result;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::workspace;

use super::site::local;

/// A Redis that forgets everything when it ends.
pub(super) struct Redis {
    port: u16,
    process: Option<Process>,
}

impl Redis {
    /// One that is started.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn started() -> Result<Self> {
        let [port] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let mut redis = Self { port, process: None };
        redis.start()?;
        Ok(redis)
    }

    /// As a store.
    pub(super) fn store(&self, prefix: &str) -> Value {
        json!({
            "redis": {"address": local(self.port), "prefix": prefix}, "member_ttl": "3s", "confirm_timeout": "5s",
            "first_timeout": "1s",
        })
    }

    /// Starts it, again if it was killed.
    ///
    /// # Errors
    /// It does not start.
    pub(super) fn start(&mut self) -> Result<()> {
        let mut command = bound("redis-server");
        command.args([
            "--port",
            &self.port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let log = workspace::scratch("logs")?.join("redis.log");
        let mut redis = Process::start("redis-server", &mut command, log, Signal::SIGTERM)?;
        redis.wait_ready(local(self.port))?;
        self.process = Some(redis);
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
