//! A cluster of etcd with three members, which can be killed, stopped and started again.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use data_encoding::BASE64;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::workspace;

use super::namespace::{Namespace, Switch, address};
use super::site::local;

/// Between two looks at something that is waited for.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// Looks until something counts as failed.
pub(super) const TRIES: u32 = 600;
/// Members of a cluster.
pub(super) const MEMBERS: usize = 3;
/// The number of the first member's host, if they have hosts.
pub(super) const FIRST_HOST: u8 = 11;
const NONE: [Option<Process>; MEMBERS] = [const { None }; MEMBERS];

/// A cluster of etcd.
pub(super) struct Etcd {
    name: &'static str,
    options: Vec<String>,
    members: [Option<Process>; MEMBERS],
    clients: [SocketAddr; MEMBERS],
    peers: [SocketAddr; MEMBERS],
    /// How often a member was started; each time has a log.
    starts: usize,
    /// Where the members run, if not where we do.
    hosts: Option<[Namespace; MEMBERS]>,
}

impl Etcd {
    /// Starts one with these options for each member.
    ///
    /// # Errors
    /// It does not become ready.
    pub(super) fn start(name: &'static str, options: &[&str]) -> Result<Self> {
        let ports: [u16; 2 * MEMBERS] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let [clients, peers] = [0, MEMBERS].map(|from| std::array::from_fn(|at| local(ports[from + at])));
        let _ = fs::remove_dir_all(folder(name)?);
        Self { name, options: owned(options), members: NONE, clients, peers, starts: 0, hosts: None }.ready()
    }

    /// Starts one whose members are hosts of their own, [`FIRST_HOST`] and the next, each with a disk of `mib` MiB.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub(super) fn start_apart(
        name: &'static str,
        options: &[&str],
        switch: &Switch,
        mib: u32,
    ) -> Result<Self> {
        let hosts = [0, 1, 2].map(|member| -> Result<_> {
            let folder = folder(name)?.join(format!("m{member}"));
            fs::create_dir_all(&folder)?;
            let host = Namespace::with_disk(&format!("{name}-{member}"), &folder, mib)?;
            switch.connect(&host, FIRST_HOST + member)?;
            Ok(host)
        });
        let [first, second, third] = hosts;
        let hosts = Some([first?, second?, third?]);
        let [clients, peers] =
            [2379, 2380].map(|port| [0, 1, 2].map(|member| (address(FIRST_HOST + member), port).into()));
        Self { name, options: owned(options), members: NONE, clients, peers, starts: 0, hosts }.ready()
    }

    fn ready(mut self) -> Result<Self> {
        for member in 0..MEMBERS {
            self.run(member)?;
        }
        self.insist("the first key", |etcd| etcd.put("/ready", "1"))?;
        Ok(self)
    }

    /// The URLs of the members.
    pub(super) fn urls(&self) -> Vec<String> {
        self.clients.iter().map(|address| format!("http://{address}")).collect()
    }

    /// Where a member's data is, as it sees it.
    pub(super) fn data(&self, member: usize) -> Result<PathBuf> {
        Ok(folder(self.name)?.join(format!("m{member}")))
    }

    /// The host of a member.
    pub(super) fn host(&self, member: usize) -> Option<&Namespace> {
        self.hosts.as_ref().map(|hosts| &hosts[member])
    }

    /// Whether a member has ended.
    pub(super) fn has_ended(&mut self, member: usize) -> Result<bool> {
        self.members[member].as_mut().map_or(Ok(true), Process::has_ended)
    }

    /// Sends a member a signal.
    pub(super) fn signal(&self, member: usize, signal: Signal) -> Result<()> {
        let process = self.members[member].as_ref().context("the member is down")?;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(process.pid())?);
        Ok(nix::sys::signal::kill(pid, signal)?)
    }

    /// Starts a member, with the data that it has.
    pub(super) fn run(&mut self, member: usize) -> Result<()> {
        fs::create_dir_all(folder(self.name)?)?;
        let [client, peer] =
            [self.clients, self.peers].map(|addresses| format!("http://{}", addresses[member]));
        let all = self.peers.iter().enumerate();
        let all: Vec<_> = all.map(|(at, address)| format!("m{at}=http://{address}")).collect();
        let mut command = self.host(member).map_or_else(|| bound("etcd"), |host| host.command("etcd"));
        command.args(["--name", &format!("m{member}"), "--initial-cluster", &all.join(",")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(&self.options);
        command.arg("--data-dir").arg(self.data(member)?.join("data"));
        let log = workspace::scratch("logs")?.join(format!("{}-{member}-{}.log", self.name, self.starts));
        self.starts += 1;
        self.members[member] = Some(Process::start("etcd", &mut command, log, Signal::SIGTERM)?);
        Ok(())
    }

    /// Kills a member as a power failure would.
    pub(super) fn kill(&mut self, member: usize) -> Result<()> {
        self.signal(member, Signal::SIGKILL)?;
        drop(self.members[member].take());
        Ok(())
    }

    /// Asks the members in turn; one that is down, or has no majority, does not answer.
    pub(super) fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let mut failed = None;
        for address in self.clients {
            match curl("POST", &format!("http://{address}{path}"), Some(body)) {
                Ok(answer) => return Ok(serde_json::from_str(&answer)?),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.context("no member")?)
    }

    /// Stores a value.
    pub(super) fn put(&self, key: &str, value: &str) -> Result<()> {
        let [key, value] = [key, value].map(|text| BASE64.encode(text.as_bytes()));
        self.ask("/v3/kv/put", &json!({"key": key, "value": value})).map(drop)
    }

    /// Removes a key.
    pub(super) fn delete(&self, key: &str) -> Result<()> {
        self.ask("/v3/kv/deleterange", &json!({"key": BASE64.encode(key.as_bytes())})).map(drop)
    }

    /// The member that leads.
    pub(super) fn leader(&self) -> Result<usize> {
        for (member, address) in self.clients.iter().enumerate() {
            let url = format!("http://{address}/v3/maintenance/status");
            let status: Value = serde_json::from_str(&curl("POST", &url, Some(&json!({})))?)?;
            if status["leader"] == status["header"]["member_id"] {
                return Ok(member);
            }
        }
        bail!("there is no leader")
    }

    /// Tries again until it succeeds: an election takes a while.
    pub(super) fn insist<T>(&self, what: &str, attempt: impl Fn(&Self) -> Result<T>) -> Result<T> {
        for _ in 0..TRIES {
            if let Ok(done) = attempt(self) {
                return Ok(done);
            }
            thread::sleep(POLL);
        }
        bail!("{what}: etcd does not do it")
    }
}

/// Where the members have their data.
fn folder(name: &str) -> Result<PathBuf> {
    Ok(workspace::scratch("operate")?.join(format!("{name}-members")))
}

fn owned(options: &[&str]) -> Vec<String> {
    options.iter().map(|&option| option.to_owned()).collect()
}

/// The response to a request of curl, with a body if there is one. Fails as curl does with `--fail`.
///
/// # Errors
/// Why it fails.
pub(super) fn curl(method: &str, url: &str, body: Option<&Value>) -> Result<String> {
    let mut command = bound("curl");
    command.args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "5", "-X", method]);
    if let Some(body) = body {
        command.arg("-d").arg(body.to_string());
    }
    let output = command.arg(url).stdin(Stdio::null()).output().context("curl")?;
    ensure!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
