//! Findings on resource limits, compared with what the configuration allows.

use sluice_config::Config;
use sluice_kernel::probe::Host;
use sluice_net::listener::BACKLOG;

use super::Finding;

/// A proxied connection needs one descriptor on each side.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Memory of an idle connection, measured and rounded up.
const CONNECTION_BYTES: u64 = 5 << 10;
/// Memory of sluice before the first connection, rounded up.
const BASE_BYTES: u64 = 16 << 20;
/// Memory charged for a worker's ring, measured on 6.18 and rounded up. The startup tests create one more.
const RING_BYTES: u64 = 160 << 10;
/// Its bit in linux/capability.h; processes that have it are not charged.
const CAP_IPC_LOCK: u32 = 14;

pub(super) fn limits(config: &Config, host: &Host) -> Vec<Finding> {
    let connections = connections(config);
    vec![
        descriptors(connections, host),
        locked_memory(config, host),
        somaxconn(host),
        cores(config, host),
        memory(connections, host),
    ]
}

/// Maximum number of open connections over all listeners.
fn connections(config: &Config) -> u64 {
    let each = config.listeners.iter().map(|listener| listener.limits.connections_max as u64);
    let sum: u64 = each.sum();
    if sum == 0 { config.limits.connections_max as u64 } else { sum }
}

fn descriptors(connections: u64, host: &Host) -> Finding {
    let needed = connections.saturating_mul(DESCRIPTORS_PER_CONNECTION);
    let limit = host.process.descriptors_max;
    let finding = |means: String| Finding::ok("descriptors", limit, means);
    match limit {
        None => finding("the limit is unknown".to_owned()),
        Some(limit) if limit >= needed => {
            finding(format!("{limit}; connections_max adds up to {connections}, with two descriptors each"))
        }
        Some(limit) => finding(format!(
            "{limit}, enough for {} connections; connections_max adds up to {connections}; sluice stops \
             accepting while it has no descriptors",
            limit / DESCRIPTORS_PER_CONNECTION
        ))
        .limited(format!("raise the hard limit to {needed} (LimitNOFILE=, `ulimit -Hn`)")),
    }
}

fn locked_memory(config: &Config, host: &Host) -> Finding {
    let limit = host.process.locked_bytes_max;
    let finding = |means: String| Finding::ok("locked_memory", limit, means);
    let Some(bytes) = limit else {
        return finding("the limit is unknown".to_owned());
    };
    // Maps are charged to the cgroup since 5.11, rings since 5.12; since 6.14 rings count towards the limit as well.
    if host.version().is_none_or(|version| ((5, 12)..(6, 14)).contains(&version)) {
        return finding("not relevant: rings and maps are charged to the cgroup".to_owned());
    }
    if host.process.capabilities >> CAP_IPC_LOCK & 1 == 1 {
        return finding("not relevant: CAP_IPC_LOCK is held".to_owned());
    }
    let workers = worker_count(config, host);
    let needed = (workers as u64 + 1).saturating_mul(RING_BYTES);
    let means =
        format!("{bytes} bytes; the rings of {workers} workers need about {needed} of RLIMIT_MEMLOCK");
    if bytes >= needed { finding(means) } else { finding(means).limited("raise it (LimitMEMLOCK=infinity)") }
}

/// Number of workers.
fn worker_count(config: &Config, host: &Host) -> usize {
    if config.workers == 0 { host.cores } else { config.workers }
}

fn somaxconn(host: &Host) -> Finding {
    let wanted = u64::from(BACKLOG.unsigned_abs());
    let finding = |means: String| Finding::ok("somaxconn", host.somaxconn, means);
    match host.somaxconn {
        Some(value) if value < wanted => {
            finding(format!("{value} connections may wait to be accepted; further ones are dropped"))
                .limited(format!("sysctl net.core.somaxconn={wanted}"))
        }
        Some(value) => {
            finding(format!("{value} connections may wait to be accepted; sluice requests {wanted}"))
        }
        None => finding("/proc/sys/net/core/somaxconn does not exist".to_owned()),
    }
}

fn cores(config: &Config, host: &Host) -> Finding {
    let workers = worker_count(config, host);
    let finding = Finding::ok("cores", host.cores, format!("{} cores, {workers} workers", host.cores));
    if workers > host.cores { finding.limited("write workers: auto, for one per core") } else { finding }
}

fn memory(connections: u64, host: &Host) -> Finding {
    let needed = connections.saturating_mul(CONNECTION_BYTES).saturating_add(BASE_BYTES);
    let Some(limit) = &host.cgroups.memory_limit else {
        return Finding::ok("memory", None::<u64>, "no cgroup limit");
    };
    let (bytes, file) = (limit.bytes, limit.file.display());
    let finding = |means: String| Finding::ok("memory", bytes, means);
    if bytes >= needed {
        return finding(format!("{bytes} bytes, by {file}"));
    }
    finding(format!("{bytes} bytes, by {file}; {connections} idle connections take about {needed}"))
        .limited("raise it, or lower limits.connections_max")
}
