//! What this process may: capabilities, filters on its calls, limits.

use super::Sources;

/// A capability that an assist may need, by its number in linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Attaches programs to sockets and cgroups.
    NetAdmin = 12,
    /// Stands for the two below, as it did before they were split off (5.8).
    SysAdmin = 21,
    /// Lets programs read kernel memory.
    Perfmon = 38,
    /// Makes maps and loads programs.
    Bpf = 39,
}

impl Capability {
    /// Those that are looked at.
    pub const ALL: [Self; 4] = [Self::Bpf, Self::NetAdmin, Self::Perfmon, Self::SysAdmin];

    /// As capabilities(7) writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// This process, by its own files in /proc. `None` is "it does not say", in limits also "unlimited".
#[derive(Debug, Default, PartialEq)]
pub struct Process {
    /// The effective capabilities, one bit each.
    pub capabilities: u64,
    /// Whether a seccomp filter looks at its calls.
    pub filtered: Option<bool>,
    /// Whether its user namespace is not the first one, so that its capabilities do not count for the host.
    pub in_user_namespace: bool,
    /// Descriptors that it may raise its limit to (RLIMIT_NOFILE, hard).
    pub descriptors_max: Option<u64>,
    /// Bytes it may lock (RLIMIT_MEMLOCK, soft).
    pub locked_bytes_max: Option<u64>,
}

impl Process {
    pub(super) fn read(sources: &Sources) -> Self {
        let status = sources.proc("self/status").unwrap_or_default();
        let limits = sources.proc("self/limits").unwrap_or_default();
        let effective = field(&status, "CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
        let filtered = field(&status, "Seccomp:").and_then(|mode| mode.parse::<u8>().ok());
        Self {
            capabilities: effective.unwrap_or_default(),
            filtered: filtered.map(|mode| mode == 2),
            in_user_namespace: sources.proc("self/uid_map").is_some_and(|map| !is_identity(&map)),
            descriptors_max: limit(&limits, "Max open files", 1),
            locked_bytes_max: limit(&limits, "Max locked memory", 0),
        }
    }

    /// Whether a capability is in force, by itself or by CAP_SYS_ADMIN, which stands for BPF and PERFMON.
    /// bpf(2) asks for those of the first user namespace, so that none held in another one counts.
    pub fn can(&self, capability: Capability) -> bool {
        if self.in_user_namespace {
            return false;
        }
        let has = |one: Capability| self.capabilities >> (one as u32) & 1 == 1;
        has(capability)
            || (matches!(capability, Capability::Bpf | Capability::Perfmon) && has(Capability::SysAdmin))
    }
}

/// The rest of the line that begins with `name`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// A column of /proc/self/limits: 0 is the soft limit, 1 the hard one.
fn limit(text: &str, name: &str, column: usize) -> Option<u64> {
    field(text, name)?.split_whitespace().nth(column)?.parse().ok()
}

/// Whether every user is itself, as in the first user namespace.
fn is_identity(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}
