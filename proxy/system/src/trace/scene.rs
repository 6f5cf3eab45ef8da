//! What is watched: three Pumas, one sluice, and every script attached while known loads run. The scripts stay attached
//! together, because attaching and detaching takes time.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use sluice_testkit::process::{Process, bound, free_ports, sluice};
use sluice_testkit::workspace;
use sluice_trace::sockets;

use super::load;
use sluice_trace::report::Report;
use sluice_trace::session::{OnInterrupt, Session};

/// Longer than any load takes; the scripts are stopped before.
const SECONDS: u64 = 300;
const EVERY_CONNECTION: u64 = 1;
/// Puma's threads.
pub(super) const THREADS: usize = 4;
pub(super) const TOKEN: &str = "token";

pub(super) const NEW: Load = Load { clients: 4, each: 75 };
pub(super) const KEPT: Load = Load { clients: 8, each: 200 };
pub(super) const SLOW: Load = Load { clients: THREADS, each: 6 };
pub(super) const CROWD: Load = Load { clients: 2 * THREADS, each: 6 };
pub(super) const RESETS: usize = 20;
const DELAY: &str = "/delay?ms=400";

/// This many clients at once, each with this many requests.
pub(super) struct Load {
    pub(super) clients: usize,
    pub(super) each: usize,
}

impl Load {
    pub(super) const fn requests(&self) -> u64 {
        (self.clients * self.each) as u64
    }
}

/// A Puma and its ports.
pub(super) struct Puma {
    process: Process,
    pub(super) address: SocketAddr,
    pub(super) control: SocketAddr,
}

/// The servers.
pub(super) struct Scene {
    /// Behind sluice.
    pub(super) puma: Puma,
    /// Gets slow requests from as many clients as it has threads.
    slow: Puma,
    /// The same from twice as many.
    crowded: Puma,
    sluice: Process,
    pub(super) proxy: SocketAddr,
    pub(super) admin: SocketAddr,
    /// The program of sluice, which traces as well.
    pub(super) binary: PathBuf,
}

/// The counts of the scripts, and ours.
pub(super) struct Watched {
    reports: BTreeMap<&'static str, Report>,
    /// Times that the kernel scheduled one of Puma's threads.
    pub(super) switches: u64,
    /// Connections that a listener kept until it was closed, without accepting one.
    pub(super) never_accepted: u64,
}

impl Watched {
    /// The report of one session.
    ///
    /// # Errors
    /// When it failed.
    pub(super) fn report(&self, name: &str) -> Result<&Report> {
        self.reports.get(name).with_context(|| format!("{name} failed, see above"))
    }
}

impl Puma {
    fn start(name: &str, logs: &Path) -> Result<Self> {
        let [port, control] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let control = SocketAddr::from((Ipv4Addr::LOCALHOST, control));
        let mut command = bound("puma");
        command
            .args(["-C", "-", "--environment", "production", "--threads", &format!("{THREADS}:{THREADS}")])
            .args(["--bind", &format!("tcp://{address}")])
            .args(["--control-url", &format!("tcp://{control}"), "--control-token", TOKEN])
            .arg(workspace::root().join("bench/origins/puma/config.ru"));
        let log = logs.join(format!("trace-{name}.log"));
        let mut process = Process::start("puma", &mut command, log, Signal::SIGTERM)?;
        process.wait_ready(address)?;
        process.wait_ready(control)?;
        Ok(Self { process, address, control })
    }

    fn port(&self) -> u64 {
        self.address.port().into()
    }
}

impl Scene {
    /// Starts all servers.
    ///
    /// # Errors
    /// When one does not start.
    pub(super) fn start(binary: &Path) -> Result<Self> {
        let logs = workspace::scratch("logs")?;
        let puma = Puma::start("puma", &logs)?;
        let slow = Puma::start("puma-slow", &logs)?;
        let crowded = Puma::start("puma-crowded", &logs)?;
        let [proxy, admin] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let local = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut command = sluice(binary);
        command.args(["--listen", &local(proxy).to_string(), "--admin", &local(admin).to_string()]);
        command.args(["--to", &puma.address.to_string()]);
        // With joined connections, a response's head and body may arrive and leave separately, which makes the number
        // of operations unpredictable.
        command.args(["--set", "kernel.bypass=off"]);
        let log = logs.join("trace-sluice.log");
        let mut sluice = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
        sluice.wait_ready(local(proxy))?;
        Ok(Self {
            puma,
            slow,
            crowded,
            sluice,
            proxy: local(proxy),
            admin: local(admin),
            binary: binary.to_owned(),
        })
    }

    /// Attaches every script, runs every load, stops every script.
    ///
    /// # Errors
    /// When a script does not attach or a request gets no response.
    pub(super) fn watch(&self) -> Result<Watched> {
        let full = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let full_port = full.local_addr()?.port().into();
        let puma = self.puma.process.pid();
        let sessions = attach(&[
            ("accept_queue", "accept_queue", vec![self.puma.port(), SECONDS]),
            ("request_queue", "request_queue", vec![self.puma.port(), SECONDS]),
            ("puma_stages", "puma_stages", vec![self.puma.port(), SECONDS, EVERY_CONNECTION]),
            ("slow", "puma_stages", vec![self.slow.port(), SECONDS, EVERY_CONNECTION]),
            ("slow_futex", "puma_futex", vec![self.slow.port(), SECONDS, EVERY_CONNECTION]),
            ("crowded", "puma_stages", vec![self.crowded.port(), SECONDS, EVERY_CONNECTION]),
            ("sluice", "accept_queue", vec![self.proxy.port().into(), SECONDS]),
            ("syscall_latency", "syscall_latency", vec![puma.into(), SECONDS]),
            ("uring", "uring", vec![self.sluice.pid().into(), SECONDS]),
            ("runqlat", "runqlat", vec![puma.into(), SECONDS]),
            ("retrans", "retrans", vec![self.puma.port(), SECONDS]),
            ("full", "retrans", vec![full_port, SECONDS]),
            ("full_queue", "accept_queue", vec![full_port, SECONDS]),
        ])?;
        let before = sockets::switches(puma)?;
        load::new_connections(self.puma.address, "/", NEW.clients, NEW.each).context("new connections")?;
        load::kept_connections(self.proxy, KEPT.clients, KEPT.each).context("through sluice")?;
        load::resets(self.puma.address, RESETS).context("resets")?;
        let switches = sockets::switches(puma)?.saturating_sub(before);
        load::new_connections(self.slow.address, DELAY, SLOW.clients, SLOW.each).context("slow responses")?;
        load::new_connections(self.crowded.address, DELAY, CROWD.clients, CROWD.each).context("crowd")?;
        let never_accepted = load::fill(&full)?;
        drop(full);
        Ok(Watched { reports: detach(sessions), switches, never_accepted })
    }
}

type Sessions = Vec<(&'static str, Session)>;

/// All are started before the first one is waited for: most of the time is spent waiting for the kernel.
fn attach(wanted: &[(&'static str, &str, Vec<u64>)]) -> Result<Sessions> {
    let mut sessions = Sessions::new();
    for (name, script, args) in wanted {
        let session = Session::start(sluice_trace::script(script)?, args, OnInterrupt::Unchanged)?;
        sessions.push((name, session));
    }
    for (name, session) in &mut sessions {
        session.wait_attached().with_context(|| format!("attach {name}"))?;
    }
    Ok(sessions)
}

fn detach(mut sessions: Sessions) -> BTreeMap<&'static str, Report> {
    for (_, session) in &mut sessions {
        session.interrupt();
    }
    let finish = |(name, session): (&'static str, Session)| match session.finish() {
        Ok(report) => Some((name, report)),
        Err(error) => {
            println!("{name}: {error:#}");
            None
        }
    };
    sessions.into_iter().filter_map(finish).collect()
}
