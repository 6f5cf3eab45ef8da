//! The proxy under test, and the commands of its runners.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow, ensure};
use nix::sys::signal::Signal;
use sluice_testkit::identity::Identity;
use sluice_testkit::pinned;
use sluice_testkit::process::{Process, bound, find_program, free_ports, sluice};
use sluice_testkit::{metrics, workspace};

use super::Way;
use super::relay::{Planned, Relay};
use crate::apps::REQUIRED;

const PROXY: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Address of the runner. Not the proxy's address, so that the runner's own connections differ.
const BACKEND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// Keys set for the proxy under test. The runner lets an upstream stall for 7 s, before and within its response.
const SETTINGS: &[&str] = &[
    "access_log=off",
    "clusters.default.response_timeout_ms=5000",
    "clusters.default.body_idle_timeout_ms=5000",
];

/// Keys set for buffering; little memory, so that files are used.
const HELD: &[&str] = &[
    "routes.default.buffer_requests=on",
    "routes.default.buffer_responses=on",
    "routes.default.buffer_memory_bytes=1000",
];

/// The proxy under test and the addresses of one run.
pub(super) struct Proxy {
    pub(super) process: Process,
    /// The address that the runner connects to.
    address: SocketAddr,
    backend: SocketAddr,
    /// The relay at that address, if it is not the proxy itself.
    relay: Option<Relay>,
    /// The admin address for its counters, if connections must be joined.
    admin: Option<SocketAddr>,
}

impl Proxy {
    /// Starts it; its log is named after `name`. `plans` are the messages that a relay to HTTP/2 or HTTP/3 sends.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn start(way: Way<'_>, name: &str, binary: &Path, plans: Planned) -> Result<Self> {
        let [port, admin] = free_ports(PROXY.into())?;
        let admin = Some(SocketAddr::from((PROXY, admin))).filter(|_| way.bypass() == REQUIRED);
        let [backend] = free_ports(BACKEND.into())?;
        let address = SocketAddr::from((PROXY, port));
        let backend = SocketAddr::from((BACKEND, backend));
        let mut command = sluice(binary);
        command.args(["--listen", &address.to_string()]);
        let admin_or_off = admin.map_or("off".to_owned(), |address| address.to_string());
        command.args(["--to", &backend.to_string(), "--admin", &admin_or_off]);
        command.args(["--set", &format!("kernel.bypass={}", way.bypass())]);
        // Each case uses a new connection.
        command.args(["--set", "kernel.direct_return_from_request=1"]);
        command.args(["--set", "kernel.direct_return_bytes_min=0"]);
        let held: &[&str] = if matches!(way, Way::Held) { HELD } else { &[] };
        for setting in SETTINGS.iter().chain(held) {
            command.args(["--set", setting]);
        }
        let identity = identity(way, name)?;
        if let Some(identity) = &identity {
            let (certificate, key) = (identity.certificate.display(), identity.key.display());
            let tls = format!("{{certificates: [{{cert: {certificate}, key: {key}}}]}}");
            command.args(["--set", &format!("listeners.default.tls={tls}")]);
        }
        match way {
            Way::Http2(_) => _ = command.args(["--set", "listeners.default.http2=prior_knowledge"]),
            Way::Http3(_) => _ = command.args(["--set", "listeners.default.http3=auto"]),
            _ => {}
        }
        let log = workspace::scratch("logs")?.join(format!("{name}-sluice.log"));
        let mut process = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
        process.wait_ready(address)?;
        let relay = relay(way, address, identity.as_ref(), plans)?;
        let address = relay.as_ref().map_or(address, |relay| relay.address);
        Ok(Self { process, address, backend, relay, admin })
    }

    /// Adds to a note how many pairs were joined, and how many responses used direct return; if this is required, there
    /// must be some.
    ///
    /// # Errors
    /// When there are none, or they cannot be read.
    pub(super) fn joined(&self, note: String) -> Result<String> {
        let Some(admin) = self.admin else {
            return Ok(note);
        };
        let pairs = metrics::pairs_joined(admin)?;
        let direct = metrics::direct_returns(admin)?;
        ensure!(pairs > 0 && direct > 0, "{pairs} pairs joined, {direct} direct returns; {note}");
        Ok(format!("{note}; {pairs} pairs joined, {direct} direct returns"))
    }

    /// Adds to a note how much a relay carried, which must be more than `cases`: a relay that carries nothing looks
    /// like a proxy that refuses.
    ///
    /// # Errors
    /// When it carried less.
    pub(super) fn carried(&self, note: String, cases: usize) -> Result<String> {
        let Some(relay) = &self.relay else {
            return Ok(note);
        };
        let carried = relay.carried();
        ensure!(carried > cases, "{carried} requests or connections were carried for {cases} cases; {note}");
        Ok(format!("{note}; {carried} carried"))
    }

    /// An error of the runner, with the proxy's log.
    pub(super) fn explain(&self, error: &anyhow::Error) -> anyhow::Error {
        anyhow!("{error:#}\n{}", self.process.tail())
    }

    /// The runner's command. It opens thousands of sockets, so it gets the maximum of descriptors.
    pub(super) fn runner(&self, folder: &Path, script: &str) -> Command {
        let python = find_program("python3").unwrap_or_else(|| PathBuf::from("python3"));
        let mut command = bound("/bin/sh");
        command
            .args(["-c", "ulimit -n \"$(ulimit -Hn)\"; exec \"$0\" -Bu \"$@\""])
            .arg(python)
            .arg(folder.join(script))
            .arg(self.address.to_string())
            .args(["--backend", &self.backend.to_string()]);
        command
    }
}

/// The certificate of a listener that needs one.
fn identity(way: Way<'_>, name: &str) -> Result<Option<Identity>> {
    if !matches!(way, Way::Tls(_) | Way::Http3(_)) {
        return Ok(None);
    }
    let folder = workspace::scratch("conformance")?.join(format!("{name}-tls"));
    fs::create_dir_all(&folder)?;
    Identity::make(&folder, &pinned::tool("openssl")?).map(Some)
}

/// The relay between the runner and the proxy.
fn relay(
    way: Way<'_>,
    proxy: SocketAddr,
    identity: Option<&Identity>,
    plans: Planned,
) -> Result<Option<Relay>> {
    match (way, identity) {
        (Way::Tls(_), Some(identity)) => Relay::tls(proxy, identity.client()?).map(Some),
        (Way::Http2(_), _) => Relay::http2(proxy, plans).map(Some),
        (Way::Http3(_), Some(identity)) => Relay::http3(proxy, &*identity.client()?, plans).map(Some),
        _ => Ok(None),
    }
}
