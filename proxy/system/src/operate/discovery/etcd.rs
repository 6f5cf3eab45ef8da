//! Three members of etcd: changes, a leader that is killed, a majority that is lost, all keys gone.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use data_encoding::BASE64;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::workspace;

use super::super::site::local;
use super::{Applications, POLL, Scene, TRIES, curl};

const MEMBERS: usize = 3;
const PREFIX: &str = "/sluice/web/";

/// A cluster of etcd.
struct Etcd {
    members: [Option<Process>; MEMBERS],
    clients: [u16; MEMBERS],
    peers: [u16; MEMBERS],
}

impl Etcd {
    fn start() -> Result<Self> {
        let ports: [u16; 2 * MEMBERS] = free_ports(Ipv4Addr::LOCALHOST.into())?;
        let [clients, peers] = [0, MEMBERS].map(|from| std::array::from_fn(|at| ports[from + at]));
        let folder = workspace::scratch("operate")?.join("etcd");
        let _ = fs::remove_dir_all(&folder);
        let mut etcd = Self { members: [const { None }; MEMBERS], clients, peers };
        for member in 0..MEMBERS {
            etcd.run(member)?;
        }
        etcd.insist("the first key", |etcd| etcd.put("/ready", "1"))?;
        Ok(etcd)
    }

    /// Starts a member, with the data that it has.
    fn run(&mut self, member: usize) -> Result<()> {
        let folder = workspace::scratch("operate")?.join("etcd");
        fs::create_dir_all(&folder)?;
        let [client, peer] =
            [self.clients, self.peers].map(|ports| format!("http://{}", local(ports[member])));
        let all = self.peers.iter().enumerate();
        let all: Vec<_> = all.map(|(at, port)| format!("m{at}=http://{}", local(*port))).collect();
        let mut command = bound("etcd");
        command.args(["--name", &format!("m{member}"), "--initial-cluster", &all.join(",")]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.arg("--data-dir").arg(folder.join(format!("m{member}")));
        let log = workspace::scratch("logs")?.join(format!("discovery-etcd-{member}.log"));
        self.members[member] = Some(Process::start("etcd", &mut command, log, Signal::SIGTERM)?);
        Ok(())
    }

    /// Kills a member as a power failure would.
    fn kill(&mut self, member: usize) -> Result<()> {
        let process = self.members[member].take().context("the member is down already")?;
        let pid = nix::unistd::Pid::from_raw(i32::try_from(process.pid())?);
        nix::sys::signal::kill(pid, Signal::SIGKILL)?;
        drop(process);
        Ok(())
    }

    /// Asks the members in turn; one that is down, or has no majority, does not answer.
    fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let mut failed = None;
        for port in self.clients {
            match curl("POST", &format!("http://{}{path}", local(port)), Some(body)) {
                Ok(answer) => return Ok(serde_json::from_str(&answer)?),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.context("no member")?)
    }

    fn put(&self, key: &str, value: &str) -> Result<()> {
        let [key, value] = [key, value].map(|text| BASE64.encode(text.as_bytes()));
        self.ask("/v3/kv/put", &json!({"key": key, "value": value})).map(drop)
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.ask("/v3/kv/deleterange", &json!({"key": BASE64.encode(key.as_bytes())})).map(drop)
    }

    fn leader(&self) -> Result<usize> {
        for (member, port) in self.clients.iter().enumerate() {
            let url = format!("http://{}/v3/maintenance/status", local(*port));
            let status: Value = serde_json::from_str(&curl("POST", &url, Some(&json!({})))?)?;
            if status["leader"] == status["header"]["member_id"] {
                return Ok(member);
            }
        }
        bail!("there is no leader")
    }

    /// Tries again until it succeeds: an election takes a while.
    fn insist<T>(&self, what: &str, attempt: impl Fn(&Self) -> Result<T>) -> Result<T> {
        for _ in 0..TRIES {
            if let Ok(done) = attempt(self) {
                return Ok(done);
            }
            thread::sleep(POLL);
        }
        bail!("{what}: etcd does not do it")
    }
}

/// # Errors
/// A request has failed, or sluice does not use what etcd has.
pub(in super::super) fn members_fail(binary: &Path) -> Result<String> {
    let mut etcd = Etcd::start()?;
    let applications = Applications::start("discovery-etcd")?;
    let key = |number: usize| format!("{PREFIX}{number}");
    for number in [0, 1] {
        etcd.put(&key(number), &applications.address(number))?;
    }
    let urls: Vec<_> = etcd.clients.iter().map(|port| format!("http://{}", local(*port))).collect();
    let discover = json!({"etcd": {"endpoints": urls, "prefix": PREFIX}});
    let mut scene = Scene::start("discovery-etcd", binary, applications, &discover)?;
    scene.wait_for(&[0, 1])?;
    etcd.put(&key(2), &json!({"address": scene.applications.address(2), "weight": 2}).to_string())?;
    etcd.put(&key(9), "nonsense")?;
    scene.wait_for(&[0, 1, 2])?;
    etcd.delete(&key(0))?;
    scene.wait_for(&[1, 2])?;

    let leader = etcd.leader()?;
    etcd.kill(leader)?;
    etcd.insist("a change without the old leader", |etcd| etcd.put(&key(3), &scene.applications.address(3)))?;
    scene.wait_for(&[1, 2, 3])?;
    let second = (leader + 1) % MEMBERS;
    etcd.kill(second)?;
    ensure!(etcd.put(&key(0), &scene.applications.address(0)).is_err(), "a change without a majority");
    scene.wait_until("sluice_discovery_failing", true)?;
    scene.wait_for(&[1, 2, 3])?;
    for member in [leader, second] {
        etcd.run(member)?;
    }
    etcd.insist("a change with a majority again", |etcd| etcd.put(&key(0), &scene.applications.address(0)))?;
    scene.wait_for(&[0, 1, 2, 3])?;
    scene.wait_until("sluice_discovery_failing", false)?;

    for member in 0..MEMBERS {
        etcd.kill(member)?;
    }
    scene.wait_until("sluice_discovery_failing", true)?;
    for member in 0..MEMBERS {
        etcd.run(member)?;
    }
    etcd.insist("all keys are deleted", |etcd| {
        let range = [PREFIX, "/sluice/web0"].map(|text| BASE64.encode(text.as_bytes()));
        etcd.ask("/v3/kv/deleterange", &json!({"key": range[0], "range_end": range[1]}))
    })?;
    scene.wait_until("sluice_discovery_doubted", true)?;
    scene.wait_for(&[0, 1, 2, 3])?;
    scene.finish()
}
