//! The findings on simulated hosts made of folders, and their consequences.
#![allow(clippy::unwrap_used)]

use sluice_config::{AssistMode, Config, KernelAssists, Runtime};
use sluice_engine::bypass::BypassError;
use sluice_kernel::probe::fake::{FakeHost, NOBODY};
use sluice_kernel::program::ProgramError;
use sluice_kernel::selftest::Failure;
use sluice_ring::RingError;

use super::trial;
use super::{Report, Status, find, judge};

fn config(bypass: AssistMode, splice: AssistMode) -> Config {
    Config {
        kernel: KernelAssists { bypass, splice, ..KernelAssists::default() },
        workers: 2,
        ..Config::default()
    }
}

fn auto() -> Config {
    config(AssistMode::Auto, AssistMode::Auto)
}

fn granted(_: &str) -> i32 {
    0
}

fn denied(_: &str) -> i32 {
    libc::EPERM
}

fn report(fake: &FakeHost, answer: fn(&str) -> i32) -> Report {
    judge(&auto(), None, &fake.read(answer), &Ok(()))
}

/// Status and texts of one finding.
fn one(report: &Report, area: &str, name: &str) -> (Status, String) {
    let finding = find(&report.areas, (area, name)).unwrap();
    (finding.status, format!("{}; {}", finding.means, finding.remedy.as_deref().unwrap_or("-")))
}

/// Everything that is not ok, as `area.name`.
fn troubles(report: &Report) -> Vec<String> {
    let all = report.areas.iter().flat_map(|area| area.findings.iter().map(move |one| (area.name, one)));
    let bad = all.filter(|(_, finding)| finding.status != Status::Ok);
    bad.map(|(area, finding)| format!("{area}.{}", finding.name)).collect()
}

fn codes(report: &Report, assist: &str) -> Vec<String> {
    let assists = report.to_json()["assists"][assist]["reasons"].clone();
    assists.as_array().unwrap().iter().map(|one| one["code"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_complete_host_is_ok() {
    let report = report(&FakeHost::whole(), granted);
    assert_eq!(troubles(&report), Vec::<String>::new(), "{}", report.to_text());
    assert!(report.is_well());
    assert!(
        report.to_text().ends_with("ok: everything that sluice and its configuration require is available\n")
    );
    assert_eq!(codes(&report, "bypass"), [""; 0]);
    assert!(report.to_text().contains("\n  used     bypass (auto)\n"), "{}", report.to_text());
    assert_eq!(codes(&report, "splice"), [""; 0]);
}

#[test]
fn every_line_has_status_name_and_meaning() {
    for fake in [FakeHost::whole(), FakeHost::empty()] {
        let text = report(&fake, denied).to_text();
        for line in text.lines().filter(|line| line.starts_with("  ")) {
            let (status, rest) = line.trim().split_once(' ').unwrap();
            assert!(["ok", "limited", "missing", "unused"].contains(&status), "{line}");
            let (name, means) = rest.trim().split_once(": ").unwrap();
            assert!(!name.is_empty() && means.len() > 3 && !line.contains("None"), "{line}");
        }
    }
}

#[test]
fn an_unprivileged_user_lacks_capabilities_and_bpf() {
    let fake = FakeHost::whole().write("proc/self/status", NOBODY);
    let report = report(&fake, denied);
    assert!(report.is_well(), "sluice itself needs no capabilities");
    let (status, text) = one(&report, "capabilities", "CAP_BPF");
    assert!(
        status == Status::Missing && text.contains("setcap cap_bpf,cap_net_admin,cap_perfmon+ep"),
        "{text}"
    );
    assert_eq!(one(&report, "capabilities", "CAP_SYS_ADMIN").0, Status::Ok);
    let (_, text) = one(&report, "bpf", "sk_msg");
    assert_eq!(text, "program type: requires CAP_BPF, CAP_NET_ADMIN; -");
    let capabilities = ["capabilities.cap_bpf", "capabilities.cap_net_admin", "capabilities.cap_perfmon"];
    assert_eq!(codes(&report, "bypass"), capabilities, "causes are listed, consequences are not");
    assert_eq!(codes(&report, "splice"), capabilities);
}

#[test]
fn the_cause_of_denied_bpf_is_named() {
    let text = |fake: &FakeHost| one(&report(fake, denied), "bpf", "sockhash").1;
    let said = text(&FakeHost::whole());
    assert!(said.starts_with("map type: not permitted: bpf(BPF_PROG_LOAD): Operation not permitted"));
    assert!(said.ends_with("see the log of the active security module (AppArmor, SELinux)"), "{said}");
    let status = "CapEff:\t000001ffffffffff\nSeccomp:\t2\n";
    let filtered = FakeHost::whole().write("proc/self/status", status);
    assert!(text(&filtered).ends_with("allow bpf in the seccomp profile"));
    let contained = report(&filtered.write("proc/self/uid_map", "0 100000 65536\n"), denied);
    assert_eq!(one(&contained, "capabilities", "user_namespace").0, Status::Limited);
    let (status, text) = one(&contained, "capabilities", "CAP_BPF");
    assert!(status == Status::Missing && text.contains("run in the initial user namespace"), "{text}");
    let capabilities = ["capabilities.cap_bpf", "capabilities.cap_net_admin", "capabilities.cap_perfmon"];
    assert_eq!(codes(&contained, "splice"), capabilities);
}

#[test]
fn unsupported_and_forbidden_bpf_are_distinguished() {
    let absent = |name: &str| if name == "sk_skb" { libc::EINVAL } else { 0 };
    let report = report(&FakeHost::whole(), absent);
    let (status, text) = one(&report, "bpf", "sk_skb");
    assert_eq!(status, Status::Missing);
    assert!(
        text.contains("not supported by this kernel") && text.contains("CONFIG_BPF_STREAM_PARSER"),
        "{text}"
    );
    assert_eq!(codes(&report, "splice"), ["bpf.sk_skb"]);
    assert_eq!(codes(&report, "bypass"), [""; 0]);
}

#[test]
fn confidentiality_lockdown_forbids_reading_kernel_memory() {
    let fake = FakeHost::whole().write("sys/kernel/security/lockdown", "none integrity [confidentiality]\n");
    let report = report(&fake, |name| if name == "probe_read_kernel" { libc::EINVAL } else { 0 });
    assert_eq!(one(&report, "bpf", "lockdown").0, Status::Limited);
    let (status, text) = one(&report, "bpf", "probe_read_kernel");
    assert!(status == Status::Missing && text.starts_with("helper: forbidden by lockdown"), "{text}");
}

#[test]
fn without_cgroup2_the_remedy_is_to_mount_it() {
    let hybrid = FakeHost::whole().write("proc/mounts", "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n");
    let hybrid_report = report(&hybrid, granted);
    let (status, text) = one(&hybrid_report, "cgroups", "cgroup2");
    assert_eq!(status, Status::Missing);
    assert!(text.contains("not mounted") && text.contains("cgroup2 none /sys/fs/cgroup/unified"), "{text}");
    assert_eq!(codes(&hybrid_report, "bypass"), ["cgroups.cgroup2"]);
    let none = hybrid.write("proc/mounts", "");
    assert!(one(&report(&none, granted), "cgroups", "cgroup2").1.ends_with("none /sys/fs/cgroup"));
    let part = FakeHost::whole().write("sys/fs/cgroup/unified/cgroup.type", "domain\n");
    assert_eq!(one(&report(&part, granted), "cgroups", "cgroup2").0, Status::Limited);
}

#[test]
fn denied_io_uring_is_not_ok_if_required() {
    let host = FakeHost::whole().read(granted);
    let denied = Err(RingError::Sysctl(2));
    let report = judge(&auto(), None, &host, &denied);
    assert!(report.is_well(), "every host has epoll");
    let (status, text) = one(&report, "io_uring", "ring");
    assert!(status == Status::Limited && text.contains("falls back to epoll"), "{text}");
    let config = Config { runtime: Runtime::IoUring, ..auto() };
    let report = judge(&config, None, &host, &denied);
    assert!(!report.is_well());
    let (status, text) = one(&report, "io_uring", "ring");
    assert!(status == Status::Missing && text.contains("kernel.io_uring_disabled=2"), "{text}");
    let json = report.to_json();
    assert_eq!(json["areas"]["io_uring"]["ring"]["value"], "denied_by_sysctl");
    assert_eq!(json["lacking"], serde_json::json!(["io_uring.ring", "io_uring.operations"]));
    let old = judge(&config, None, &host, &Err(RingError::Operations(vec!["send"])));
    assert_eq!(old.to_json()["lacking"], serde_json::json!(["io_uring.operations"]));
}

#[test]
fn an_old_kernel_is_not_ok_for_io_uring() {
    let fake = FakeHost::whole().write("proc/sys/kernel/osrelease", "5.18.19\n");
    assert!(report(&fake, granted).is_well());
    assert_eq!(one(&report(&fake, granted), "kernel", "release").0, Status::Limited);
    let config = Config { runtime: Runtime::IoUring, ..auto() };
    let old = judge(&config, None, &fake.read(granted), &Ok(()));
    assert_eq!(old.to_json()["lacking"], serde_json::json!(["kernel.release"]));
    let fake = fake.write("proc/sys/kernel/osrelease", "5.19.0\n");
    assert!(report(&fake, granted).is_well());
}

#[test]
fn rings_may_exceed_the_locked_memory_limit() {
    for (release, bytes, expected) in [
        ("6.18.0", 480 << 10, Status::Ok),
        ("6.18.0", (480 << 10) - 1, Status::Limited),
        ("6.13.9", 0, Status::Ok),
    ] {
        let fake = FakeHost::whole()
            .write("proc/self/status", NOBODY)
            .write("proc/sys/kernel/osrelease", release)
            .write(
                "proc/self/limits",
                &format!("Max locked memory         {bytes}              {bytes}   bytes\n"),
            );
        let (status, text) = one(&report(&fake, granted), "limits", "locked_memory");
        assert_eq!(status, expected, "{release}, {bytes}: {text}");
    }
}

#[test]
fn limits_are_compared_with_the_configuration() {
    let limits = |descriptors: u64| {
        let line =
            format!("Max open files            1024                 {descriptors}              files\n");
        FakeHost::whole().write("proc/self/limits", &line)
    };
    assert_eq!(one(&report(&limits(40_000), granted), "limits", "descriptors").0, Status::Ok);
    let (status, text) = one(&report(&limits(39_999), granted), "limits", "descriptors");
    assert!(status == Status::Limited && text.contains("enough for 19999"), "{text}");
    let fake = FakeHost::whole()
        .write("proc/sys/net/core/somaxconn", "128\n")
        .write("sys/fs/cgroup/unified/memory.max", "33554432\n");
    let host = fake.read(granted);
    let four = Config { workers: 4, ..auto() };
    let report = judge(&four, None, &host, &Ok(()));
    assert_eq!(troubles(&report), ["limits.somaxconn", "limits.cores", "limits.memory"]);
    assert!(report.is_well(), "a lower limit does not prevent running");
}

#[test]
fn required_assists_affect_the_verdict() {
    let host = FakeHost::whole().read(granted);
    let report = judge(&config(AssistMode::Required, AssistMode::Off), None, &host, &Ok(()));
    assert!(report.is_well() && report.assists.require().is_ok());
    assert_eq!(codes(&report, "splice"), ["off"]);
    let report = judge(&config(AssistMode::Off, AssistMode::Required), None, &host, &Ok(()));
    assert!(report.is_well() && report.assists.require().is_ok());
    assert_eq!((codes(&report, "bypass"), codes(&report, "splice")), (vec!["off".to_owned()], vec![]));
    let nobody = FakeHost::whole().write("proc/self/status", NOBODY).read(denied);
    let both = config(AssistMode::Required, AssistMode::Required);
    let error = judge(&both, None, &nobody, &Ok(())).assists.require().unwrap_err();
    assert!(
        error.to_string().contains("CAP_BPF is missing, CAP_NET_ADMIN is missing, CAP_PERFMON is missing"),
        "{error}"
    );
    assert_eq!(error.to_string().lines().count(), 2);
}

/// The report on a host that supports everything, with this result of the bypass test.
fn tried(mode: AssistMode, trouble: BypassError) -> Report {
    let host = FakeHost::whole().read(granted);
    let mut report = judge(&config(mode, AssistMode::Off), None, &host, &Ok(()));
    trial::note(&mut report.assists, &trouble);
    report
}

#[test]
fn a_failed_direct_return_test_disables_only_direct_return() {
    let host = FakeHost::whole().read(granted);
    let failure = Failure { check: "direct_return.room", found: "too much was taken".into() };
    let report = |mode| {
        let mut config = config(AssistMode::Auto, AssistMode::Off);
        config.kernel.direct_return = mode;
        let mut report = judge(&config, None, &host, &Ok(()));
        trial::note_direct(&mut report.assists, &failure);
        report
    };
    let auto = report(AssistMode::Auto);
    assert!(auto.is_well() && auto.assists.may_bypass() && !auto.assists.returns_directly());
    assert_eq!(codes(&auto, "direct_return"), ["self_test.direct_return.room"]);
    assert_eq!(codes(&auto, "bypass"), [""; 0]);
    let required = report(AssistMode::Required);
    assert_eq!(required.to_json()["lacking"], serde_json::json!(["kernel.direct_return"]));
    let why = "its self-test failed: check direct_return.room: too much was taken";
    assert!(required.assists.require().unwrap_err().to_string().contains(why));
}

#[test]
fn a_failed_self_test_names_its_check() {
    let trouble = || {
        BypassError::SelfTest(Failure { check: "half_close", found: "a reset in place of the end".into() })
    };
    let report = tried(AssistMode::Auto, trouble());
    assert!(report.is_well(), "no assist is required");
    assert_eq!(codes(&report, "bypass"), ["self_test.half_close"]);
    assert_eq!(report.to_json()["assists"]["bypass"]["host_can"], false);
    let why = "its self-test failed: check half_close: a reset in place of the end";
    assert_eq!(report.assists.words()[0], format!("not used: {why}"));
    assert!(
        report.to_text().contains(&format!("\n  unused   bypass (auto): {why}\n")),
        "{}",
        report.to_text()
    );
    let report = tried(AssistMode::Required, trouble());
    assert_eq!(report.to_json()["lacking"], serde_json::json!(["kernel.bypass"]));
    assert_eq!(
        report.assists.require().unwrap_err(),
        format!("kernel.bypass: required, but bypass cannot be used: {why}; auto runs without it").into()
    );
}

#[test]
fn refused_programs_are_reported_in_one_line() {
    let log =
        std::io::Error::other("Permission denied (os error 13). Verifier output: 0: R1=ctx()\n1: r0 = 0");
    let error = ProgramError { call: "bpf(BPF_PROG_LOAD) of sk_msg", source: log.into() };
    let report = tried(AssistMode::Auto, BypassError::Load(error));
    assert_eq!(codes(&report, "bypass"), ["load"]);
    assert_eq!(
        report.assists.words()[0],
        "not used: its programs cannot be loaded: bpf(BPF_PROG_LOAD) of sk_msg: Permission denied (os error 13). \
         Verifier output: 0: R1=ctx()"
    );
}

#[test]
fn json_has_the_same_keys_on_every_host() {
    fn keys(value: &serde_json::Value, path: &str, into: &mut Vec<String>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            let path = format!("{path}.{key}");
            into.push(path.clone());
            keys(value, &path, into);
        }
    }
    let of = |report: &Report| {
        let mut all = Vec::new();
        keys(&report.to_json(), "", &mut all);
        all
    };
    let whole = of(&report(&FakeHost::whole(), granted));
    let bare = FakeHost::empty().read(denied);
    let bare = judge(&auto(), Some("c.yaml".into()), &bare, &Err(RingError::Module));
    assert_eq!(whole, of(&bare));
    assert!(whole.contains(&".areas.bpf.sockhash.status".to_owned()));
    let plain = |key: &&String| {
        !key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "._".contains(c))
    };
    assert_eq!(whole.iter().find(plain), None);
    assert_eq!(bare.to_json()["config"], "c.yaml");
}
