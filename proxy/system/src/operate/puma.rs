//! A version of an application on a real Puma, listening on several ports: one for each of its deploys.

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
/// What a deploy of it says. A Puma whose threads all have connections that never pause accepts no other, so one is left
/// over for those who ask it past sluice.
pub(super) const FLAGS: &str = "--host app.test --max-in-flight 3 --health-check-interval 50ms";

/// A running Puma of two to four threads.
pub(super) struct Puma {
    process: Process,
    /// A port for each deploy of it.
    pub(super) ports: [u16; DEPLOYS],
    /// The port by which the checks ask it, past sluice.
    own: u16,
}

impl Puma {
    /// Starts one, and does not wait until it listens: a deploy does.
    ///
    /// # Errors
    /// When it cannot start.
    pub(super) fn boot(site: &Site, name: &str, version: usize) -> Result<Self> {
        let [own, ports @ ..] = free_ports::<{ DEPLOYS + 1 }>(Ipv4Addr::LOCALHOST.into())?;
        let mut command = bound("puma");
        // `-C -`: no configuration file of whoever runs this.
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

    /// Waits until it listens everywhere.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn wait_ready(&mut self) -> Result<()> {
        self.process.wait_ready(local(self.own))
    }

    /// The requests that it has been asked so far, by port.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn counts(&self) -> Result<BTreeMap<u16, u64>> {
        let answer = Client::connect(local(self.own))?.get("/counts", true)?;
        let count = |line: &str| {
            let (port, count) = line.split_once(' ')?;
            Some((port.parse().ok()?, count.parse().ok()?))
        };
        answer.text.lines().map(|line| count(line).with_context(|| line.to_owned())).collect()
    }

    /// Ends it, as a deploy script does once the version is drained.
    ///
    /// # Errors
    /// When it had ended before, or does not end.
    pub(super) fn stop(&mut self) -> Result<()> {
        let status = self.process.stop()?;
        // It ends by the signal, once it has closed its sockets.
        ensure!(status.code().is_none_or(|code| code == 0 || code == 143), "Puma ends with {status}");
        Ok(())
    }
}
