//! Findings on how much of everything there is, against what the configuration lets in.

use super::Finding;
use crate::config::Config;
use crate::kernel::probe::Host;
use crate::listener::BACKLOG;

/// A proxied connection has one descriptor on each side.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;
/// Memory of an idle connection, measured, rounded up.
const CONNECTION_BYTES: u64 = 5 << 10;
/// What sluice takes before the first connection, rounded up.
const BASE_BYTES: u64 = 16 << 20;

pub(super) fn limits(config: &Config, host: &Host) -> Vec<Finding> {
    let connections = connections(config);
    vec![
        descriptors(connections, host),
        locked_memory(host),
        somaxconn(host),
        cores(config, host),
        memory(connections, host),
    ]
}

/// Connections that may be open at once over all listeners.
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
        None => finding("no limit is told".to_owned()),
        Some(limit) if limit >= needed => {
            finding(format!("{limit}; connections_max comes to {connections}, two descriptors each"))
        }
        Some(limit) => finding(format!(
            "{limit}, enough for {} connections; connections_max comes to {connections}, and accepting pauses \
             when descriptors are out",
            limit / DESCRIPTORS_PER_CONNECTION
        ))
        .limited(format!("raise the hard limit to {needed} (LimitNOFILE=, `ulimit -Hn`)")),
    }
}

fn locked_memory(host: &Host) -> Finding {
    let limit = host.process.locked_bytes_max;
    let finding = |means: &str| Finding::ok("locked_memory", limit, means);
    // Maps have been charged to the cgroup since 5.11, rings since 5.12.
    if host.version().is_none_or(|version| version >= (5, 12)) || limit.is_none() {
        return finding("without meaning here: rings and maps are charged to the cgroup");
    }
    finding("rings and maps of this kernel are charged to RLIMIT_MEMLOCK")
        .limited("raise it (LimitMEMLOCK=infinity)")
}

fn somaxconn(host: &Host) -> Finding {
    let wanted = u64::from(BACKLOG.unsigned_abs());
    let finding = |means: String| Finding::ok("somaxconn", host.somaxconn, means);
    match host.somaxconn {
        Some(value) if value < wanted => {
            finding(format!("{value} connections may wait to be accepted; more at once are lost"))
                .limited(format!("sysctl net.core.somaxconn={wanted}"))
        }
        Some(value) => {
            finding(format!("{value} connections may wait to be accepted; sluice asks for {wanted}"))
        }
        None => finding("/proc/sys/net/core/somaxconn is not there".to_owned()),
    }
}

fn cores(config: &Config, host: &Host) -> Finding {
    let workers = if config.workers == 0 { host.cores } else { config.workers };
    let finding = Finding::ok("cores", host.cores, format!("{} cores, {workers} workers", host.cores));
    if workers > host.cores { finding.limited("write workers: auto, for one a core") } else { finding }
}

fn memory(connections: u64, host: &Host) -> Finding {
    let needed = connections.saturating_mul(CONNECTION_BYTES).saturating_add(BASE_BYTES);
    let Some(limit) = &host.cgroups.memory_limit else {
        return Finding::ok("memory", None::<u64>, "no cgroup limits it");
    };
    let (bytes, file) = (limit.bytes, limit.file.display());
    let finding = |means: String| Finding::ok("memory", bytes, means);
    if bytes >= needed {
        return finding(format!("{bytes} bytes, by {file}"));
    }
    finding(format!("{bytes} bytes, by {file}; {connections} idle connections take some {needed}"))
        .limited("raise it, or lower limits.connections_max")
}
