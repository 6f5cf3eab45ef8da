//! Findings on the host: kernel, io_uring, capabilities, cgroups.

use serde_json::Value;
use sluice_config::Runtime;
use sluice_kernel::probe::{Capability, Host};
use sluice_ring::{self as ring, RingError};

use super::Finding;

/// The oldest kernel whose io_uring supports the data path: it cancels operations by descriptor.
const KERNEL_MIN: (u32, u32) = (5, 19);

/// How a process gets the capabilities that the assists need.
const GRANT: &str = "start as root, or grant it with `setcap cap_bpf,cap_net_admin,cap_perfmon+ep` on the \
                     binary, AmbientCapabilities= in its systemd unit or --cap-add for a container";

/// Where capabilities apply.
const FIRST_NAMESPACE: &str = "run in the initial user namespace (a rootful container, without userns-remap)";

/// The cost of running without io_uring.
const BY_EPOLL: &str = "sluice falls back to epoll, which takes more CPU per request";

/// Whether sluice cannot start without io_uring.
fn needs_rings(runtime: Runtime) -> bool {
    matches!(runtime, Runtime::IoUring | Runtime::TokioUring)
}

pub(super) fn kernel(runtime: Runtime, host: &Host) -> Vec<Finding> {
    let (major, minor) = KERNEL_MIN;
    let remedy = format!("run linux {major}.{minor} or newer");
    let finding = |means: String| Finding::ok("release", host.release.clone(), means);
    let shown = host.release.as_deref().unwrap_or_default();
    vec![match host.version() {
        Some(version) if version >= KERNEL_MIN => {
            finding(format!("linux {shown}; io_uring needs {major}.{minor} or newer"))
        }
        Some(_) if needs_rings(runtime) => {
            finding(format!("linux {shown} is too old for io_uring")).missing(remedy)
        }
        Some(_) => finding(format!("linux {shown} is too old for io_uring; {BY_EPOLL}")).limited(remedy),
        None => finding("it cannot be read from /proc/sys/kernel/osrelease".to_owned()).limited(remedy),
    }]
}

pub(super) fn io_uring(runtime: Runtime, ring: &Result<(), RingError>) -> Vec<Finding> {
    let names: Vec<&str> = ring::operations().collect();
    let has_ring = Finding::ok("ring", "ok", "rings can be created");
    let operations = |means: String| Finding::ok("operations", names.clone(), means);
    match ring {
        Ok(()) if runtime == Runtime::Epoll => {
            let unused = "not used: runtime is epoll";
            vec![Finding::ok("ring", "unused", unused), operations(unused.to_owned())]
        }
        Ok(()) => vec![has_ring, operations(format!("{}: all are supported", names.join(", ")))],
        Err(error @ RingError::Operations(missing)) => {
            let lacks = Finding::ok("operations", names, error.to_string());
            let remedy = format!("run a kernel that supports {}", missing.join(", "));
            vec![has_ring, if needs_rings(runtime) { lacks.missing(remedy) } else { lacks.limited(remedy) }]
        }
        Err(error) if !needs_rings(runtime) => {
            let lacks = Finding::ok("ring", error.word(), BY_EPOLL).limited(error.to_string());
            vec![lacks, operations("unknown without a ring".to_owned())]
        }
        Err(error) => {
            let means = "the configuration requires io_uring (runtime)".to_owned();
            vec![
                Finding::ok("ring", error.word(), means).missing(error.to_string()),
                operations("unknown without a ring".to_owned()).missing_too(),
            ]
        }
    }
}

pub(super) fn capabilities(host: &Host) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Capability::ALL.iter().map(|one| capability(host, *one)).collect();
    findings.push(user_namespace(host.process.in_user_namespace));
    findings
}

fn user_namespace(own: bool) -> Finding {
    if own {
        let means = "not the initial one: its capabilities do not apply to eBPF";
        return Finding::ok("user_namespace", "own", means).limited(FIRST_NAMESPACE);
    }
    Finding::ok("user_namespace", "first", "the initial one: capabilities apply to the whole host")
}

fn capability(host: &Host, capability: Capability) -> Finding {
    let held = host.process.can(capability);
    let purpose = match capability {
        Capability::Bpf => "creates maps and loads programs, for bypass and splice",
        Capability::NetAdmin => "attaches programs to sockets, for bypass and splice",
        Capability::Perfmon => "lets programs read socket state, for bypass",
        Capability::SysAdmin if held => "includes CAP_BPF and CAP_PERFMON",
        Capability::SysAdmin => "not held; not needed with CAP_BPF (linux 5.8)",
    };
    let finding = Finding::ok(capability.name(), held, purpose);
    if held || capability == Capability::SysAdmin {
        return finding;
    }
    finding.missing(if host.process.in_user_namespace { FIRST_NAMESPACE } else { GRANT })
}

pub(super) fn cgroups(host: &Host) -> Vec<Finding> {
    let groups = &host.cgroups;
    let finding = |value: Value, means: String| Finding::ok("cgroup2", value, means);
    let Some(path) = &groups.unified else {
        let place = if groups.legacy { "/sys/fs/cgroup/unified" } else { "/sys/fs/cgroup" };
        let means = "not mounted; bypass needs it to see connections";
        return vec![
            finding(Value::Null, means.to_owned())
                .missing(format!("mkdir -p {place} && mount -t cgroup2 none {place}")),
        ];
    };
    let path = path.display().to_string();
    let beside = if groups.legacy { ", in addition to cgroup v1" } else { "" };
    if groups.is_root {
        return vec![finding(
            path.clone().into(),
            format!("mounted at {path}{beside}; it contains every process"),
        )];
    }
    let means =
        format!("mounted at {path}{beside}, but only a subtree: bypass does not see processes outside it");
    vec![finding(path.into(), means).limited("run in the host's cgroup namespace (--cgroupns=host)")]
}
