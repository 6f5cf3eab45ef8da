//! Programs, maps and links disappear with their owner, however it ends.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use crate::proxy_support::Proxy;
use crate::support::{CHILD, Rig, is_alone, wait_for};

const READY: &str = "loaded and joined";

/// The process of a started sluice, identified by this folder.
pub(crate) fn process(proxy: &Proxy) -> String {
    let folder = proxy.folder.to_str().unwrap();
    let entries = fs::read_dir("/proc").unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let told = |name: &String| {
        let words = fs::read(format!("/proc/{name}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(folder)
    };
    names.filter(|name| name.parse::<u32>().is_ok()).find(told).expect("it runs")
}

/// Kind (`prog`, `map`, `link`) and id of every BPF object to which a process has a descriptor.
pub(crate) fn held(process: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap() {
        // A descriptor may be closed by now.
        let text = fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        for kind in ["prog", "map", "link"] {
            let prefix = format!("{kind}_id:");
            if let Some(id) = text.lines().find_map(|line| line.strip_prefix(&prefix)) {
                found.push((kind.to_owned(), id.trim().to_owned()));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Whether it still exists in the kernel.
pub(crate) fn exists(kind: &str, id: &str) -> bool {
    let status = Command::new("bpftool")
        .args([kind, "show", "id", id])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.expect("bpftool runs").success()
}

pub(crate) fn all_kinds(held: &[(String, String)]) -> bool {
    ["prog", "map", "link"].iter().all(|kind| held.iter().any(|(found, _)| found == kind))
}

/// The kernel frees some of them a little later.
pub(crate) fn gone(held: &[(String, String)]) {
    for (kind, id) in held {
        wait_for(&format!("{kind} {id} gone"), || !exists(kind, id));
    }
}

#[test]
#[ignore = "needs root and BPF"]
fn dropped_programs_leave_nothing_behind() {
    // Other tests in this process load and drop their own objects meanwhile.
    if !is_alone("leftovers::dropped_programs_leave_nothing_behind") {
        return;
    }
    let before = held("self");
    let mut rig = Rig::new();
    let mut pair = rig.loopback();
    pair.active.write_all(b"x").unwrap();
    pair.passive.read_exact(&mut [0]).unwrap();
    let ours: Vec<_> = held("self").into_iter().filter(|object| !before.contains(object)).collect();
    assert!(all_kinds(&ours), "{ours:?}");
    assert!(ours.iter().all(|(kind, id)| exists(kind, id)));
    drop(rig);
    // Still joined and working.
    pair.active.write_all(b"y").unwrap();
    pair.passive.read_exact(&mut [0]).unwrap();
    drop(pair);
    gone(&ours);
}

#[test]
#[ignore = "needs root and BPF"]
fn a_killed_process_leaves_nothing_behind() {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "leftovers::process_that_owns"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains(READY)), "the tunnel ended early");
    let objects = held(&owner.id().to_string());
    assert!(all_kinds(&objects), "{objects:?}");
    // SIGKILL.
    owner.kill().unwrap();
    owner.wait().unwrap();
    gone(&objects);
}

/// Not a test: started by the one above, and killed while it waits.
#[test]
#[ignore = "started by another test"]
fn process_that_owns() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let mut rig = Rig::new();
    let mut pair = rig.loopback();
    pair.active.write_all(b"unread").unwrap();
    println!("{READY}");
    // Ends with its parent at the latest.
    std::io::stdin().read_exact(&mut [0]).unwrap_err();
}
