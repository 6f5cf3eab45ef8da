//! What the page shows: sluice in front of its demo origin and of a second sluice, under load.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;
use serde_json::json;
use sluice_testkit::process::{Process, free_ports, sluice};
use sluice_testkit::workspace;

/// Clients that send one request after the other.
const CLIENTS: u64 = 4;
/// Between two requests of one client: a few hundred per second are enough to be visible.
const PAUSE: Duration = Duration::from_millis(10);

/// Two proxies and their load.
pub(super) struct Scene {
    /// The one with the page.
    pub(super) sluice: Process,
    /// The endpoint that can be stopped.
    pub(super) second: Process,
    pub(super) admin: SocketAddr,
    /// Its address.
    pub(super) endpoint: SocketAddr,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Scene {
    pub(super) fn start(binary: &Path) -> Result<Self> {
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let [listen, admin, demo, endpoint] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
        let check = json!({"interval_ms": 200, "unhealthy_after": 2, "healthy_after": 1});
        let config = json!({
            "listeners": [{"name": "web", "address": listen}],
            "routes": [
                {"name": "site", "cluster": "site"},
                {"name": "api", "path_prefix": "/api", "strip_prefix": true, "cluster": "api"},
            ],
            "clusters": {
                "site": {"endpoints": [demo, {"address": endpoint, "weight": 2}], "health_check": check},
                "api": {"endpoints": [demo], "max_in_flight": 1},
            },
            "demo_origin": demo, "admin": admin, "access_log": "off", "workers": 2,
        });
        let folder = workspace::scratch("page")?;
        let file = folder.join("sluice.yaml");
        fs::write(&file, format!("{config:#}\n"))?;
        let run = |name: &str, args: &[String]| {
            let log = folder.join(format!("{name}.log"));
            Process::start(name, sluice(binary).args(args), log, Signal::SIGTERM)
        };
        let mut sluice = run("sluice", &["--config".to_owned(), file.display().to_string()])?;
        sluice.wait_ready(admin)?;
        let to = ["--listen", &endpoint.to_string(), "--to", &demo.to_string(), "--set", "access_log=off"];
        let mut second = run("second", &to.map(str::to_owned))?;
        second.wait_ready(endpoint)?;
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..CLIENTS).map(|n| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || client(listen, n, &stop))
        });
        Ok(Self { sluice, second, admin, endpoint, clients: clients.collect(), stop })
    }
}

/// Sends requests repeatedly; failures show on the page.
fn client(address: SocketAddr, number: u64, stop: &AtomicBool) {
    let mut turn = number;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let target = match turn % 8 {
            0 => "/api/delay?ms=40".to_owned(),
            1 | 2 => format!("/api/bytes?n={}", turn % 50 * 1000),
            // Occasionally an error of the origin.
            3 if turn % 64 == 3 => "/status?code=500".to_owned(),
            _ => format!("/bytes?n={}", turn % 90 * 1000),
        };
        let _ = ask(address, &target);
        thread::sleep(PAUSE);
    }
}

fn ask(address: SocketAddr, target: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {target} HTTP/1.1\r\nHost: demo.test\r\nConnection: close\r\n\r\n")?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            // Its result does not matter.
            let _ = client.join();
        }
    }
}
