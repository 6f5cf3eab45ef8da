//! The sluice under test: one listener, one route, one endpoint, and an added field in each request.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::Signal;
use sluice_testkit::process::{Process, free_ports, sluice};
use sluice_testkit::{metrics, workspace};

use super::forwarded::TOKEN_FIELD;
use super::servers::ServerKind;
use crate::apps::REQUIRED;

/// What is under test, and how.
#[derive(Clone, Copy)]
pub(super) struct Under<'a> {
    pub(super) binary: &'a Path,
    /// `kernel.bypass`, if connections are joined.
    pub(super) joined: Option<&'a str>,
    /// The real server behind it, if it is one.
    pub(super) server: Option<&'a ServerKind>,
}

/// A running sluice and its address.
pub(super) struct Proxy {
    process: Process,
    pub(super) address: SocketAddr,
    /// The admin address for its counters, if connections must be joined.
    admin: Option<SocketAddr>,
}

impl Proxy {
    /// Starts it in front of `endpoint`; its log is named after `name`.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn start(under: &Under<'_>, name: &str, endpoint: SocketAddr, token: &str) -> Result<Self> {
        let name = format!("{}{name}", if under.joined.is_some() { "joined-" } else { "" });
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let [address, admin] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
        let config = workspace::scratch("differential")?.join(format!("{name}.yaml"));
        fs::write(&config, configuration([address, admin, endpoint], token, under))
            .with_context(|| config.display().to_string())?;
        let mut command = sluice(under.binary);
        command.arg("--config").arg(&config);
        let log = workspace::scratch("logs")?.join(format!("differential-{name}-sluice.log"));
        let mut process = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
        process.wait_ready(address)?;
        let admin = Some(admin).filter(|_| under.joined == Some(REQUIRED));
        Ok(Self { process, address, admin })
    }

    /// Stops it, and with it all connections to its endpoint.
    ///
    /// # Errors
    /// When it has exited before, or does not exit.
    pub(super) fn stop(&mut self) -> Result<()> {
        self.process.stop().map(drop)
    }

    /// Adds to a note how many pairs were joined, and how many responses used direct return.
    ///
    /// # Errors
    /// When connections must be joined and none was, or the counters cannot be read.
    pub(super) fn joined(&self, note: String) -> Result<String> {
        let Some(admin) = self.admin else {
            return Ok(note);
        };
        let (pairs, direct) = (metrics::pairs_joined(admin)?, metrics::direct_returns(admin)?);
        // Few of these responses can use direct return: nearly all of them are wrong in some way.
        ensure!(pairs > 0, "no pair was joined; {note}");
        Ok(format!("{note}; {pairs} pairs joined, {direct} direct returns"))
    }

    /// An error with sluice's log.
    pub(super) fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        anyhow!("{error:#}\n{}", self.process.tail())
    }
}

/// A value for the added field that no generated case can contain.
pub(super) fn token() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// Time limits have their default values, except that of a half-closed client: no other one should be needed.
fn configuration([address, admin, endpoint]: [SocketAddr; 3], token: &str, under: &Under<'_>) -> String {
    let max_in_flight = under.server.map_or("off", |server| server.max_in_flight);
    // Some servers never respond to what they do not understand.
    let half_close_timeout_ms = if under.server.is_some() { 100 } else { 1000 };
    let kernel = match under.joined {
        // Every eligible response uses direct return.
        Some(bypass) => {
            format!("{{bypass: {bypass}, direct_return_from_request: 1, direct_return_bytes_min: 0}}")
        }
        None => "{bypass: off}".to_owned(),
    };
    format!(
        "listeners: [{{address: '{address}'}}]
limits: {{half_close_timeout_ms: {half_close_timeout_ms}}}
clusters:
  origin:
    endpoints: ['{endpoint}']
    ejection: {{consecutive_failures: 0}}
    max_in_flight: {max_in_flight}
routes:
  - cluster: origin
    request_headers: {{set: {{{TOKEN_FIELD}: {token}}}}}
access_log: off
control: off
admin: '{admin}'
kernel: {kernel}
"
    )
}
