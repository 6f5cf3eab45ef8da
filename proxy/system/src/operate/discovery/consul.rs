//! An agent of Consul: instances that come, fail their checks and go, and an agent that is killed.

use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use sluice_testkit::process::free_ports;

use super::super::consul::Consul;
use super::super::etcd::{POLL, TRIES, curl};
use super::super::site::local;
use super::{Applications, Scene};

/// # Errors
/// A request has failed, or sluice does not use what Consul has.
pub(in super::super) fn instances_change(binary: &Path) -> Result<String> {
    let applications = Applications::start("discovery-consul")?;
    let ports = applications.ports;
    let [closed] = free_ports(Ipv4Addr::LOCALHOST.into())?;
    let mut agent = Consul::started()?;
    let url = agent.url();
    let register = |number: usize, checked: u16| {
        let instance = json!({
            "ID": format!("web{number}"), "Name": "web", "Address": "127.0.0.1",
            "Port": ports[number], "Tags": ["production"],
            "Check": {"TCP": local(checked).to_string(), "Interval": "200ms"},
        });
        let url = format!("{url}/v1/agent/service/register");
        insist(|| curl("PUT", &url, Some(&instance)))
    };
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
    agent.kill()?;
    scene.wait_until("sluice_discovery_failing", true)?;
    scene.wait_for(&[2])?;
    // An agent in memory has forgotten everything.
    agent.start()?;
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
