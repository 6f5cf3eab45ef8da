//! A version of an application on a real Puma, which listens on several ports: one for each of its deploys.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::workspace;

use super::client::Client;
use super::site::{Site, local};

/// Deploys of one version.
pub(super) const DEPLOYS: usize = 10;
/// Options of its deploys. A Puma whose threads all have busy connections accepts no other one, so one thread is left
/// for requests that do not pass through sluice.
pub(super) const FLAGS: &str = "--host app.test --max-in-flight 3 --health-check-interval 50ms";

/// A running Puma of two to four threads.
pub(super) struct Puma {
    process: Process,
    /// A port for each deploy of it.
    pub(super) ports: [u16; DEPLOYS],
    /// The port for requests of the checks that do not pass through sluice.
    own: u16,
}

impl Puma {
    /// Starts one without waiting until it listens: a deploy waits.
    ///
    /// # Errors
    /// When it cannot start.
    pub(super) fn boot(site: &Site, name: &str, version: usize) -> Result<Self> {
        let [own, ports @ ..] = free_ports::<{ DEPLOYS + 1 }>(Ipv4Addr::LOCALHOST.into())?;
        let mut command = bound("puma");
        // `-C -`: ignores configuration files of the current user.
        command.args(["-C", "-", "--environment", "production", "--threads", "2:4"]);
        for port in ports.iter().chain([&own]) {
            command.args(["--bind", &format!("tcp://{}", local(*port))]);
        }
        command.arg(workspace::root().join("bench/origins/puma/deployed.ru")).current_dir(&site.folder);
        command.env("APP_VERSION", version.to_string());
        let log = workspace::scratch("logs")?.join(format!("{name}-puma-{version}.log"));
        let process = Process::start("puma", &mut command, log, Signal::SIGTERM)?;
        Ok(Self { process, ports, own })
    }

    /// Waits until it listens on all ports.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready(local(self.own))
    }

    /// The requests it has received so far, by port.
    ///
    /// # Errors
    /// When it does not respond.
    pub(super) fn counts(&self) -> Result<BTreeMap<u16, u64>> {
        let answer = Client::connect(local(self.own))?.get("/counts", true)?;
        let count = |line: &str| {
            let (port, count) = line.split_once(' ')?;
            Some((port.parse().ok()?, count.parse().ok()?))
        };
        answer.text.lines().map(|line| count(line).with_context(|| line.to_owned())).collect()
    }

    /// Stops it, as a deploy script does once the version is drained.
    ///
    /// # Errors
    /// When it had exited before, or does not exit.
    pub(super) fn stop(&mut self) -> Result<()> {
        let status = self.process.stop()?;
        // It exits by the signal, once it has closed its sockets.
        ensure!(status.code().is_none_or(|code| code == 0 || code == 143), "Puma exits with {status}");
        Ok(())
    }
}
