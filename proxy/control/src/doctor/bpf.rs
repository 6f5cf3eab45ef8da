//! Findings on eBPF: what the kernel supports, what this process may use, and what forbids the rest.

use sluice_kernel::probe::{Capability, Feature, Host};

use super::Finding;

/// The helper that lockdown and CAP_PERFMON control.
const READS_KERNEL: &str = "probe_read_kernel";

pub(super) fn bpf(host: &Host) -> Vec<Finding> {
    let mut findings = vec![btf(host), lockdown(host), unprivileged(host)];
    findings.extend(host.features.iter().map(|one| feature(host, one)));
    findings
}

fn btf(host: &Host) -> Finding {
    let finding = |has: bool, means: String| Finding::ok("btf", has, means);
    match &host.btf {
        Ok(()) => finding(true, "the kernel provides type information (BTF)".into()),
        Err(error) => finding(false, format!("kernel type information (BTF) cannot be read: {error}"))
            .missing("run a kernel with CONFIG_DEBUG_INFO_BTF, with /sys mounted"),
    }
}

fn lockdown(host: &Host) -> Finding {
    let finding = |means: &str| Finding::ok("lockdown", host.lockdown.clone(), means);
    match host.lockdown.as_deref() {
        Some("confidentiality") => {
            finding("confidentiality: programs may not read kernel memory, which bypass needs")
                .limited("start the kernel without lockdown=confidentiality")
        }
        Some("integrity") => finding("integrity: does not restrict sluice"),
        Some(_) => finding("none"),
        None => finding("unknown (no lockdown, or securityfs is not mounted); the following was tested"),
    }
}

fn unprivileged(host: &Host) -> Finding {
    let value = host.unprivileged_bpf_disabled;
    let means = match value {
        Some(0) => "0: any user may load some programs, but not those that sluice needs".to_owned(),
        Some(value) => format!("{value}: bpf(2) requires CAP_BPF"),
        None => "/proc/sys/kernel/unprivileged_bpf_disabled does not exist".to_owned(),
    };
    Finding::ok("unprivileged_bpf_disabled", value, means)
}

fn feature(host: &Host, feature: &Feature) -> Finding {
    let finding = |means: String| Finding::ok(feature.name, feature.answer.is_ok(), means);
    let kind = feature.kind;
    let Err(error) = &feature.answer else {
        return finding(format!("{kind}: available"));
    };
    let needed: &[Capability] = match feature.name {
        READS_KERNEL => &[Capability::Bpf, Capability::NetAdmin, Capability::Perfmon],
        "array_mmapable" | "lru_hash" | "socket_filter" => &[Capability::Bpf],
        _ => &[Capability::Bpf, Capability::NetAdmin],
    };
    let lacked: Vec<&str> =
        needed.iter().filter(|one| !host.process.can(**one)).map(|one| one.name()).collect();
    if !lacked.is_empty() {
        return finding(format!("{kind}: requires {}", lacked.join(", "))).missing_too();
    }
    if feature.name == READS_KERNEL && host.lockdown.as_deref() == Some("confidentiality") {
        return finding(format!("{kind}: forbidden by lockdown"))
            .missing("start the kernel without lockdown=confidentiality");
    }
    if error.is_denied() {
        return finding(format!("{kind}: not permitted: {error}")).missing(who_denies(host));
    }
    finding(format!("{kind}: not supported by this kernel: {error}")).missing(
        "run a kernel with CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF, CONFIG_NET_SOCK_MSG and \
         CONFIG_BPF_STREAM_PARSER",
    )
}

/// What to change if the capabilities are held and the call is still refused.
fn who_denies(host: &Host) -> &'static str {
    if host.process.filtered == Some(true) {
        "allow bpf in the seccomp profile"
    } else {
        "see the log of the active security module (AppArmor, SELinux)"
    }
}
