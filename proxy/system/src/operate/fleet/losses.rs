//! What members do when the store has lost what they know, when their disks fail, and when their files conflict.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use sluice_testkit::process::free_ports;

use super::super::client::Client;
use super::super::discovery::Applications;
use super::super::etcd::{POLL, TRIES};
use super::super::redis::Redis;
use super::super::site::{Site, local};

struct Fleet<'b> {
    binary: &'b Path,
    store: Value,
    applications: Applications,
    sites: Vec<Site>,
}

impl Fleet<'_> {
    /// Adds a member that knows nothing, with further keys.
    fn add(&mut self, more: Value) -> Result<()> {
        let [address] = free_ports(Ipv4Addr::LOCALHOST.into())?.map(local);
        let number = self.sites.len();
        let mut store = self.store.clone();
        store["member"] = json!(format!("web{number}"));
        let mut keys =
            json!({"store": store, "workers": 1, "listeners": [{"name": "web", "address": address}]});
        if let (Some(keys), Value::Object(more)) = (keys.as_object_mut(), more) {
            keys.extend(more);
        }
        self.sites.push(Site::start_at(&format!("fleet-losses-{number}"), self.binary, address, keys)?);
        Ok(())
    }

    fn deploy(&self, member: usize, service: &str, application: usize) -> Result<()> {
        let target = self.applications.address(application);
        self.sites[member]
            .must(&format!("deploy {service} --host {service}.test --target {target}"))
            .map(drop)
    }

    /// Waits until all members send a service to an application.
    fn serve(&self, service: &str, application: usize) -> Result<()> {
        (0..self.sites.len()).try_for_each(|member| self.serves(member, service, application))
    }

    fn serves(&self, member: usize, service: &str, application: usize) -> Result<()> {
        let wanted = self.applications.ports[application].to_string();
        let mut seen = String::new();
        for _ in 0..TRIES {
            let mut client = Client::connect(self.sites[member].address)?;
            let answer = client.get_of(&format!("{service}.test"), "/", true)?;
            if answer.status == 200 && answer.text.trim() == wanted {
                return Ok(());
            }
            seen = format!("{} {}", answer.status, answer.text.trim());
            thread::sleep(POLL);
        }
        bail!(
            "member {member} answers {seen} for {service}, wanted {wanted}\n{}",
            self.sites[member].sluice.tail()
        )
    }
}

/// # Errors
/// A member does not serve what was deployed, or a command says so wrongly.
pub(super) fn are_made_up_for(binary: &Path) -> Result<String> {
    let mut redis = Redis::started()?;
    let store = redis.store("losses:");
    let applications = Applications::start("fleet-losses")?;
    let mut fleet = Fleet { binary, store, applications, sites: Vec::new() };
    fleet.add(json!({}))?;
    fleet.add(json!({}))?;
    fleet.deploy(0, "web", 0)?;
    fleet.deploy(1, "api", 1)?;

    // What a member reads when it starts is still known when it starts again, without a store.
    fleet.sites[1].sluice.stop()?;
    let target = fleet.applications.address(2);
    let outcome = fleet.sites[0].run(&format!("deploy web --host web.test --target {target}"))?;
    ensure!(outcome.code == Some(0), "without a member that has left: {}", outcome.said);
    fleet.sites[1].start_again()?;
    fleet.add(json!({}))?;
    fleet.serve("web", 2)?;
    fleet.sites.iter().try_for_each(|site| saved(site, &target))?;
    redis.kill()?;
    for site in &mut fleet.sites[1..] {
        site.restart()?;
    }
    fleet.serve("web", 2)?;
    fleet.serve("api", 1)?;

    // The store comes back empty, and a host that knows nothing is the first one to deploy.
    redis.start()?;
    fleet.add(json!({}))?;
    fleet.deploy(3, "fresh", 3)?;
    for (service, application) in [("web", 2), ("api", 1), ("fresh", 3)] {
        fleet.serve(service, application)?;
    }

    // A disk that takes nothing.
    let state = fleet.sites[1].folder.join("services.json");
    fs::remove_file(&state)?;
    fs::create_dir(&state)?;
    fleet.deploy(0, "more", 0)?;
    fleet.serve("more", 0)?;
    fs::remove_dir(&state)?;

    // A file that has the host of a service.
    let other = fleet.applications.address(0);
    let keys = json!({
        "clusters": {"own": {"endpoints": [other]}},
        "routes": [{"name": "own", "hosts": ["api.test"], "cluster": "own"}],
    });
    fleet.add(keys)?;
    fleet.serves(4, "api", 0)?;
    fleet.serves(4, "web", 2)?;
    listed(&fleet.sites[0], "cannot serve api")?;
    fleet.deploy(4, "web", 3)?;
    fleet.serve("web", 3)?;
    for mut site in fleet.sites {
        site.sluice.stop()?;
    }
    Ok("five members".to_owned())
}

/// Waits until the list of members says something.
fn listed(site: &Site, wanted: &str) -> Result<()> {
    let mut said = String::new();
    for _ in 0..TRIES {
        said = site.must("list --fleet")?;
        if said.contains(wanted) {
            return Ok(());
        }
        thread::sleep(POLL);
    }
    bail!("{wanted}: not in\n{said}")
}

/// Waits until the state file of a member has a target.
fn saved(site: &Site, target: &str) -> Result<()> {
    for _ in 0..TRIES {
        if fs::read_to_string(site.folder.join("services.json")).is_ok_and(|text| text.contains(target)) {
            return Ok(());
        }
        thread::sleep(POLL);
    }
    bail!("the state file does not have {target}\n{}", site.sluice.tail())
}
