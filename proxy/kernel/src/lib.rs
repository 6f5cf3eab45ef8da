//! Kernel features beyond sockets and rings: descriptors and bytes, never HTTP.
//!
//! Besides `ring`, this crate has the only unsafe code. It does not decide whether a feature is used; `doctor` does.
//! `probe` finds what the host offers; `program` loads the eBPF object, `btf` finds where this kernel stores the fields
//! that the programs read, `types` keeps the result, `marker` marks sockets for the programs, `log` forwards their
//! messages, `selftest` tests them. `scheduling` sets how threads are scheduled; `memory` returns what only the start
//! needed.
#![allow(unsafe_code, reason = "bpf(2) takes a union by pointer and length, and returns a raw descriptor")]

pub mod accept;
pub mod bans;
mod bpf;
pub mod btf;
mod failed;
mod loader;
pub mod log;
mod marker;
pub mod memory;
pub mod probe;
pub mod program;
pub mod scheduling;
pub mod selftest;
mod slots;
pub mod socket;
pub mod splice;
pub mod steering;
pub mod tcp;
mod types;

use std::io;

use memory::give_back;

/// The kernel refused a call.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {error}")]
pub struct KernelError {
    /// The system call, with its command if it has one: `bpf(BPF_MAP_CREATE)`.
    pub call: &'static str,
    /// The error that it returned.
    pub error: io::Error,
}

impl KernelError {
    /// The error of this thread's last call.
    fn last(call: &'static str) -> Self {
        Self { call, error: io::Error::last_os_error() }
    }

    /// Whether the process lacks permission, as opposed to the kernel lacking the feature.
    pub fn is_denied(&self) -> bool {
        matches!(self.error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
    }
}
