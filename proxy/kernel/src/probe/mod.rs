//! What this host supports, by name. This module reads and tries; it changes and judges nothing.
//!
//! Files are read from folders that are passed in, so that tests can provide their own hosts.

mod cgroups;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
mod features;
mod process;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::path::PathBuf;

pub use cgroups::Cgroups;
pub use features::Feature;
pub use process::{Capability, Process};

use super::KernelError;

/// Where the host is described.
pub struct Sources {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
}

impl Sources {
    /// This host.
    pub fn host() -> Self {
        Self { proc: PathBuf::from("/proc"), sys: PathBuf::from("/sys") }
    }

    /// A file below `/proc`, without surrounding white space; `None` if it cannot be read.
    fn proc(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.proc.join(name)).ok().map(|text| text.trim().to_owned())
    }

    fn proc_number(&self, name: &str) -> Option<u64> {
        self.proc(name)?.parse().ok()
    }
}

/// The properties of a host that sluice needs. `None` always means "unknown".
pub struct Host {
    /// Release of the kernel: `6.18.44-amd64`.
    pub release: Option<String>,
    /// Permissions and limits of this process.
    pub process: Process,
    /// Where cgroup2 is mounted, and the memory limit of our cgroup.
    pub cgroups: Cgroups,
    /// Whether the kernel's type information (BTF) can be read, which has the offsets of socket fields.
    pub btf: Result<(), KernelError>,
    /// The lockdown mode: `none`, `integrity` or `confidentiality`.
    pub lockdown: Option<String>,
    /// kernel.unprivileged_bpf_disabled: with 0, any process may load the few program types allowed without privileges.
    pub unprivileged_bpf_disabled: Option<u64>,
    /// Results of bpf(2), in the order tried.
    pub features: Vec<Feature>,
    /// net.core.somaxconn: connections that may wait to be accepted on one socket.
    pub somaxconn: Option<u64>,
    /// Cores this process may run on, by affinity and cgroup quota.
    pub cores: usize,
}

impl Host {
    /// Reads `sources`, and tries the remaining features on the running kernel.
    pub fn probe(sources: &Sources) -> Self {
        let mut host = Self::read(sources);
        host.features = features::probe();
        host
    }

    /// Reads files only, without trying calls: `features` stays empty.
    pub fn read(sources: &Sources) -> Self {
        Self {
            release: sources.proc("sys/kernel/osrelease"),
            process: Process::read(sources),
            cgroups: Cgroups::read(sources),
            btf: btf(sources),
            lockdown: fs::read_to_string(sources.sys.join("kernel/security/lockdown"))
                .ok()
                .and_then(|text| chosen(&text)),
            unprivileged_bpf_disabled: sources.proc_number("sys/kernel/unprivileged_bpf_disabled"),
            features: Vec::new(),
            somaxconn: sources.proc_number("sys/net/core/somaxconn"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Major and minor version of the kernel.
    pub fn version(&self) -> Option<(u32, u32)> {
        version(self.release.as_deref()?)
    }
}

/// Major and minor version in the name of a release.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn btf(sources: &Sources) -> Result<(), KernelError> {
    let opened = File::open(sources.sys.join("kernel/btf/vmlinux"));
    opened.map(drop).map_err(|error| KernelError { call: "open(/sys/kernel/btf/vmlinux)", error })
}

/// The word in brackets, as in `none [integrity] confidentiality`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}
