//! A host made of folders, for tests.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Feature, Sources};
use crate::KernelError;

/// Its own folders in place of `/proc` and `/sys`, removed when dropped.
pub struct FakeHost {
    /// Contains everything.
    pub folder: PathBuf,
}

/// /proc/self/status of a process with every capability.
pub const ROOT: &str = "Name:\tsluice\nCapEff:\t000001ffffffffff\nSeccomp:\t0\nSeccomp_filters:\t0\n";
/// /proc/self/status of a process with no capability.
pub const NOBODY: &str = "Name:\tsluice\nCapEff:\t0000000000000000\nSeccomp:\t0\n";

impl FakeHost {
    /// A host without any information.
    pub fn empty() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sluice-host-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    /// A host on which everything is available, with cgroups in the hybrid layout.
    pub fn whole() -> Self {
        let host = Self::empty();
        let (legacy, unified) = (host.path("sys/fs/cgroup/memory"), host.path("sys/fs/cgroup/unified"));
        let mounts = format!(
            "proc /proc proc rw 0 0\ncgroup {} cgroup rw,relatime,memory 0 0\ncgroup2 {} cgroup2 rw,relatime 0 0\n",
            legacy.display(),
            unified.display()
        );
        host.write("sys/fs/cgroup/unified/cgroup.procs", "1\n")
            .write("proc/mounts", &mounts)
            .write("proc/self/cgroup", "4:memory:/\n0::/\n")
            .write("proc/self/status", ROOT)
            .write("proc/self/uid_map", "         0          0 4294967295\n")
            .write(
                "proc/self/limits",
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max open files            1024                 1048576              files\n\
                 Max locked memory         8388608              8388608              bytes\n",
            )
            .write("proc/sys/kernel/osrelease", "6.18.44-amd64\n")
            .write("proc/sys/kernel/io_uring_disabled", "0\n")
            .write("proc/sys/kernel/unprivileged_bpf_disabled", "2\n")
            .write("proc/sys/net/core/somaxconn", "4096\n")
            .write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
            .write("sys/kernel/btf/vmlinux", "\u{9f}")
    }

    /// Writes a file below the folder.
    pub fn write(self, name: &str, text: &str) -> Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    /// Path of a file of the host.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where to read the host's description.
    pub fn sources(&self) -> Sources {
        Sources { proc: self.path("proc"), sys: self.path("sys") }
    }

    /// Reads the host, with these results of bpf(2): 0 or an error number for each feature.
    pub fn read(&self, answer: impl Fn(&str) -> i32) -> super::Host {
        let names = [
            ("map type", "sockhash"),
            ("map type", "sk_storage"),
            ("map type", "array_mmapable"),
            ("map type", "lru_hash"),
            ("program type", "sock_ops"),
            ("program type", "sk_msg"),
            ("program type", "sk_skb"),
            ("program type", "socket_filter"),
            ("helper", "probe_read_kernel"),
        ];
        let features = names.map(|(kind, name)| Feature {
            kind,
            name,
            answer: match answer(name) {
                0 => Ok(()),
                errno => {
                    let error = io::Error::from_raw_os_error(errno);
                    Err(KernelError { call: "bpf(BPF_PROG_LOAD)", error })
                }
            },
        });
        super::Host { features: features.into(), cores: 2, ..super::Host::read(&self.sources()) }
    }
}

impl Drop for FakeHost {
    fn drop(&mut self) {
        let folder: &Path = &self.folder;
        let _ = std::fs::remove_dir_all(folder);
    }
}
