//! An address that keepalived moves between two hosts, as `config/examples/keepalived` has it: no request fails when a host
//! is taken out. Each host is a network namespace of its own, and so is the switch between them with the client.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::json;
use sluice_testkit::process::{Process, find_program};
use sluice_testkit::workspace;

use super::client::Client;
use super::etcd::{POLL, TRIES};
use super::namespace::{Namespace, Switch};

/// The address that moves.
const SHARED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(192, 0, 2, 100)), 80);

/// A host: a sluice, and keepalived.
struct Host {
    name: &'static str,
    binary: PathBuf,
    folder: PathBuf,
    sluice: Option<Process>,
    _keepalived: Process,
    namespace: Namespace,
}

impl Host {
    fn make(binary: &Path, switch: &Switch, name: &'static str, number: u8) -> Result<Self> {
        let namespace = Namespace::make(name)?;
        switch.connect(&namespace, number)?;
        let folder = workspace::scratch("operate")?.join(format!("keepalived-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let config = json!({
            "listeners": [{"name": "web", "address": "0.0.0.0:80"}],
            "routes": [{"respond": {"status": 200, "body": name}}],
            "admin": "127.0.0.1:9901", "drain_delay": "5s", "workers": 1, "access_log": "off",
            "control": format!("unix:{}", folder.join("control.sock").display()),
        });
        fs::write(folder.join("sluice.yaml"), config.to_string())?;
        let keepalived = start_keepalived(binary, &namespace, &folder, number)?;
        let binary = binary.to_owned();
        let mut host = Self { name, binary, folder, sluice: None, _keepalived: keepalived, namespace };
        host.start()?;
        Ok(host)
    }

    fn start(&mut self) -> Result<()> {
        let mut command = self.namespace.command(&self.binary);
        command.args(["run", "--config"]).arg(self.folder.join("sluice.yaml"));
        let log = workspace::scratch("logs")?.join(format!("keepalived-sluice-{}.log", self.name));
        self.sluice = Some(Process::start("sluice", &mut command, log, Signal::SIGTERM)?);
        Ok(())
    }

    /// Ends the sluice, as `systemctl stop` does.
    fn stop(&mut self) -> Result<()> {
        self.sluice.take().context("it has ended before")?.stop().map(drop)
    }
}

/// With the file of the example, but for its user and the path of the binary.
fn start_keepalived(binary: &Path, namespace: &Namespace, folder: &Path, number: u8) -> Result<Process> {
    let example = fs::read_to_string(workspace::root().join("config/examples/keepalived/keepalived.conf"))?;
    let config = example
        .replace("script_user sluice", "script_user root")
        .replace("/usr/bin/sluice", &binary.display().to_string())
        .replace("priority 100", &format!("priority {}", 110 - 10 * number));
    ensure!(config.matches(&*binary.display().to_string()).count() == 1, "the example has another script");
    let file = folder.join("keepalived.conf");
    fs::write(&file, config)?;
    let mut command = namespace.command("keepalived");
    command.args(["--dont-fork", "--log-console", "--vrrp", "--use-file"]).arg(&file);
    command.arg("--pid").arg(folder.join("pid")).arg("--vrrp_pid").arg(folder.join("vrrp.pid"));
    let log = workspace::scratch("logs")?.join(format!("keepalived-{number}.log"));
    Process::start("keepalived", &mut command, log, Signal::SIGTERM)
}

/// A client that asks the shared address all the time, with a connection for each request.
struct Asker {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    /// The host that has answered last.
    last: Arc<std::sync::Mutex<String>>,
    thread: JoinHandle<Result<()>>,
}

impl Asker {
    fn start(switch: &Switch) -> Result<Self> {
        let Switch::Own(namespace) = switch else { bail!("the client needs the switch's namespace") };
        let namespace = File::open(namespace.path())?;
        let (stop, answers, last) =
            <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<std::sync::Mutex<String>>)>::default();
        let shared = (Arc::clone(&stop), Arc::clone(&answers), Arc::clone(&last));
        let thread = thread::spawn(move || {
            let (stop, answers, last) = shared;
            // This thread alone.
            setns(namespace, CloneFlags::CLONE_NEWNET)?;
            while !stop.load(Ordering::Relaxed) {
                let answer = Client::connect(SHARED).and_then(|mut client| client.get("/", true));
                let answer = answer.and_then(|answer| match answer.status {
                    200 => Ok(answer.text),
                    other => Err(anyhow!("status {other}")),
                });
                let failed = answer.as_ref().err().map(|error| format!("{error:#}"));
                *last.lock().map_err(|_| anyhow!("poisoned"))? =
                    failed.unwrap_or_else(|| answer.as_deref().unwrap_or_default().to_owned());
                answer?;
                answers.fetch_add(1, Ordering::Relaxed);
                thread::sleep(POLL / 10);
            }
            Ok(())
        });
        Ok(Self { stop, answers, last, thread })
    }

    /// Waits until a host answers.
    fn wait_for(&self, host: &str) -> Result<()> {
        for _ in 0..TRIES {
            if self.last.lock().is_ok_and(|last| *last == host) {
                return Ok(());
            }
            if self.thread.is_finished() {
                let why = self.last.lock().map(|last| last.clone()).unwrap_or_default();
                bail!("a request has failed before {host} has answered: {why}");
            }
            thread::sleep(POLL);
        }
        bail!("{host} does not answer")
    }

    fn finish(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err(anyhow!("panicked")))?;
        Ok(self.answers.load(Ordering::Relaxed))
    }
}

/// # Errors
/// A request has failed, or the address does not move.
pub(super) fn moves_an_address(binary: &Path) -> Result<String> {
    ensure!(geteuid().is_root(), "namespaces need root");
    let binary = if binary.is_absolute() { binary.to_owned() } else { fs::canonicalize(binary)? };
    find_program("keepalived").context("apt-get install keepalived")?;
    let switch = Switch::make()?;
    let mut first = Host::make(&binary, &switch, "first", 1 + 1)?;
    answered(&switch, "first")?;
    let mut second = Host::make(&binary, &switch, "second", 1 + 2)?;
    let asker = Asker::start(&switch)?;
    asker.wait_for("first")?;
    first.stop()?;
    asker.wait_for("second")?;
    first.start()?;
    // It stays, because each move breaks connections.
    thread::sleep(POLL * 60);
    asker.wait_for("second")?;
    second.stop()?;
    asker.wait_for("first")?;
    second.start()?;
    thread::sleep(POLL * 60);
    let answers = asker.finish()?;
    // A host that fails is replaced as well, after a moment.
    let sluice = first.sluice.take().context("it runs")?;
    kill(Pid::from_raw(i32::try_from(sluice.pid())?), Signal::SIGKILL)?;
    answered(&switch, "second")?;
    Ok(format!("{answers} requests while the address moved twice, 0 failed"))
}

/// Waits until a host answers, whatever fails before.
fn answered(switch: &Switch, host: &str) -> Result<()> {
    for _ in 0..TRIES {
        let asker = Asker::start(switch)?;
        let is_there = asker.wait_for(host).is_ok();
        let _ = asker.finish();
        if is_there {
            return Ok(());
        }
        thread::sleep(POLL);
    }
    bail!("{host} never has the address")
}
