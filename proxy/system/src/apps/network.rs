//! A network namespace and a cgroup, like those of a container, connected to this host by a veth pair.
//!
//! The namespace has no name: it lives as long as the process that holds it, which ends with us, however we end; the
//! pair disappears with it.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, id};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use sluice_testkit::process::{Process, bound, find_program};
use sluice_testkit::workspace;

const POLL: Duration = Duration::from_millis(10);
const TRIES: u32 = 500;
const CGROUP: &str = "sluice-test-";

/// Both; removed when dropped.
pub(super) struct Network {
    holder: Process,
    link: String,
    cgroup: PathBuf,
    /// IPv4 address of the inner end.
    pub(super) inside_v4: Ipv4Addr,
    /// IPv6 address of the inner end.
    pub(super) inside_v6: Ipv6Addr,
}

impl Network {
    /// Creates namespace, pair and cgroup; both ends are up.
    ///
    /// # Errors
    /// When one of them fails.
    pub(super) fn make() -> Result<Self> {
        let cgroup = make_cgroup()?;
        let mut command = bound("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let log = workspace::scratch("logs")?.join("apps-namespace.log");
        let holder = Process::start("namespace", &mut command, log, Signal::SIGKILL)?;
        let net = free_net()?;
        let network = Self {
            link: format!("slv{}", holder.pid()),
            holder,
            cgroup,
            inside_v4: Ipv4Addr::new(10, 231, net, 2),
            inside_v6: Ipv6Addr::new(0xfd00, 0x231, net.into(), 0, 0, 0, 0, 2),
        };
        network.wait_namespace()?;
        network.connect(net)?;
        Ok(network)
    }

    /// A command in the namespace and the cgroup that ends with us.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = bound("/bin/sh");
        command
            .args(["-c", "echo $$ >\"$0\"/cgroup.procs && exec \"$@\""])
            .arg(&self.cgroup)
            .args(self.enter())
            .arg(program);
        command
    }

    /// Checks that a process is in both: a check elsewhere would prove nothing.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn must_hold(&self, pid: u32) -> Result<()> {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net")).context("its namespace");
        ensure!(namespace(pid)? == namespace(self.holder.pid())?, "pid {pid} is in another namespace");
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).context("its cgroup")?;
        let name = self.cgroup.file_name().context("the cgroup's name")?.to_string_lossy();
        ensure!(cgroups.lines().any(|line| line == format!("0::/{name}")), "pid {pid} is in {cgroups}");
        Ok(())
    }

    fn enter(&self) -> [String; 2] {
        ["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder.pid())]
    }

    /// Waits until the holder has left our namespace.
    fn wait_namespace(&self) -> Result<()> {
        let ours = fs::read_link("/proc/self/ns/net").context("our namespace")?;
        for _ in 0..TRIES {
            match fs::read_link(format!("/proc/{}/ns/net", self.holder.pid())) {
                Ok(theirs) if theirs != ours => return Ok(()),
                _ => thread::sleep(POLL),
            }
        }
        bail!("unshare created no namespace\n{}", self.holder.tail());
    }

    fn connect(&self, net: u8) -> Result<()> {
        let (link, holder) = (&self.link, self.holder.pid().to_string());
        ip(&["link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", &holder])?;
        let (v4, v6) = (format!("10.231.{net}."), format!("fd00:231:{net:x}::"));
        ip(&["addr", "add", &format!("{v4}1/24"), "dev", link])?;
        // No one else is on the link, so duplicate address detection is unnecessary.
        ip(&["addr", "add", &format!("{v6}1/64"), "dev", link, "nodad"])?;
        ip(&["link", "set", link, "up"])?;
        self.ip_inside(&["addr", "add", &format!("{v4}2/24"), "dev", "eth0"])?;
        self.ip_inside(&["addr", "add", &format!("{v6}2/64"), "dev", "eth0", "nodad"])?;
        self.ip_inside(&["link", "set", "lo", "up"])?;
        self.ip_inside(&["link", "set", "eth0", "up"])
    }

    fn ip_inside(&self, args: &[&str]) -> Result<()> {
        let [program, net] = self.enter();
        output(Command::new(program).args([&net, "ip"]).args(args)).map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Err(error) = ip(&["link", "del", &self.link]) {
            eprintln!("warning: {error:#}");
        }
        // Its last process may be exiting.
        for _ in 0..TRIES {
            if fs::remove_dir(&self.cgroup).is_ok() {
                return;
            }
            thread::sleep(POLL);
        }
        eprintln!("warning: {} is still in use", self.cgroup.display());
    }
}

/// A child of the root of the cgroup2 hierarchy. Removes leftovers of killed runs.
fn make_cgroup() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").context("/proc/mounts")?;
    let root = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|words| words.get(2) == Some(&"cgroup2"))
        .context("no cgroup2 is mounted")?[1]
        .to_owned();
    for entry in fs::read_dir(&root).with_context(|| root.clone())?.flatten() {
        if entry.file_name().to_string_lossy().starts_with(CGROUP) {
            // One that is in use cannot be removed, and need not be.
            let _ = fs::remove_dir(entry.path());
        }
    }
    let cgroup = Path::new(&root).join(format!("{CGROUP}{}", id()));
    fs::create_dir(&cgroup).with_context(|| cgroup.display().to_string())?;
    Ok(cgroup)
}

/// A number `n` with 10.231.n.0/24 unused here.
fn free_net() -> Result<u8> {
    let used = output(Command::new(ip_program()).args(["-o", "addr"]))?;
    let start = id() as u8;
    (0..=u8::MAX)
        .map(|n| n.wrapping_add(start))
        .find(|n| !used.contains(&format!(" 10.231.{n}.")))
        .context("every net of 10.231.0.0/16 is in use")
}

fn ip(args: &[&str]) -> Result<()> {
    output(Command::new(ip_program()).args(args)).map(drop)
}

fn ip_program() -> PathBuf {
    find_program("ip").unwrap_or_else(|| PathBuf::from("ip"))
}

fn output(command: &mut Command) -> Result<String> {
    let words = workspace::describe(command);
    let output = command.output().with_context(|| words.clone())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{words}`: {} {}", output.status, errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
