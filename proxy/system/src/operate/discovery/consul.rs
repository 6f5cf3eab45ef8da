//! An agent of Consul: instances that come, fail their checks and go, and an agent that is killed.

use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use sluice_testkit::pinned;
use sluice_testkit::process::{Process, bound, free_ports};
use sluice_testkit::workspace;

use super::super::etcd::{POLL, TRIES, curl};
use super::super::site::local;
use super::{Applications, Scene};

/// # Errors
/// A request has failed, or sluice does not use what Consul has.
pub(in super::super) fn instances_change(binary: &Path) -> Result<String> {
    let program = pinned::tool("consul")?;
    let applications = Applications::start("discovery-consul")?;
    let ports = applications.ports;
    let [http, server, lan, wan, closed] = free_ports(Ipv4Addr::LOCALHOST.into())?;
    let url = format!("http://{}", local(http));
    let start = || -> Result<Process> {
        let mut command = bound(&program);
        command.args(["agent", "-dev", "-bind", "127.0.0.1", "-dns-port", "-1", "-grpc-port", "-1"]);
        command.args(["-grpc-tls-port", "-1", "-http-port", &http.to_string()]);
        command.args(["-server-port", &server.to_string(), "-serf-lan-port", &lan.to_string()]);
        command.args(["-serf-wan-port", &wan.to_string()]);
        let log = workspace::scratch("logs")?.join("discovery-consul.log");
        Process::start("consul", &mut command, log, Signal::SIGTERM)
    };
    let register = |number: usize, checked: u16| {
        let instance = json!({
            "ID": format!("web{number}"), "Name": "web", "Address": "127.0.0.1",
            "Port": ports[number], "Tags": ["production"],
            "Check": {"TCP": local(checked).to_string(), "Interval": "200ms"},
        });
        let url = format!("{url}/v1/agent/service/register");
        insist(|| curl("PUT", &url, Some(&instance)))
    };
    let agent = start()?;
    register(0, ports[0])?;
    register(1, ports[1])?;
    let discover = json!({"consul": {"url": url, "service": "web", "tags": ["production"]}});
    insist(|| {
        let passing: Value =
            serde_json::from_str(&curl("GET", &format!("{url}/v1/health/service/web?passing=1"), None)?)?;
        if passing.as_array().is_some_and(|all| all.len() == 2) {
            Ok(String::new())
        } else {
            bail!("{passing}")
        }
    })?;
    let mut scene = Scene::start("discovery-consul", binary, applications, &discover)?;
    scene.wait_for(&[0, 1])?;
    register(2, ports[2])?;
    scene.wait_for(&[0, 1, 2])?;
    // Its check fails, because nothing listens there.
    register(0, closed)?;
    scene.wait_for(&[1, 2])?;
    curl("PUT", &format!("{url}/v1/agent/service/deregister/web1"), None)?;
    scene.wait_for(&[2])?;
    kill(Pid::from_raw(i32::try_from(agent.pid())?), Signal::SIGKILL)?;
    drop(agent);
    scene.wait_until("sluice_discovery_failing", true)?;
    scene.wait_for(&[2])?;
    // An agent in memory has forgotten everything.
    let _agent = start()?;
    register(3, ports[3])?;
    scene.wait_for(&[3])?;
    scene.finish()
}

/// Tries again until it succeeds: an agent elects its leader first.
fn insist(attempt: impl Fn() -> Result<String>) -> Result<()> {
    let mut tries = 0;
    while let Err(error) = attempt() {
        tries += 1;
        if tries == TRIES {
            return Err(error);
        }
        thread::sleep(POLL);
    }
    Ok(())
}
