//! Endpoints that are found in real engines, under load, while these change, fail and come back.

pub(super) mod consul;
pub(super) mod dns;
pub(super) mod etcd;
pub(super) mod kubernetes;
pub(super) mod podman;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use sluice_testkit::process::{Process, free_ports};
use sluice_testkit::{metrics, workspace};

use super::encodings::nginx;
use super::etcd::{POLL, TRIES};
use super::load::{Judge, Load, MANY};
use super::site::{Site, local};

/// Servers that answer with their port.
pub(super) const APPLICATIONS: usize = 4;
const NGINX: &str = "daemon off; pid @FOLDER@/nginx.pid; error_log stderr; worker_processes 1; @USER@
events {}
http {
    access_log off;
    @TEMP_PATHS@
    server { @LISTEN@ location / { return 200 $server_port; } }
}
";

/// A sluice that finds its endpoints, nginx on several ports, and load.
struct Scene {
    site: Site,
    admin: SocketAddr,
    load: Load,
    /// Last, so that they are stopped after sluice.
    applications: Applications,
}

/// Servers that answer with their ports. The source knows them before sluice starts.
pub(super) struct Applications {
    ip: IpAddr,
    pub(super) ports: [u16; APPLICATIONS],
    _nginx: Process,
}

/// Every response has the port of an application.
struct Ports([u16; APPLICATIONS]);

impl Judge for Ports {
    fn least(&self) -> u64 {
        0
    }

    fn number(&self, text: &str) -> Result<u64> {
        let port: u16 = text.trim().parse().context("no port")?;
        ensure!(self.0.contains(&port), "port {port}");
        Ok(0)
    }
}

impl Applications {
    /// Starts them.
    ///
    /// # Errors
    /// They do not start.
    pub(super) fn start(name: &str) -> Result<Self> {
        Self::start_at(name, Ipv4Addr::LOCALHOST.into())
    }

    /// The same at an address of this host.
    ///
    /// # Errors
    /// They do not start.
    pub(super) fn start_at(name: &str, ip: IpAddr) -> Result<Self> {
        let ports: [u16; APPLICATIONS] = free_ports(ip)?;
        let folder = workspace::scratch("operate")?.join(format!("{name}-nginx"));
        fs::create_dir_all(&folder)?;
        let listen: String = ports.iter().map(|port| format!("listen {ip}:{port}; ")).collect();
        let nginx =
            nginx(&folder, &SocketAddr::new(ip, ports[0]).to_string(), &NGINX.replace("@LISTEN@", &listen))?;
        Ok(Self { ip, ports, _nginx: nginx })
    }

    /// Where one of them is.
    pub(super) fn address(&self, number: usize) -> String {
        SocketAddr::new(self.ip, self.ports[number]).to_string()
    }
}

impl Scene {
    fn start(name: &str, binary: &Path, applications: Applications, discover: &Value) -> Result<Self> {
        let [admin] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
        let keys = json!({
            "admin": {"address": admin},
            "clusters": {"default": {"discover": discover}},
        });
        let site = Site::start(name, binary, keys)?;
        let load = Load::start(name, MANY, &site, Arc::new(Ports(applications.ports)))?;
        Ok(Self { site, admin, load, applications })
    }

    /// Waits until sluice uses exactly these applications, and then until further requests are answered.
    fn wait_for(&mut self, applications: &[usize]) -> Result<()> {
        let mut wanted: Vec<_> = applications.iter().map(|one| self.applications.address(*one)).collect();
        wanted.sort();
        let mut used = Vec::new();
        for _ in 0..TRIES {
            used = self.used()?;
            if used == wanted {
                return self.load.wait_for(200);
            }
            thread::sleep(POLL);
        }
        bail!("sluice uses {used:?}, wanted {wanted:?}\n{}", self.site.sluice.tail())
    }

    fn used(&self) -> Result<Vec<String>> {
        let text = metrics::read(self.admin)?;
        let lines = text.lines().filter_map(|line| line.strip_prefix("sluice_endpoint_weight{"));
        let label = |line: &str| Some(line.split_once("endpoint=\"")?.1.split_once('"')?.0.to_owned());
        let mut used: Vec<_> = lines.filter_map(label).collect();
        used.sort();
        Ok(used)
    }

    /// Waits until a gauge of the source is 1, or 0, and then until further requests are answered.
    fn wait_until(&mut self, gauge: &str, value: bool) -> Result<()> {
        for _ in 0..TRIES {
            if metrics::sum(&metrics::read(self.admin)?, gauge) == u64::from(value) {
                return self.load.wait_for(200);
            }
            thread::sleep(POLL);
        }
        bail!("{gauge} is not {value}\n{}", self.site.sluice.tail())
    }

    fn finish(mut self) -> Result<String> {
        self.load.wait_for(200)?;
        let said = self.load.finish()?;
        self.site.sluice.stop()?;
        Ok(said)
    }
}
