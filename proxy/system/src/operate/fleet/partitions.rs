//! A fleet while the network between it and a real etcd is cut in each way, and while the disks of etcd are full. Each member
//! of etcd is a host with a disk of its own; the sluices are on the switch.

use std::path::Path;
use std::thread;

use anyhow::{Result, bail};
use serde_json::json;

use super::super::etcd::{Etcd, FIRST_HOST, MEMBERS, POLL, TRIES};
use super::super::namespace::Switch;
use super::scene::Scene;
use super::{FEW, PREFIX};

/// Room on the disk of a member of etcd. Its log takes 64 MiB from the start.
const DISK_MIB: u32 = 192;
/// Values of 64 KiB that are more than the rest of the disk takes.
const VALUES: usize = 4096;
/// The file of another program that takes the rest of the disk.
const GREEDY: &str = "greedy";

/// # Errors
/// A request has failed, a member serves something else than the others, or a change is not refused.
pub(super) fn are_survived(binary: &Path) -> Result<String> {
    // A thread of its own: its network is another one.
    let binary = binary.to_owned();
    let check = thread::Builder::new().name("partitions".to_owned()).spawn(move || apart(&binary))?;
    check.join().unwrap_or_else(|_| bail!("panicked"))
}

fn apart(binary: &Path) -> Result<String> {
    let switch = Switch::move_here()?;
    // An election is quicker than the client's patience.
    let options = ["--heartbeat-interval", "50", "--election-timeout", "500"];
    let mut etcd = Etcd::start_apart("fleet-partitions", &options, &switch, DISK_MIB)?;
    let store = json!({"etcd": {"endpoints": etcd.urls(), "prefix": PREFIX}});
    let mut scene = Scene::start("fleet-partitions", binary, &store)?;
    scene.deploy_many(FEW)?;

    let leader = etcd.leader()?;
    let host = |member: usize| FIRST_HOST + (member % MEMBERS) as u8;
    // The leader is cut off; the others choose a new one.
    switch.unplug(host(leader))?;
    scene.deploy_until_accepted()?;
    switch.heal(&[host(leader)])?;
    scene.deploy_until_accepted()?;

    // The majority is cut off, and goes on without us: what still answers has no leader.
    let leader = etcd.leader()?;
    let majority = [host(leader), host(leader + 1)];
    switch.cut_off(&majority)?;
    scene.is_refused()?;
    scene.restart_member(1)?;
    scene.is_refused()?;
    switch.heal(&majority)?;
    scene.deploy_until_accepted()?;

    // All are cut off from us, and then from each other.
    let all = [0, 1, 2].map(host);
    switch.cut_off(&all)?;
    scene.is_refused()?;
    switch.heal(&all)?;
    scene.deploy_until_accepted()?;
    all.iter().try_for_each(|host| switch.unplug(*host))?;
    scene.is_refused()?;
    switch.heal(&all)?;
    scene.deploy_until_accepted()?;

    let leader = etcd.leader()?;
    let full = [leader, (leader + 1) % MEMBERS];
    let put = fill_disks(&mut etcd, &full)?;
    scene.is_refused()?;
    let mut ended = 0;
    for member in full {
        ended += usize::from(make_room(&mut etcd, member)?);
    }
    scene.deploy_until_accepted()?;
    let said = scene.finish()?;
    Ok(format!("{said}; {ended} members of etcd ended on a full disk, after {put} values"))
}

/// Another program takes what is left of the disks; then values are stored until etcd takes no more. Returns how many it took.
fn fill_disks(etcd: &mut Etcd, members: &[usize]) -> Result<usize> {
    for member in members {
        let file = etcd.data(*member)?.join(GREEDY);
        let Some(host) = etcd.host(*member) else { bail!("it has no host") };
        let script = "dd if=/dev/zero of=\"$0\" bs=64k 2>/dev/null; test -s \"$0\"";
        host.must("sh", &["-c", script, &file.display().to_string()])?;
    }
    let value = "x".repeat(64 << 10);
    for number in 0..VALUES {
        let Err(error) = etcd.put("/filling", &value) else { continue };
        for _ in 0..TRIES {
            for member in members {
                if etcd.has_ended(*member)? {
                    return Ok(number);
                }
            }
            thread::sleep(POLL);
        }
        return Err(error.context("no member of etcd has ended"));
    }
    bail!("etcd has taken {VALUES} values of 64 KiB on full disks")
}

/// The other program ends; a member that has ended starts again. Returns whether it had ended.
fn make_room(etcd: &mut Etcd, member: usize) -> Result<bool> {
    let file = etcd.data(member)?.join(GREEDY);
    let Some(host) = etcd.host(member) else { bail!("it has no host") };
    host.must("rm", &[&file.display().to_string()])?;
    let has_ended = etcd.has_ended(member)?;
    if has_ended {
        etcd.run(member)?;
    }
    Ok(has_ended)
}
