//! Hosts made of folders, and what is read from them.
#![allow(clippy::unwrap_used)]

use super::cgroups::MemoryLimit;
use super::fake::{FakeHost, NOBODY};
use super::{Capability, Cgroups, Host, Process, features};

fn read(host: &FakeHost) -> Host {
    Host::read(&host.sources())
}

#[test]
fn complete_host_is_read() {
    let fake = FakeHost::whole();
    let host = read(&fake);
    assert_eq!((host.release.as_deref(), host.version()), (Some("6.18.44-amd64"), Some((6, 18))));
    assert_eq!(host.lockdown.as_deref(), Some("integrity"));
    assert_eq!((host.unprivileged_bpf_disabled, host.somaxconn), (Some(2), Some(4096)));
    assert!(host.btf.is_ok() && host.features.is_empty() && host.cores > 0);
    assert_eq!(
        host.process,
        Process {
            capabilities: 0x1ff_ffff_ffff,
            filtered: Some(false),
            in_user_namespace: false,
            descriptors_max: Some(1_048_576),
            locked_bytes_max: Some(8_388_608),
        }
    );
    assert_eq!(
        host.cgroups,
        Cgroups {
            unified: Some(fake.path("sys/fs/cgroup/unified")),
            is_root: true,
            legacy: true,
            legacy_memory: false,
            memory_limit: None,
        }
    );
}

#[test]
fn host_without_information_is_read() {
    let host = read(&FakeHost::empty());
    assert_eq!((host.release.as_deref(), host.version(), host.lockdown), (None, None, None));
    assert_eq!((host.process, host.cgroups), (Process::default(), Cgroups::default()));
    let error = host.btf.unwrap_err();
    assert!(error.to_string().starts_with("open(/sys/kernel/btf/vmlinux): No such file"), "{error}");
}

#[test]
fn kernel_versions_are_parsed() {
    for (release, version) in [
        ("5.19.0-rc1", Some((5, 19))),
        ("6.1.0-18-amd64", Some((6, 1))),
        ("6.18", Some((6, 18))),
        ("6", None),
        ("linux", None),
    ] {
        let fake = FakeHost::empty().write("proc/sys/kernel/osrelease", release);
        assert_eq!(read(&fake).version(), version, "{release}");
    }
}

#[test]
fn sys_admin_includes_bpf_and_perfmon_but_not_net_admin() {
    let with = |bits: u64| Process { capabilities: bits, ..Process::default() };
    let can = |process: &Process| Capability::ALL.map(|one| process.can(one));
    assert_eq!(can(&with(0)), [false; 4]);
    assert_eq!(can(&with(1 << 39)), [true, false, false, false]);
    assert_eq!(can(&with(1 << 12)), [false, true, false, false]);
    assert_eq!(can(&with(1 << 38)), [false, false, true, false]);
    assert_eq!(can(&with(1 << 21)), [true, false, true, true]);
    let contained = Process { in_user_namespace: true, ..with(u64::MAX) };
    assert_eq!(
        can(&contained),
        [false; 4],
        "capabilities in another user namespace do not count for the host"
    );
}

#[test]
fn contained_process_is_recognized() {
    let fake = FakeHost::whole()
        .write("proc/self/status", &NOBODY.replace("Seccomp:\t0", "Seccomp:\t2"))
        .write("proc/self/uid_map", "         0     100000      65536\n")
        .write(
            "proc/self/limits",
            "Max open files            unlimited            unlimited            files\n",
        );
    let process = read(&fake).process;
    assert_eq!((process.capabilities, process.filtered), (0, Some(true)));
    assert!(process.in_user_namespace);
    assert_eq!((process.descriptors_max, process.locked_bytes_max), (None, None));
}

#[test]
fn cgroup2_is_found_wherever_it_is_mounted() {
    let fake = FakeHost::empty();
    let place = fake.path("a b");
    std::fs::create_dir_all(&place).unwrap();
    let written = place.display().to_string().replace(' ', "\\040");
    let fake = fake.write("proc/mounts", &format!("none {written} cgroup2 rw 0 0\n"));
    let cgroups = read(&fake).cgroups;
    assert_eq!((cgroups.unified.as_ref(), cgroups.is_root, cgroups.legacy), (Some(&place), true, false));
    // A part of the hierarchy has a type; its root does not.
    let fake = fake.write("a b/cgroup.type", "domain\n");
    assert!(!read(&fake).cgroups.is_root);
}

#[test]
fn without_a_cgroup2_mount_none_is_found() {
    let fake = FakeHost::whole().write("proc/mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n");
    let cgroups = read(&fake).cgroups;
    assert_eq!((cgroups.unified, cgroups.is_root, cgroups.legacy), (None, false, true));
}

#[test]
fn lowest_memory_limit_counts() {
    let unified = |name: &str| format!("sys/fs/cgroup/unified/{name}/memory.max");
    let fake = FakeHost::whole()
        .write("proc/self/cgroup", "4:memory:/\n0::/outer/inner\n")
        .write(&unified("outer"), "1000\n")
        .write(&unified("outer/inner"), "max\n");
    let limit = read(&fake).cgroups.memory_limit.unwrap();
    assert_eq!(limit, MemoryLimit { bytes: 1000, file: fake.path(&unified("outer")) });

    let legacy = "sys/fs/cgroup/memory/own/memory.limit_in_bytes";
    let fake = FakeHost::whole().write("proc/self/cgroup", "4:cpu,memory:/own\n0::/\n");
    let fake = fake.write(legacy, "9223372036854771712\n");
    assert_eq!(read(&fake).cgroups.memory_limit, None);
    let fake = fake.write(legacy, "2000\n");
    assert_eq!(read(&fake).cgroups.memory_limit.map(|limit| limit.bytes), Some(2000));
}

#[test]
fn memory_controller_version_is_read_from_proc_cgroups() {
    for (line, legacy) in
        [("memory\t4\t35\t1", true), ("memory\t0\t35\t1", false), ("memory_x\t4\t1\t1", false)]
    {
        let fake = FakeHost::empty()
            .write("proc/cgroups", &format!("#subsys_name\thierarchy\ncpu\t3\t1\t1\n{line}\n"));
        assert_eq!(read(&fake).cgroups.legacy_memory, legacy, "{line}");
    }
}

#[test]
fn every_feature_has_a_named_result() {
    // With or without privileges, each result is success, or a call with its error.
    let names: Vec<&str> = features::probe().iter().map(|feature| feature.name).collect();
    let fake: Vec<&str> = FakeHost::empty().read(|_| 0).features.iter().map(|feature| feature.name).collect();
    assert_eq!(names, fake);
}
