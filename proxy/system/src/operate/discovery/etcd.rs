//! Three members of etcd: changes, a leader that is killed, a majority that is lost, all keys gone.

use std::path::Path;

use anyhow::{Result, ensure};
use data_encoding::BASE64;
use serde_json::json;

use super::super::etcd::{Etcd, MEMBERS};
use super::{Applications, Scene};

const PREFIX: &str = "/sluice/web/";

/// # Errors
/// A request has failed, or sluice does not use what etcd has.
pub(in super::super) fn members_fail(binary: &Path) -> Result<String> {
    let mut etcd = Etcd::start("discovery-etcd", &[])?;
    let applications = Applications::start("discovery-etcd")?;
    let key = |number: usize| format!("{PREFIX}{number}");
    for number in [0, 1] {
        etcd.put(&key(number), &applications.address(number))?;
    }
    let discover = json!({"etcd": {"endpoints": etcd.urls(), "prefix": PREFIX}});
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
