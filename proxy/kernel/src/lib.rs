//! What is asked of the kernel beyond sockets and rings: descriptors and bytes, never HTTP.
//!
//! The only unsafe code besides `ring`. Nothing here decides whether something is used; `doctor` does. `probe` finds
//! what the host gives; `program` loads the eBPF object, `btf` finds where this kernel keeps what the programs read,
//! `marker` marks sockets for them, `log` passes on what they say, `selftest` tries them. `scheduling` says how threads
//! are scheduled.
#![allow(
    unsafe_code,
    reason = "bpf(2) takes a union by pointer and length, and answers with a raw descriptor"
)]

mod bpf;
pub mod btf;
mod failed;
pub mod log;
mod marker;
pub mod probe;
pub mod program;
pub mod scheduling;
pub mod selftest;
mod slots;
pub mod socket;
pub mod splice;
pub mod tcp;

use std::io;

/// A call that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {error}")]
pub struct KernelError {
    /// The system call, with the command where it has one: `bpf(BPF_MAP_CREATE)`.
    pub call: &'static str,
    /// What it answered.
    pub error: io::Error,
}

impl KernelError {
    /// What the last call of this thread answered.
    fn last(call: &'static str) -> Self {
        Self { call, error: io::Error::last_os_error() }
    }

    /// Whether the process may not, as opposed to the kernel cannot.
    pub fn is_denied(&self) -> bool {
        matches!(self.error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
    }
}

/// Returns freed memory to the kernel: aya parses the types of the whole kernel when a loader is made, about 20 MB,
/// also where none are wanted.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number and touches memory that is free, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
