//! An origin and one sluice in front of it, both stopped when the rig is dropped.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use sluice_testkit::process::{Process, bound, find_program, free_ports, sluice};
use sluice_testkit::workspace;

use super::variant::{Ground, Variant};
use super::{App, REQUIRED, Run, example};

/// Where an origin runs.
pub(super) struct Place<'g> {
    /// The address to listen on.
    pub(super) address: SocketAddr,
    /// Its own folder, empty at start.
    pub(super) folder: PathBuf,
    /// Its committed sources.
    pub(super) sources: PathBuf,
    /// Its log.
    pub(super) log: PathBuf,
    ground: &'g Ground,
}

/// A running pair.
pub(super) struct Rig<'g> {
    /// The origin.
    pub(super) origin: Process,
    /// The proxy.
    pub(super) sluice: Process,
    /// The origin's address and folder.
    pub(super) place: Place<'g>,
    /// The proxy's address.
    pub(super) address: SocketAddr,
    /// The proxy's admin listener.
    pub(super) admin: SocketAddr,
    /// The application.
    pub(super) app: &'static App,
    /// The Host to send.
    pub(super) host: &'static str,
    /// Whether the long runs are requested.
    pub(super) big: bool,
    /// Whether connections must be joined.
    pub(super) required: bool,
    binary: PathBuf,
}

impl Place<'_> {
    /// A command for a program at this place that ends with us.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        match &self.ground.network {
            Some(network) => {
                let found = program.to_str().and_then(find_program);
                network.command(found.as_deref().unwrap_or(program))
            }
            None => bound(program),
        }
    }
}

impl<'g> Rig<'g> {
    /// Starts both and waits until they listen.
    ///
    /// # Errors
    /// When one does not start; with its log.
    pub(super) fn start(app: &'static App, variant: &Variant, ground: &'g Ground, run: &Run) -> Result<Self> {
        let name = format!("{}-{}", variant.name.replace("::", "-"), app.name);
        let folder = workspace::scratch("apps")?.join(&name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let place = Place {
            address: ground.address()?,
            folder,
            sources: workspace::root().join("bench/origins").join(app.sources),
            log: workspace::scratch("logs")?.join(format!("{name}-origin.log")),
            ground,
        };
        let origin = (app.start)(&place)?;
        if let Some(network) = &ground.network {
            network.must_hold(origin.pid())?;
        }
        let (sluice, address, admin) =
            start_sluice(app, &place, run.binary, &name, run.bypass, run.bypass == REQUIRED)?;
        let required = run.bypass == REQUIRED;
        let (host, big, binary) = (app.host, run.big, run.binary.to_path_buf());
        Ok(Self { origin, sluice, place, address, admin, app, host, big, required, binary })
    }

    /// Starts another sluice in front of the same origin, which copies; returns its address.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn copying(&self) -> Result<(Process, SocketAddr)> {
        let name = format!("{}-copying", self.app.name);
        let (sluice, address, _) =
            start_sluice(self.app, &self.place, &self.binary, &name, "off", self.required)?;
        Ok((sluice, address))
    }

    /// Starts another sluice in front of the same origin that forwards everything, with these keys set; returns its
    /// address and that of its admin listener.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn plain(&self, name: &str, set: &[String]) -> Result<(Process, SocketAddr, SocketAddr)> {
        let [proxy, admin] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
        let mut command = sluice(&self.binary);
        command.args(["--listen", &proxy.to_string(), "--to", &self.place.address.to_string()]);
        command.args(["--set", &format!("admin={admin}"), "--set", "access_log=off"]);
        for key in set {
            command.args(["--set", key]);
        }
        let log = workspace::scratch("logs")?.join(format!("{}-{name}-sluice.log", self.app.name));
        let mut sluice = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
        sluice.wait_ready(proxy)?;
        Ok((sluice, proxy, admin))
    }

    /// A request target that the example routes to the origin.
    pub(super) fn target(&self, path: &str) -> String {
        format!("{}{path}", self.app.prefix)
    }

    /// A URL through sluice.
    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{}", self.address, self.target(path))
    }

    /// The same, directly at the origin.
    pub(super) fn direct_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.place.address)
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Starts a sluice with the app's example; returns its address and that of its admin listener.
#[expect(clippy::too_many_arguments, reason = "called for each way in which an application is tested")]
fn start_sluice(
    app: &App,
    place: &Place,
    binary: &Path,
    name: &str,
    bypass: &str,
    as_they_come: bool,
) -> Result<(Process, SocketAddr, SocketAddr)> {
    let [proxy, admin] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
    let config = place.folder.join(format!("{name}.yaml"));
    let example = workspace::root().join("config/examples").join(app.example);
    let adapted = example::adapt(&example, proxy, admin, place.address, as_they_come)?;
    fs::write(&config, adapted).with_context(|| config.display().to_string())?;
    let mut command = sluice(binary);
    command.arg("--config").arg(&config);
    command.args(["--set", &format!("kernel.bypass={bypass}")]);
    // Most checks send one request per connection.
    command.args(["--set", "kernel.direct_return_from_request=1"]);
    command.args(["--set", "kernel.direct_return_bytes_min=0"]);
    // Its lines contain the path of each exchange.
    command.args(["--set", "access_log.format=json"]);
    let log = workspace::scratch("logs")?.join(format!("{name}-sluice.log"));
    let mut sluice = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
    sluice.wait_ready(proxy)?;
    Ok((sluice, proxy, admin))
}
