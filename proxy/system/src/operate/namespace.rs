//! Network namespaces of hosts that a check makes up, and the switch between them.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use sluice_testkit::process::{Process, bound};
use sluice_testkit::workspace;

use super::etcd::{POLL, TRIES};

/// A bridge, where the ends of the hosts' links are.
const BRIDGE: &str = "switch";
/// A second bridge, without a link to the first.
const APART: &str = "apart";

/// The address of a host by its number. The switch is number 1.
pub(super) fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, number)
}

/// A network namespace, and a mount namespace if it has a disk of its own. It lives as long as a process.
pub(super) struct Namespace {
    holder: Process,
    has_disk: bool,
}

impl Namespace {
    /// Creates one.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn make(name: &str) -> Result<Self> {
        Self::hold(name, &["--net", "sleep", "infinity"], false)
    }

    /// Creates one whose programs see an empty disk of `mib` MiB at `folder`.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn with_disk(name: &str, folder: &Path, mib: u32) -> Result<Self> {
        let folder = folder.to_str().context("the folder's name")?;
        let script = format!("mount -t tmpfs -o size={mib}m tmpfs \"$0\" && exec sleep infinity");
        let namespace = Self::hold(name, &["--net", "--mount", "sh", "-c", &script, folder], true)?;
        let mounts = format!("/proc/{}/mounts", namespace.holder.pid());
        for _ in 0..TRIES {
            if fs::read_to_string(&mounts)?.contains(&format!("tmpfs {folder} ")) {
                return Ok(namespace);
            }
            thread::sleep(POLL);
        }
        bail!("{folder}: no disk\n{}", namespace.holder.tail())
    }

    fn hold(name: &str, args: &[&str], has_disk: bool) -> Result<Self> {
        let mut command = bound("unshare");
        command.args(args);
        let log = workspace::scratch("logs")?.join(format!("namespace-{name}.log"));
        let holder = Process::start("namespace", &mut command, log, Signal::SIGKILL)?;
        let namespace = Self { holder, has_disk };
        let ours = fs::read_link("/proc/thread-self/ns/net")?;
        for _ in 0..TRIES {
            if fs::read_link(namespace.path()).is_ok_and(|theirs| theirs != ours) {
                namespace.ip(&["link", "set", "lo", "up"])?;
                // A host that forwards would answer for an address that it no longer has.
                namespace.must("sh", &["-c", "echo 0 >/proc/sys/net/ipv4/ip_forward"])?;
                return Ok(namespace);
            }
            thread::sleep(POLL);
        }
        bail!("unshare created no namespace\n{}", namespace.holder.tail())
    }

    /// The file of the network namespace.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.holder.pid()).into()
    }

    /// A command of ip(8) in it.
    ///
    /// # Errors
    /// It fails.
    pub(super) fn ip(&self, args: &[&str]) -> Result<()> {
        self.must("ip", args)
    }

    /// Runs a program to completion, which must succeed.
    ///
    /// # Errors
    /// It does not.
    pub(super) fn must(&self, program: &str, args: &[&str]) -> Result<()> {
        succeed(self.command(program).args(args))
    }

    /// A command in it that ends with us.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = bound("nsenter");
        command.arg(format!("--net={}", self.path().display()));
        if self.has_disk {
            command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.pid()));
        }
        command.arg(program);
        command
    }
}

/// The switch between hosts, with an address of its own.
pub(super) enum Switch {
    /// In a namespace.
    Own(Namespace),
    /// In that of the calling thread.
    Here,
}

impl Switch {
    /// In a namespace of its own.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn make() -> Result<Self> {
        let switch = Self::Own(Namespace::make(BRIDGE)?);
        switch.turn_on()?;
        Ok(switch)
    }

    /// Takes the calling thread, and all that it starts from now on, to a new namespace with the switch. What it does there
    /// with loopback is apart from the loopback of the machine.
    ///
    /// # Errors
    /// It cannot be created.
    pub(super) fn move_here() -> Result<Self> {
        ensure!(geteuid().is_root(), "namespaces need root");
        unshare(CloneFlags::CLONE_NEWNET).context("unshare")?;
        let switch = Self::Here;
        switch.ip(&["link", "set", "lo", "up"])?;
        switch.turn_on()?;
        Ok(switch)
    }

    fn turn_on(&self) -> Result<()> {
        self.ip(&["link", "add", BRIDGE, "type", "bridge"])?;
        self.ip(&["link", "add", APART, "type", "bridge"])?;
        self.ip(&["addr", "add", &format!("{}/24", address(1)), "dev", BRIDGE])?;
        self.ip(&["link", "set", BRIDGE, "up"])?;
        self.ip(&["link", "set", APART, "up"])
    }

    /// Connects a host.
    ///
    /// # Errors
    /// A command fails.
    pub(super) fn connect(&self, host: &Namespace, number: u8) -> Result<()> {
        let (link, pid) = (link(number), host.holder.pid().to_string());
        self.ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
        self.ip(&["link", "set", &link, "master", BRIDGE, "up"])?;
        host.ip(&["addr", "add", &format!("{}/24", address(number)), "dev", "eth0"])?;
        host.ip(&["link", "set", "eth0", "up"])
    }

    /// Cuts hosts off from the switch; they still reach each other.
    ///
    /// # Errors
    /// A command fails.
    pub(super) fn cut_off(&self, hosts: &[u8]) -> Result<()> {
        hosts.iter().try_for_each(|host| self.ip(&["link", "set", &link(*host), "master", APART]))
    }

    /// Cuts a host off from everybody.
    ///
    /// # Errors
    /// A command fails.
    pub(super) fn unplug(&self, host: u8) -> Result<()> {
        self.ip(&["link", "set", &link(host), "nomaster"])
    }

    /// Connects hosts again that were cut off.
    ///
    /// # Errors
    /// A command fails.
    pub(super) fn heal(&self, hosts: &[u8]) -> Result<()> {
        hosts.iter().try_for_each(|host| self.ip(&["link", "set", &link(*host), "master", BRIDGE]))
    }

    fn ip(&self, args: &[&str]) -> Result<()> {
        match self {
            Self::Own(namespace) => namespace.ip(args),
            Self::Here => succeed(bound("ip").args(args)),
        }
    }
}

/// The switch's end of the link to a host.
fn link(number: u8) -> String {
    format!("to-{number}")
}

fn succeed(command: &mut Command) -> Result<()> {
    let words = workspace::describe(command);
    let output = command.output().with_context(|| words.clone())?;
    ensure!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}
