//! `sluice doctor` on hosts that deny something: to an unprivileged user, by seccomp, by a sysctl, without cgroup2.
//!
//! Denials apply to one process and its own mount namespace only. A test that cannot run here prints a note.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};

use nix::unistd::geteuid;
use serde_json::Value;

use crate::support::{Origin, Setup};

const BINARY: &str = env!("CARGO_BIN_EXE_sluice");

fn skipped(why: &str) {
    // Bypasses the test harness, which hides the output of passing tests.
    let _ = writeln!(std::io::stderr(), "skipped: {why}");
}

/// Whether a command can be run and succeeds.
fn works(command: &[&str]) -> bool {
    Command::new(command[0]).args(&command[1..]).output().is_ok_and(|output| output.status.success())
}

/// Whether we are root and can create mount namespaces.
fn can_unshare() -> bool {
    let can = geteuid().is_root() && works(&["unshare", "--mount", "true"]);
    if !can {
        skipped("only root can create a mount namespace");
    }
    can
}

fn can_filter() -> bool {
    let can = works(&["python3", "-c", "import ctypes, platform"]);
    if !can {
        skipped("python3, which installs the seccomp filter, is not available");
    }
    can
}

fn run(command: &[&str]) -> Output {
    let output = Command::new(command[0]).args(&command[1..]).output().unwrap();
    assert!(output.stderr.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The report of `doctor --json` run through this command, and its exit code.
fn report(before: &[&str], after: &[&str]) -> (Value, Option<i32>) {
    let output = run(&[before, &[BINARY, "doctor", "--json"], after].concat());
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code())
}

/// The same as text.
fn text(before: &[&str]) -> String {
    String::from_utf8(run(&[before, &[BINARY, "doctor"]].concat()).stdout).unwrap()
}

fn line<'t>(text: &'t str, name: &str) -> &'t str {
    let starts =
        |line: &&str| line.trim().split_once(' ').is_some_and(|(_, rest)| rest.trim().starts_with(name));
    text.lines().find(starts).unwrap_or_else(|| panic!("no line {name} in\n{text}"))
}

/// Python code that denies system calls with EPERM and executes its arguments.
const DENY: &str = r#"
import ctypes, os, platform, struct, sys
bpf = {"x86_64": 321, "aarch64": 280}.get(platform.machine(), 0)
denied = {"io_uring": 425, "bpf": bpf, "bpf_link": bpf}[sys.argv[1]]
deny, allow = (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)
code = [(0x20, 0, 0, 0), (0x15, 0, 1, denied), deny, allow]
if sys.argv[1] == "bpf_link":
    # Only BPF_LINK_CREATE, by the lower half of the first argument.
    code = [(0x20, 0, 0, 0), (0x15, 0, 3, denied), (0x20, 0, 0, 16), (0x15, 0, 1, 28), deny, allow]
program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
header = ctypes.create_string_buffer(struct.pack("HP", len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
    sys.exit("no seccomp filter: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
"#;

#[test]
fn the_report_matches_this_kernel() {
    let (report, code) = report(&[], &[]);
    let areas = &report["areas"];
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(areas["kernel"]["release"]["value"], release.trim());
    assert_eq!(report["ok"] == true, code == Some(0), "{report:#}");
    if areas["io_uring"]["ring"]["status"] != "ok" {
        return skipped(areas["io_uring"]["ring"]["remedy"].as_str().unwrap());
    }
    assert_eq!((code, &report["lacking"]), (Some(0), &serde_json::json!([])));
    for assist in ["bypass", "splice"] {
        let assist = &report["assists"][assist];
        assert_eq!(assist["mode"], "auto");
        assert_eq!(assist["used"] == true, assist["reasons"] == serde_json::json!([]), "{assist:#}");
    }
    let text = text(&[]);
    assert!(text.contains("\nok: everything that sluice"), "{text}");
    assert!(line(&text, "splice").contains("(auto)"), "{text}");
}

/// Whether no finding rules out bypass, so that it was tested.
fn was_tried(report: &Value) -> bool {
    let bypass = &report["assists"]["bypass"];
    let reasons = bypass["reasons"].as_array().unwrap();
    let tried = |reason: &Value| {
        let code = reason["code"].as_str().unwrap();
        code == "load" || code.starts_with("self_test.")
    };
    let was = reasons.iter().all(tried);
    if !was {
        skipped(&format!("bypass is not available here: {reasons:?}"));
    }
    was
}

#[test]
fn root_with_ebpf_tests_and_uses_bypass() {
    let (report, _) = report(&[], &[]);
    if !was_tried(&report) {
        return;
    }
    let bypass = &report["assists"]["bypass"];
    assert_eq!(bypass["reasons"], serde_json::json!([]));
    assert_eq!((&bypass["used"], &bypass["host_can"]), (&Value::Bool(true), &Value::Bool(true)));
    let text = text(&[]);
    assert_eq!(line(&text, "bypass"), "  used     bypass (auto)");
}

#[test]
fn programs_that_cannot_be_attached_are_reported() {
    if !can_filter() {
        return;
    }
    let deny = ["python3", "-c", DENY, "bpf_link"];
    let (report, code) = report(&deny, &[]);
    if !was_tried(&report) {
        return;
    }
    assert_eq!(report["assists"]["bypass"]["reasons"][0]["code"], "load");
    assert_eq!(report["ok"] == true, code == Some(0));
    let text = text(&deny);
    let said = line(&text, "bypass");
    assert!(said.contains("its programs cannot be loaded: bpf(BPF_LINK_CREATE) of sock_ops: "), "{said}");
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/minimal.yaml");
    let required = [&deny[..], &[BINARY, "doctor", "--config", config, "--set", "kernel.bypass=required"]];
    let output = run(&required.concat());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.trim_end().ends_with("kernel.bypass"), "{text}");
}

/// A network namespace with loopback down offers nothing to test on.
#[test]
fn a_failed_self_test_is_reported() {
    if !geteuid().is_root() || !works(&["unshare", "--net", "true"]) {
        return skipped("only root can create a network namespace");
    }
    let (report, _) = report(&["unshare", "--net"], &[]);
    if !was_tried(&report) {
        return;
    }
    let bypass = &report["assists"]["bypass"];
    assert_eq!(bypass["used"], false);
    assert_eq!(bypass["reasons"][0]["code"], "self_test.join");
    let means = bypass["reasons"][0]["means"].as_str().unwrap();
    assert!(means.starts_with("its self-test failed: check join: "), "{means}");
}

#[test]
fn root_has_what_the_assists_need() {
    let (report, _) = report(&[], &[]);
    let areas = &report["areas"];
    let held = ["cap_bpf", "cap_net_admin", "cap_perfmon"]
        .iter()
        .all(|name| areas["capabilities"][name]["status"] == "ok");
    if !held || areas["capabilities"]["user_namespace"]["value"] != "first" {
        return skipped("the capabilities for eBPF are not held here");
    }
    for name in ["sockhash", "sk_storage", "array_mmapable", "sock_ops", "sk_msg", "sk_skb"] {
        let finding = &areas["bpf"][name];
        // A filter or a security module may still deny everything; then the report must name it.
        let denied = finding["means"].as_str().unwrap().contains("not permitted: bpf(");
        assert!(finding["status"] == "ok" || denied, "{name}: {finding:#}");
    }
}

#[test]
fn an_unprivileged_user_sees_missing_capabilities() {
    if !geteuid().is_root()
        || !works(&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "true"])
    {
        return skipped("setpriv and root are needed to become nobody");
    }
    // The user nobody may not have access to cargo's build folder.
    let setup = Setup::to(&["127.0.0.1:1"]);
    let binary: PathBuf = setup.folder.join("sluice");
    std::fs::hard_link(BINARY, &binary).or_else(|_| std::fs::copy(BINARY, &binary).map(drop)).unwrap();
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", binary.to_str().unwrap()];
    let output = run(&[&nobody[..], &["doctor", "--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = String::from_utf8(run(&[&nobody[..], &["doctor"]].concat()).stdout).unwrap();
    std::fs::remove_dir_all(&setup.folder).unwrap();

    for name in ["cap_bpf", "cap_net_admin", "cap_perfmon"] {
        assert_eq!(report["areas"]["capabilities"][name]["status"], "missing", "{name}");
    }
    let sockhash = line(&text, "sockhash");
    assert!(sockhash.ends_with("requires CAP_BPF, CAP_NET_ADMIN"), "{sockhash}");
    assert!(line(&text, "bypass (auto)").contains("CAP_BPF is missing, CAP_NET_ADMIN is missing"), "{text}");
    assert!(line(&text, "CAP_BPF").contains("setcap cap_bpf"), "{text}");
    if report["areas"]["io_uring"]["ring"]["status"] == "ok" {
        assert_eq!(output.status.code(), Some(0), "sluice runs without privilege");
    }
}

#[test]
fn a_seccomp_filter_on_io_uring_is_reported() {
    if !can_filter() {
        return;
    }
    let deny = ["python3", "-c", DENY, "io_uring"];
    let (report, code) = report(&deny, &[]);
    assert_eq!((code, report["ok"].as_bool()), (Some(0), Some(true)));
    let ring = &report["areas"]["io_uring"]["ring"];
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if matches!(disabled.trim(), "1" | "2") {
        return skipped("the sysctl denies io_uring already");
    }
    assert_eq!(
        (ring["status"].as_str(), ring["value"].as_str()),
        (Some("limited"), Some("denied_by_seccomp"))
    );
    let text = text(&deny);
    assert!(line(&text, "ring").contains("by a seccomp filter"), "{text}");
    assert!(line(&text, "ring").contains("sluice falls back to epoll"), "{text}");
    // If it is required, it is reported as missing, and `run` uses the same words.
    let by_name = ["--listen", "127.0.0.1:0", "--to", "1", "--set", "runtime=io_uring"];
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/minimal.yaml");
    let mut doctor = Command::new("python3");
    doctor.args(&deny[1..]).args([BINARY, "doctor", "--config", config, "--set", "runtime=io_uring"]);
    let output = doctor.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.ends_with("not ok: required but missing: io_uring.ring, io_uring.operations\n"), "{text}");
    let mut run = Command::new("python3");
    run.args(&deny[1..]).args([BINARY, "run"]).args(by_name);
    let output = run.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("io_uring is denied to this process by a seccomp filter"), "{said}");
}

#[test]
fn a_seccomp_filter_on_bpf_is_reported() {
    if !can_filter() {
        return;
    }
    let (report, _) = report(&["python3", "-c", DENY, "bpf"], &[]);
    let capabilities = &report["areas"]["capabilities"];
    if capabilities["cap_bpf"]["status"] != "ok" || capabilities["user_namespace"]["value"] != "first" {
        return skipped("the capabilities for eBPF are not held here");
    }
    for name in ["sockhash", "sk_storage", "sock_ops", "probe_read_kernel"] {
        let finding = &report["areas"]["bpf"][name];
        assert_eq!(finding["status"], "missing", "{name}");
        assert_eq!(finding["remedy"], "allow bpf in the seccomp profile", "{name}");
    }
    assert_eq!(report["assists"]["bypass"]["host_can"], false);
}

/// As in a default container: seccomp denies io_uring, and `runtime` is auto.
#[test]
fn denied_io_uring_falls_back_to_epoll_and_is_logged() {
    if !can_filter() {
        return;
    }
    let origin = Origin::saying("hi");
    let setup = Setup::to_origin(&origin).with("runtime", "auto");
    let script = setup.file("deny.py", DENY);
    let deny = format!("set -- python3 '{}' io_uring \"$@\"", script.display());
    let Some(proxy) = setup.after(&deny).start() else { return };
    let warning = proxy.line_beginning("io_uring is denied");
    assert!(warning["message"].as_str().unwrap().contains("serving with epoll"), "{warning}");
    proxy.line_beginning("serving with epoll");
    assert_eq!(proxy.get("/").text(), "hi");
}

/// The sysctl applies to the whole machine. So a file is mounted over it in a mount namespace, and seccomp denies the
/// calls.
#[test]
fn a_sysctl_that_denies_io_uring_is_reported() {
    if !can_unshare() || !can_filter() {
        return;
    }
    if !std::path::Path::new("/proc/sys/kernel/io_uring_disabled").exists() {
        return skipped("this kernel has no kernel.io_uring_disabled");
    }
    let setup = Setup::to(&["127.0.0.1:1"]);
    let disabled = setup.file("disabled", "2\n");
    let script = "mount --bind \"$0\" /proc/sys/kernel/io_uring_disabled && exec \"$@\"";
    let before = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        script,
        disabled.to_str().unwrap(),
        "python3",
        "-c",
        DENY,
        "io_uring",
    ];
    let (report, code) = report(&before, &[]);
    std::fs::remove_dir_all(&setup.folder).unwrap();
    let ring = &report["areas"]["io_uring"]["ring"];
    assert_eq!((code, ring["value"].as_str()), (Some(0), Some("denied_by_sysctl")));
    let remedy = ring["remedy"].as_str().unwrap();
    assert!(remedy.ends_with("allow it with `sysctl kernel.io_uring_disabled=0`"), "{remedy}");
}

#[test]
fn without_cgroup2_the_report_shows_how_to_mount_it() {
    if !can_unshare() {
        return;
    }
    let script = "set -e; for m in $(awk '$3 == \"cgroup2\" {print $2}' /proc/mounts); do umount -l \"$m\"; done; \
                  exec \"$0\" \"$@\"";
    let before = ["unshare", "--mount", "sh", "-c", script];
    let (report, code) = report(&before, &[]);
    let finding = &report["areas"]["cgroups"]["cgroup2"];
    assert_eq!((finding["status"].as_str(), finding["value"].as_str()), (Some("missing"), None));
    assert!(
        finding["remedy"].as_str().unwrap().contains("mount -t cgroup2 none /sys/fs/cgroup"),
        "{finding}"
    );
    let reasons = report["assists"]["bypass"]["reasons"].as_array().unwrap().clone();
    assert!(reasons.iter().any(|reason| reason["code"] == "cgroups.cgroup2"), "{reasons:?}");
    if report["areas"]["io_uring"]["ring"]["status"] == "ok" {
        assert_eq!(code, Some(0), "no assist is required");
    }
}

#[test]
fn the_verdict_depends_on_what_is_required() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/minimal.yaml");
    let (plain, _) = report(&[], &["--config", config]);
    assert_eq!(plain["config"], config);
    let (required, code) = report(&[], &["--config", config, "--set", "kernel.splice=required"]);
    let lacking = required["lacking"].as_array().unwrap();
    let used = required["assists"]["splice"]["used"] == true;
    assert_eq!(code == Some(0), lacking.is_empty(), "{lacking:?}");
    assert_eq!(!used, lacking.contains(&"kernel.splice".into()), "{lacking:?}");
    let (off, _) = report(&[], &["--config", config, "--set", "kernel.bypass=off"]);
    assert_eq!(off["assists"]["bypass"]["reasons"][0]["code"], "off");
    let output =
        Command::new(BINARY).args(["doctor", "--config", config, "--set", "kernel.bypass=on"]).output();
    let output = output.unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said, "--set: kernel.bypass: \"on\" is not known; write auto, off or required\n");
}

#[test]
fn start_fails_without_a_required_assist_and_reports_the_others() {
    // Root without capabilities, or the current user, who has none.
    let without = "[ \"$(id -u)\" != 0 ] || set -- setpriv --bounding-set=-all --inh-caps=-all \"$@\"";
    let setup = Setup::to(&["127.0.0.1:1"]).with("kernel.bypass", "off").with("kernel.splice", "required");
    let (code, said) = setup.after(without).fails();
    if said.contains("io_uring is ") {
        return skipped(said.trim());
    }
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("sluice: kernel.splice: required, but splice cannot be used: "), "{said}");
    assert!(said.contains("CAP_BPF is missing"), "{said}");

    let origin = Origin::saying("hi");
    let Some(proxy) = Setup::to_origin(&origin).with("kernel.splice", "off").start() else { return };
    let line = proxy.line_beginning("serving with ");
    let bypass = line["bypass"].as_str().unwrap();
    assert!(bypass == "used" || bypass.starts_with("not used: "), "{bypass}");
    assert_eq!(line["splice"], "not used: kernel.splice is off");
    assert_eq!(proxy.get("/").text(), "hi");
}
