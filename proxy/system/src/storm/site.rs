//! The sluice under the storm: its configuration, and operations on it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};
use sluice_testkit::process::{Process, bound, free_ports, sluice};
use sluice_testkit::workspace;

use super::client::{Connector, Doors};
use super::origin::{Place, Protocol};
use crate::operate::Successor;

/// HTTP/1.1 origins for routes without a limit, one for those with one, and one with HTTP/2.
const ORIGINS: usize = 4;
const LIMITED: usize = 2;
const MULTIPLEXED: usize = 3;

const POLL: Duration = Duration::from_millis(10);
const TRIES: u32 = 3000;

/// A running sluice, and its origins.
pub(super) struct Site {
    sluice: Process,
    /// The process that has taken over, if any.
    successor: Option<Successor>,
    /// Processes that may still be draining.
    replaced: Vec<Successor>,
    pub(super) doors: Doors,
    pub(super) places: Vec<Place>,
    folder: PathBuf,
    binary: PathBuf,
    certificates: Value,
    kernel: Value,
    workers: usize,
}

impl Site {
    /// Starts it with these kernel assists and this many workers.
    ///
    /// # Errors
    /// When it does not start; with its log.
    pub(super) fn start(name: &str, binary: &Path, kernel: Value, workers: usize) -> Result<Self> {
        let folder = workspace::scratch("storm")?.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let (connector, files) = Connector::make(&folder)?;
        let certificates = json!([{"cert": files.certificate, "key": files.key}]);
        let ports: [u16; ORIGINS + 2] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let [plain, secure, places @ ..] = ports.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let protocol = |index| if index == MULTIPLEXED { Protocol::Http2 } else { Protocol::Http1 };
        let place = |(index, address)| Place { address, protocol: protocol(index) };
        let places = places.into_iter().enumerate().map(place).collect();
        let mut command = sluice(binary);
        let file = folder.join("sluice.yaml");
        command.arg("--config").arg(&file);
        let doors = Doors { plain, secure, connector };
        let settings = Settings { doors: &doors, places: &places, certificates: &certificates, workers };
        write(&file, &settings.config(&folder, &kernel, 0))?;
        let log = workspace::scratch("logs")?.join(format!("{name}-sluice.log"));
        let mut sluice = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
        sluice.wait_ready(plain)?;
        let (binary, successor, replaced) = (binary.to_owned(), None, Vec::new());
        let site = Self {
            sluice,
            successor,
            replaced,
            doors,
            places,
            folder,
            binary,
            certificates,
            kernel,
            workers,
        };
        site.wait_for_control()?;
        Ok(site)
    }

    /// The socket is put in place last.
    fn wait_for_control(&self) -> Result<()> {
        for _ in 0..TRIES {
            if UnixStream::connect(self.folder.join("control.sock")).is_ok() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("no control socket\n{}", self.sluice.tail());
    }

    /// Applies another configuration.
    ///
    /// # Errors
    /// When sluice refuses it.
    pub(super) fn reload(&self, variant: usize) -> Result<()> {
        let Self { doors, places, certificates, workers, .. } = self;
        let settings = Settings { doors, places, certificates, workers: *workers };
        let config = settings.config(&self.folder, &self.kernel, variant);
        write(&self.folder.join("sluice.yaml"), &config)?;
        self.command("reload").map(drop)
    }

    /// Lets another process take over.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn upgrade(&mut self) -> Result<()> {
        let said = self.command("upgrade")?;
        let pid =
            said.strip_prefix("process ").and_then(|rest| rest.trim_end().strip_suffix(" has taken over"));
        let pid = pid.with_context(|| said.clone())?.parse().with_context(|| said.clone())?;
        self.replaced.extend(self.successor.replace(Successor(Pid::from_raw(pid))));
        Ok(())
    }

    /// Stops it; every process must exit in order.
    ///
    /// # Errors
    /// When the first one does not, or its log contains a panic.
    pub(super) fn stop(mut self) -> Result<()> {
        match self.successor.take() {
            Some(_) => self.sluice.wait().context("the first process")?,
            None => _ = self.sluice.stop()?,
        }
        self.replaced.clear();
        let log = fs::read_to_string(self.sluice.log()).unwrap_or_default();
        let panic = log.lines().find(|line| line.contains("panicked"));
        ensure!(panic.is_none(), "{}\nlog: {}", panic.unwrap_or_default(), self.sluice.log().display());
        Ok(())
    }

    fn command(&self, name: &str) -> Result<String> {
        let mut command = bound(&self.binary);
        command.arg(name).env("SLUICE_CONTROL", self.folder.join("control.sock")).stdin(Stdio::null());
        let output = command.output().with_context(|| name.to_owned())?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let (status, tail) = (output.status, self.sluice.tail());
        ensure!(status.success(), "`sluice {name}` exits with {status}: {said}\n{tail}");
        Ok(said)
    }
}

fn write(file: &Path, config: &Value) -> Result<()> {
    fs::write(file, format!("{config:#}\n")).with_context(|| file.display().to_string())
}

/// The parameters of a configuration.
struct Settings<'a> {
    doors: &'a Doors,
    places: &'a Vec<Place>,
    certificates: &'a Value,
    workers: usize,
}

impl Settings<'_> {
    /// Variants differ in what a reload rebuilds.
    fn config(&self, folder: &Path, kernel: &Value, variant: usize) -> Value {
        let log = if std::env::var_os("SLUICE_STORM_LOG").is_some() { "stdout" } else { "off" };
        // Whole requests may go to several endpoints, one after the other or at the same time.
        let retry =
            json!({"statuses": ["502-504"], "hedge": variant.is_multiple_of(2), "budget_percent": 100});
        let held = json!({"name": "held", "path_prefix": "/held", "cluster": "free", "buffer_requests": "on",
            "buffer_responses": "on", "buffer_memory_bytes": 65536, "response_body_bytes_max": 0, "retry": retry});
        // Responses are encoded, or returned directly.
        let mut free = json!({"name": "free", "cluster": "free"});
        if variant % 2 == 1 {
            free["compress"] = json!({"body_min": 0, "level": "fast"});
        }
        // Its responses are kept, and given to others.
        let mut limited = json!({"name": "limited", "path_prefix": "/limited", "cluster": "limited"});
        let mut multiplexed = json!({"name": "multiplexed", "path_prefix": "/multiplexed", "cluster": "multiplexed",
            "compress": {"body_min": 0}});
        if !variant.is_multiple_of(4) {
            limited["cache"] = json!("small");
            multiplexed["cache"] = json!("small");
        }
        if variant % 4 == 1 {
            free["cache"] = json!("small");
        }
        json!({
            "caches": {"small": {"memory_max": "4m", "object_max": "256k", "wait_max": "1s"}},
            "compression": {"cpu_percent_max": 100},
            "listeners": [
                {"name": "plain", "address": self.doors.plain, "http2": "prior_knowledge"},
                {"name": "secure", "address": self.doors.secure, "http3": "auto",
                    "tls": {"certificates": self.certificates}},
            ],
            "routes": [
                limited,
                multiplexed,
                held,
                free,
            ],
            "clusters": self.clusters(variant),
            "limits": {"half_close_timeout_ms": 30000},
            "control": format!("unix:{}", folder.join("control.sock").display()),
            "access_log": {"output": log},
            "workers": self.workers,
            "kernel": kernel,
        })
    }

    fn clusters(&self, variant: usize) -> Value {
        let balance = ["least_requests", "round_robin", "random_two"][variant % 3];
        let idle = [1024, 4, 64][variant / 3 % 3];
        let cluster = |from: usize, to: usize| {
            let addresses: Vec<SocketAddr> =
                self.places[from..to].iter().map(|place| place.address).collect();
            json!({
                "endpoints": addresses,
                "balance": balance,
                // Odd responses are not an outage here.
                "ejection": {"consecutive_failures": 0},
                "pool": {"idle_max_per_endpoint": idle},
                "connect_timeout_ms": 3000,
                "response_timeout_ms": 4000,
                // A client on starved cores is silent for seconds: a cut for that is no fault.
                "body_idle_timeout_ms": 10_000,
            })
        };
        let mut limited = cluster(LIMITED, LIMITED + 1);
        limited["max_in_flight"] = json!(12 + variant % 2 * 12);
        let mut multiplexed = cluster(MULTIPLEXED, MULTIPLEXED + 1);
        multiplexed["protocol"] = json!("h2");
        json!({"free": cluster(0, LIMITED), "limited": limited, "multiplexed": multiplexed})
    }
}
