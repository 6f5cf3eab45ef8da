//! Findings on eBPF: what the kernel has, what this process may have of it, and who forbids the rest.

use sluice_kernel::probe::{Capability, Feature, Host};

use super::Finding;

/// The helper that lockdown and CAP_PERFMON decide on.
const READS_KERNEL: &str = "probe_read_kernel";

pub(super) fn bpf(host: &Host) -> Vec<Finding> {
    let mut findings = vec![btf(host), lockdown(host), unprivileged(host)];
    findings.extend(host.features.iter().map(|one| feature(host, one)));
    findings
}

fn btf(host: &Host) -> Finding {
    let finding = |has: bool, means: String| Finding::ok("btf", has, means);
    match &host.btf {
        Ok(()) => finding(true, "the kernel describes its types (BTF)".into()),
        Err(error) => finding(false, format!("the kernel's types cannot be read: {error}"))
            .missing("run a kernel with CONFIG_DEBUG_INFO_BTF, with /sys mounted"),
    }
}

fn lockdown(host: &Host) -> Finding {
    let finding = |means: &str| Finding::ok("lockdown", host.lockdown.clone(), means);
    match host.lockdown.as_deref() {
        Some("confidentiality") => {
            finding("confidentiality: no program may read kernel memory, as bypass does")
                .limited("start the kernel without lockdown=confidentiality")
        }
        Some("integrity") => finding("integrity: forbids nothing that sluice does"),
        Some(_) => finding("none"),
        None => finding("not told (no lockdown, or securityfs is not mounted); what follows was tried"),
    }
}

fn unprivileged(host: &Host) -> Finding {
    let value = host.unprivileged_bpf_disabled;
    let means = match value {
        Some(0) => "0: anyone may load some programs, but not those that sluice needs".to_owned(),
        Some(value) => format!("{value}: bpf(2) is only for CAP_BPF"),
        None => "/proc/sys/kernel/unprivileged_bpf_disabled is not there".to_owned(),
    };
    Finding::ok("unprivileged_bpf_disabled", value, means)
}

fn feature(host: &Host, feature: &Feature) -> Finding {
    let finding = |means: String| Finding::ok(feature.name, feature.answer.is_ok(), means);
    let kind = feature.kind;
    let Err(error) = &feature.answer else {
        return finding(format!("{kind} that can be had"));
    };
    let needed: &[Capability] = match feature.name {
        READS_KERNEL => &[Capability::Bpf, Capability::NetAdmin, Capability::Perfmon],
        "array_mmapable" => &[Capability::Bpf],
        _ => &[Capability::Bpf, Capability::NetAdmin],
    };
    let lacked: Vec<&str> =
        needed.iter().filter(|one| !host.process.can(**one)).map(|one| one.name()).collect();
    if !lacked.is_empty() {
        return finding(format!("{kind} that cannot be had without {}", lacked.join(", "))).missing_too();
    }
    if feature.name == READS_KERNEL && host.lockdown.as_deref() == Some("confidentiality") {
        return finding(format!("{kind} that lockdown forbids"))
            .missing("start the kernel without lockdown=confidentiality");
    }
    if error.is_denied() {
        return finding(format!("{kind} that is not permitted: {error}")).missing(who_denies(host));
    }
    finding(format!("{kind} that this kernel does not have: {error}")).missing(
        "run a kernel with CONFIG_BPF_SYSCALL, CONFIG_CGROUP_BPF, CONFIG_NET_SOCK_MSG and \
         CONFIG_BPF_STREAM_PARSER",
    )
}

/// What to change where the capabilities are held and the call is refused all the same.
fn who_denies(host: &Host) -> &'static str {
    if host.process.filtered == Some(true) {
        "allow bpf in the seccomp profile"
    } else {
        "see the log of the security module (AppArmor, SELinux) in force"
    }
}
