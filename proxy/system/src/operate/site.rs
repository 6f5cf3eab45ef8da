//! A running sluice, and commands on it as given in a shell.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluice_testkit::process::{Process, bound, free_ports, sluice};
use sluice_testkit::workspace;

/// The Host of its services.
pub(super) const HOST: &str = "app.test";

const POLL: Duration = Duration::from_millis(10);
const TRIES: u32 = 6000;

/// A sluice with its own folder, control socket and state file.
pub(super) struct Site {
    pub(super) sluice: Process,
    pub(super) address: SocketAddr,
    pub(super) folder: PathBuf,
    binary: PathBuf,
}

/// The result of a command.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) code: Option<i32>,
    /// Output of both streams.
    pub(super) said: String,
}

impl Site {
    /// Starts it with additional keys and waits until it listens.
    ///
    /// # Errors
    /// When it does not start; with its log.
    pub(super) fn start(name: &str, binary: &Path, keys: Value) -> Result<Self> {
        let [address] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
        Self::start_at(name, binary, address, keys)
    }

    /// The same, at this address, for keys with listeners.
    pub(super) fn start_at(name: &str, binary: &Path, address: SocketAddr, keys: Value) -> Result<Self> {
        let folder = workspace::scratch("operate")?.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mut config = json!({
            "listeners": [{"name": "web", "address": address}],
            "control": format!("unix:{}", folder.join("control.sock").display()),
            "services": {"state_file": folder.join("services.json")},
            "access_log": "off",
            "workers": 2,
        });
        if let (Some(config), Value::Object(keys)) = (config.as_object_mut(), keys) {
            config.extend(keys);
        }
        let file = folder.join("sluice.yaml");
        fs::write(&file, format!("{config:#}\n"))?;
        let log = workspace::scratch("logs")?.join(format!("{name}-sluice.log"));
        let sluice = serve(binary, &file, log, address)?;
        let site = Self { sluice, address, folder, binary: binary.to_owned() };
        site.wait_for_control()?;
        Ok(site)
    }

    /// Stops it, and starts it again with what it has stored.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn restart(&mut self) -> Result<()> {
        self.sluice.stop()?;
        self.start_again()
    }

    /// Starts it again after it was stopped, with what it has stored.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn start_again(&mut self) -> Result<()> {
        let log = self.sluice.log().with_extension("again.log");
        self.sluice = serve(&self.binary, &self.folder.join("sluice.yaml"), log, self.address)?;
        self.wait_for_control()
    }

    /// The socket is put in place last.
    fn wait_for_control(&self) -> Result<()> {
        for _ in 0..TRIES {
            if UnixStream::connect(self.control()).is_ok() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("no control socket\n{}", self.sluice.tail());
    }

    /// The control socket.
    pub(super) fn control(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    /// A command; its words are separated by spaces.
    pub(super) fn command(&self, line: &str) -> Command {
        let mut command = bound(&self.binary);
        command.args(line.split_whitespace()).env("SLUICE_CONTROL", self.control()).stdin(Stdio::null());
        command
    }

    /// Runs a command to completion.
    ///
    /// # Errors
    /// When it cannot start.
    pub(super) fn run(&self, line: &str) -> Result<Outcome> {
        let output = self.command(line).output().with_context(|| line.to_owned())?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        Ok(Outcome { code: output.status.code(), said })
    }

    /// Runs a command that must succeed; returns its output.
    ///
    /// # Errors
    /// When it does not.
    pub(super) fn must(&self, line: &str) -> Result<String> {
        let Outcome { code, said } = self.run(line)?;
        ensure!(code == Some(0), "`sluice {line}` exits with {code:?}: {said}");
        Ok(said)
    }
}

fn serve(binary: &Path, config: &Path, log: PathBuf, address: SocketAddr) -> Result<Process> {
    let mut command = sluice(binary);
    command.arg("--config").arg(config);
    let mut sluice = Process::start("sluice", &mut command, log, Signal::SIGTERM)?;
    sluice.wait_ready(address)?;
    Ok(sluice)
}

/// A port on loopback.
pub(super) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
