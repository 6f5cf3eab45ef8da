//! An origin and one sluice in front of it, both ours and both gone when the rig is dropped.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::{App, example};
use crate::process::{Process, bound, free_ports};
use crate::workspace;

/// Where an origin runs.
pub(super) struct Place {
    /// The address it shall listen on.
    pub(super) address: SocketAddr,
    /// A folder of its own, empty at start.
    pub(super) folder: PathBuf,
    /// Its committed sources.
    pub(super) sources: PathBuf,
    /// Its log.
    pub(super) log: PathBuf,
}

/// A running pair.
pub(super) struct Rig {
    /// The server behind.
    pub(super) origin: Process,
    /// The proxy in front.
    pub(super) sluice: Process,
    /// The server's address and folder.
    pub(super) place: Place,
    /// The proxy's address.
    pub(super) address: SocketAddr,
    /// What to send as Host.
    pub(super) host: &'static str,
    /// Whether the long runs are asked for.
    pub(super) big: bool,
}

impl Rig {
    /// Starts both and waits until they listen.
    ///
    /// # Errors
    /// When one does not come up; with its log.
    pub(super) fn start(app: &App, binary: &Path, big: bool) -> Result<Self> {
        let root = workspace::root();
        let [origin, proxy, admin] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let folder = workspace::scratch("apps")?.join(app.name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let logs = workspace::scratch("logs")?;
        let place = Place {
            address: local(origin),
            folder,
            sources: root.join("bench/origins").join(app.name),
            log: logs.join(format!("{}-origin.log", app.name)),
        };
        let config = place.folder.join("sluice.yaml");
        let example = root.join("config/examples").join(app.example);
        let adapted = example::adapt(&example, local(proxy), local(admin), place.address)?;
        fs::write(&config, adapted).with_context(|| config.display().to_string())?;

        let origin = (app.start)(&place)?;
        let mut command = bound(binary);
        command.args(["run", "--config"]).arg(&config);
        let log = logs.join(format!("{}-sluice.log", app.name));
        let mut sluice = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
        sluice.wait_ready(local(proxy))?;
        Ok(Self { origin, sluice, place, address: local(proxy), host: app.host, big })
    }

    /// A URL through sluice.
    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The same, past sluice.
    pub(super) fn direct_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.place.address)
    }
}
