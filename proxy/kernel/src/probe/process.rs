//! What this process is allowed to do: capabilities, system call filters, limits.

use super::Sources;

/// A capability that an assist may need, by its number in linux/capability.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Attaches programs to sockets and cgroups.
    NetAdmin = 12,
    /// Includes the two below, as before they were split off (5.8).
    SysAdmin = 21,
    /// Lets programs read kernel memory.
    Perfmon = 38,
    /// Creates maps and loads programs.
    Bpf = 39,
}

impl Capability {
    /// The capabilities that are checked.
    pub const ALL: [Self; 4] = [Self::Bpf, Self::NetAdmin, Self::Perfmon, Self::SysAdmin];

    /// The name in capabilities(7).
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// This process, from its files in /proc. `None` means "unknown"; for limits also "unlimited".
#[derive(Debug, Default, PartialEq)]
pub struct Process {
    /// The effective capabilities, one bit each.
    pub capabilities: u64,
    /// Whether a seccomp filter applies to its calls.
    pub filtered: Option<bool>,
    /// Whether it is not in the initial user namespace, so that its capabilities do not apply to the host.
    pub in_user_namespace: bool,
    /// The limit to which it may raise its number of descriptors (RLIMIT_NOFILE, hard).
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

    /// Whether a capability is effective, directly or through CAP_SYS_ADMIN, which includes BPF and PERFMON. bpf(2)
    /// checks the capabilities in the initial user namespace, so a capability in another one does not count.
    pub fn can(&self, capability: Capability) -> bool {
        if self.in_user_namespace {
            return false;
        }
        let has = |one: Capability| self.capabilities >> (one as u32) & 1 == 1;
        has(capability)
            || (matches!(capability, Capability::Bpf | Capability::Perfmon) && has(Capability::SysAdmin))
    }
}

/// The rest of the line that starts with `name`.
fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

/// A column of /proc/self/limits: 0 is the soft limit, 1 the hard one.
fn limit(text: &str, name: &str, column: usize) -> Option<u64> {
    field(text, name)?.split_whitespace().nth(column)?.parse().ok()
}

/// Whether every user maps to itself, as in the initial user namespace.
fn is_identity(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}
