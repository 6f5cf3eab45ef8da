//! A started program that ends with its guard. Knows pids, ports and logs, not the program.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
pub use sluice_trace::program::{bound, find_program};

const POLL: Duration = Duration::from_millis(20);
const READY_TRIES: u32 = 3000;
const STOP_TRIES: u32 = 3000;
const LOG_TAIL_LINES: usize = 40;
/// Environment variable with the engine for tests.
pub const RUNTIME: &str = "SLUICE_TEST_RUNTIME";
/// Ports from here on are rarely those of well-known servers.
const PORT_MIN: u32 = 10_000;

/// A running program. Dropping it stops the program by its pid.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    stop: Signal,
}

/// `sluice run` of a binary, without its other arguments, bound like [`bound`]. The variable SLUICE_TEST_RUNTIME
/// selects its engine.
pub fn sluice(binary: &Path) -> Command {
    let mut command = bound(binary);
    command.arg("run");
    if let Ok(engine) = std::env::var(RUNTIME) {
        command.args(["--set", &format!("runtime={engine}")]);
    }
    command
}

/// `N` different free ports of an address. This process has not returned any of them before.
///
/// They are below the ports that the kernel assigns to connections. Otherwise a connection could take a port before the
/// server that it is meant for.
///
/// # Errors
/// The address cannot be bound.
pub fn free_ports<const N: usize>(ip: IpAddr) -> Result<[u16; N]> {
    let mut ports = [0; N];
    for port in &mut ports {
        *port = free_port(ip)?;
    }
    Ok(ports)
}

fn free_port(ip: IpAddr) -> Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let first: u32 = range.split_whitespace().next().and_then(|port| port.parse().ok()).unwrap_or(0);
    let below = first.saturating_sub(PORT_MIN);
    for _ in 0..below {
        // Concurrent processes rarely try the same ports.
        let nth = GIVEN.fetch_add(1, Ordering::Relaxed).wrapping_add(std::process::id().wrapping_mul(61));
        let port = u16::try_from(PORT_MIN + nth % below)?;
        match TcpListener::bind((ip, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).with_context(|| format!("bind {ip}:{port}")),
        }
    }
    // This system assigns all ports to connections.
    Ok(TcpListener::bind((ip, 0)).with_context(|| format!("bind {ip}"))?.local_addr()?.port())
}

impl Process {
    /// Starts `command` with both output streams going to `log`; `stop` is the signal that stops it.
    ///
    /// # Errors
    /// The log cannot be created or the program cannot start.
    pub fn start(name: &str, command: &mut Command, log: PathBuf, stop: Signal) -> Result<Self> {
        let file = File::create(&log).with_context(|| log.display().to_string())?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log, stop })
    }

    /// Waits until the program accepts connections.
    ///
    /// # Errors
    /// It has ended, or does not accept in time. The error contains the end of its log.
    pub fn wait_ready(&mut self, address: SocketAddr) -> Result<()> {
        for _ in 0..READY_TRIES {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at start ({status})\n{}", self.name, self.tail());
            }
            match TcpStream::connect(address) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => thread::sleep(POLL),
                Err(error) => return Err(error).with_context(|| format!("connect {address}")),
            }
        }
        bail!("{} does not listen on {address}\n{}", self.name, self.tail());
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The peak resident size so far, in KiB (`VmHWM`).
    ///
    /// # Errors
    /// The program has ended.
    pub fn peak_kib(&self) -> Result<u64> {
        let file = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(&file).context(file)?;
        status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.trim().trim_end_matches(" kB").parse().ok())
            .context("no VmHWM line")
    }

    /// Sends the stop signal and waits for the end.
    ///
    /// # Errors
    /// It had already ended, or does not end in time (then it is killed).
    pub fn stop(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} had already ended ({status})", self.name);
        }
        match self.end()? {
            Some(status) => Ok(status),
            None => bail!("{} did not end on {}", self.name, self.stop),
        }
    }

    /// Waits until it ends by itself, successfully.
    ///
    /// # Errors
    /// It does not end in time, or fails. The error contains its log.
    pub fn wait(&mut self) -> Result<()> {
        for _ in 0..READY_TRIES {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} has ended with {status}\n{}", self.name, self.tail()),
                None => thread::sleep(POLL),
            }
        }
        bail!("{} does not end\n{}", self.name, self.tail());
    }

    /// Whether it has ended.
    ///
    /// # Errors
    /// The system does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Path of the log with both output streams.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of the log, with its path as heading.
    pub fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(LOG_TAIL_LINES);
        format!("--- end of {}\n{}", self.log.display(), lines[from..].join("\n"))
    }

    /// Sends the signal, waits for a limited time, then kills. `None` means that it had to be killed.
    fn end(&mut self) -> Result<Option<ExitStatus>> {
        if let Ok(pid) = i32::try_from(self.pid()) {
            kill(Pid::from_raw(pid), self.stop)?;
        }
        for _ in 0..STOP_TRIES {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            thread::sleep(POLL);
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(None)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Err(error) = self.end()
        {
            eprintln!("warning: {} (pid {}): {error:#}", self.name, self.pid());
        }
    }
}

/// Raises the limit of open descriptors, for this process and its children, as far as the system allows.
///
/// # Errors
/// The limit cannot be read or set.
pub fn raise_descriptor_limit() -> Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise the descriptor limit")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::Ipv4Addr;

    fn log(name: &str) -> PathBuf {
        crate::workspace::scratch("self-test").unwrap().join(name)
    }

    #[test]
    fn dropping_a_process_ends_its_program() {
        let mut command = bound("sleep");
        command.arg("600");
        let process = Process::start("sleep", &mut command, log("sleep.log"), Signal::SIGTERM).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", process.pid()));
        assert!(proc.exists());
        drop(process);
        assert!(!proc.exists());
    }

    #[test]
    fn program_that_ends_at_start_is_reported_with_its_log() {
        let mut command = bound("sh");
        command.args(["-c", "echo no such key; exit 2"]);
        let mut process = Process::start("sh", &mut command, log("sh.log"), Signal::SIGTERM).unwrap();
        let [port] = free_ports(Ipv4Addr::LOCALHOST.into()).unwrap();
        let error = process.wait_ready((Ipv4Addr::LOCALHOST, port).into()).unwrap_err();
        assert!(error.to_string().contains("no such key"), "{error}");
    }

    #[test]
    fn free_ports_differ() {
        let [a, b, c] = free_ports(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert!(a != b && b != c && a != c);
    }
}
