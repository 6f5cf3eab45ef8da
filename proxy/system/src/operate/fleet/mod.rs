//! Three sluices that share services by a store, under load, while the store fails and comes back.

mod losses;
mod partitions;
mod rates;
mod scene;

use std::path::Path;

use anyhow::{Result, bail, ensure};
use data_encoding::BASE64;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::consul::Consul;
use super::etcd::{Etcd, MEMBERS, curl};
use super::redis::Redis;
use scene::Scene;

const PREFIX: &str = "/sluice/fleet/";
/// Deploys in a row, from one member after the other.
const DEPLOYS: usize = 50;
/// The same where it is done at length with another engine.
const FEW: usize = 9;

/// # Errors
/// A rate limit is not counted together.
pub(super) fn rates(binary: &Path) -> Result<String> {
    rates::are_counted_together(binary)
}

/// # Errors
/// A member does not serve what was deployed.
pub(super) fn losses(binary: &Path) -> Result<String> {
    losses::are_made_up_for(binary)
}

/// # Errors
/// As for [`over_etcd`].
pub(super) fn partitions(binary: &Path) -> Result<String> {
    partitions::are_survived(binary)
}

/// # Errors
/// A request has failed, a member serves something else than the others, or a change without a majority is not refused.
pub(super) fn over_etcd(binary: &Path) -> Result<String> {
    // Small, so that it can be filled.
    let mut etcd = Etcd::start("fleet-etcd", &["--quota-backend-bytes", "16777216"])?;
    let store = json!({"etcd": {"endpoints": etcd.urls(), "prefix": PREFIX}});
    let mut scene = Scene::start("fleet-etcd", binary, &store)?;
    what_operators_do(&mut scene, DEPLOYS)?;

    let leader = etcd.leader()?;
    etcd.kill(leader)?;
    scene.deploy_until_accepted()?;
    let second = (leader + 1) % MEMBERS;
    // It accepts connections, and says nothing.
    etcd.signal(second, Signal::SIGSTOP)?;
    scene.is_refused()?;
    scene.restart_member(0)?;
    etcd.signal(second, Signal::SIGCONT)?;
    scene.deploy_until_accepted()?;
    etcd.run(leader)?;
    scene.deploy_until_accepted()?;

    for member in 0..MEMBERS {
        etcd.kill(member)?;
    }
    scene.is_refused()?;
    for member in 0..MEMBERS {
        etcd.run(member)?;
    }
    scene.deploy_until_accepted()?;

    fill(&etcd)?;
    scene.is_refused()?;
    make_room(&etcd)?;
    scene.deploy_until_accepted()?;

    etcd.insist("all keys are deleted", |etcd| {
        let range = [PREFIX, "/sluice/fleet0"].map(|text| BASE64.encode(text.as_bytes()));
        etcd.ask("/v3/kv/deleterange", &json!({"key": range[0], "range_end": range[1]}))
    })?;
    scene.deploy_until_accepted()?;
    scene.finish()
}

/// Puts values until there is no room: etcd refuses every change then.
fn fill(etcd: &Etcd) -> Result<()> {
    // As much as a command line takes.
    let value = "x".repeat(64 << 10);
    for number in 0..1024 {
        if let Err(error) = etcd.put(&format!("/filling/{number}"), &value) {
            ensure!(number > 100, "etcd does not take value {number}: {error}");
            return Ok(());
        }
    }
    bail!("etcd has taken 64 MiB with a quota of 16")
}

/// Removes what fills it, and tells every member that there is room.
fn make_room(etcd: &Etcd) -> Result<()> {
    let range = ["/filling/", "/filling0"].map(|text| BASE64.encode(text.as_bytes()));
    let deleted = etcd.ask("/v3/kv/deleterange", &json!({"key": range[0], "range_end": range[1]}))?;
    etcd.ask("/v3/kv/compaction", &json!({"revision": deleted["header"]["revision"], "physical": true}))?;
    for url in etcd.urls() {
        curl("POST", &format!("{url}/v3/maintenance/defragment"), Some(&json!({})))?;
    }
    let alarms = etcd.ask("/v3/maintenance/alarm", &json!({"action": "GET"}))?;
    for alarm in alarms["alarms"].as_array().cloned().unwrap_or_default() {
        let alarm = json!({"action": "DEACTIVATE", "memberID": alarm["memberID"], "alarm": alarm["alarm"]});
        etcd.ask("/v3/maintenance/alarm", &alarm)?;
    }
    Ok(())
}

/// # Errors
/// As for [`over_etcd`].
pub(super) fn over_redis(binary: &Path) -> Result<String> {
    let mut redis = Redis::started()?;
    let store = json!({"redis": redis.store("fleet:")["redis"]});
    let mut scene = Scene::start("fleet-redis", binary, &store)?;
    what_operators_do(&mut scene, FEW)?;
    redis.kill()?;
    scene.is_refused()?;
    scene.restart_member(0)?;
    redis.start()?;
    scene.deploy_until_accepted()?;
    scene.finish()
}

/// # Errors
/// As for [`over_etcd`].
pub(super) fn over_consul(binary: &Path) -> Result<String> {
    let mut agent = Consul::started()?;
    let store = json!({"consul": {"url": agent.url(), "prefix": "fleet/"}});
    let mut scene = Scene::start("fleet-consul", binary, &store)?;
    what_operators_do(&mut scene, DEPLOYS)?;
    let known = curl("GET", &format!("{}/v1/kv/fleet/state/head", agent.url()), None)?;
    let known: Value = serde_json::from_str(&known)?;
    ensure!(known[0]["Key"] == "fleet/state/head", "{known}");
    agent.kill()?;
    scene.is_refused()?;
    scene.restart_member(0)?;
    // It has forgotten everything.
    agent.start()?;
    scene.deploy_until_accepted()?;
    scene.finish()
}

/// While the store is well.
fn what_operators_do(scene: &mut Scene, deploys: usize) -> Result<()> {
    scene.deploy_many(deploys)?;
    scene.hold_and_resume()?;
    scene.two_operators()?;
    scene.bans_reach_all()?;
    scene.unhealthy_targets_change_nothing()
}
