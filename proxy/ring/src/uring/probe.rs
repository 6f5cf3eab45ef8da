//! Whether rings can be created here and have the required operations; if not, what denies them and how to allow them.

use std::io;
use std::path::Path;

use io_uring::{IoUring, Probe, opcode};

use super::guest;

/// Operations that sluice requires, by their names in io_uring_enter(2).
const REQUIRED: [(u8, &str); 6] = [
    (opcode::Accept::CODE, "accept"),
    (opcode::AsyncCancel::CODE, "async_cancel"),
    (opcode::Connect::CODE, "connect"),
    (opcode::PollAdd::CODE, "poll_add"),
    (opcode::Recv::CODE, "recv"),
    (opcode::Send::CODE, "send"),
];

/// Why no usable ring is available. The text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// By kernel.io_uring_disabled: 1 allows only a group and CAP_SYS_ADMIN, 2 denies everyone.
    #[error(
        "io_uring is denied by the sysctl kernel.io_uring_disabled={0}; allow it with \
         `sysctl kernel.io_uring_disabled=0`{hint}",
        hint = if *.0 == 1 { ", or put sluice's group into kernel.io_uring_group" } else { "" }
    )]
    Sysctl(u8),
    /// By a seccomp filter: certainly, or because nothing else is known to deny it.
    #[error(
        "io_uring is denied to this process{}by a seccomp filter (containers do that); allow \
         io_uring_setup, io_uring_enter and io_uring_register in its profile",
        if *certain { " " } else { ", most likely " }
    )]
    Seccomp {
        /// The process has a filter.
        certain: bool,
    },
    /// By something else that filters system calls.
    #[error("io_uring is denied to this process, most likely by a security module; see its log")]
    Module,
    /// The call is unknown.
    #[error("this kernel has no io_uring, or seccomp filters it; Linux 5.19 or newer is required")]
    Absent,
    /// Rings would lock more memory than allowed (before Linux 5.12, and again since 6.14).
    #[error("io_uring cannot lock memory; raise RLIMIT_MEMLOCK")]
    Memory,
    /// The kernel cannot report which operations it supports.
    #[error("io_uring cannot be probed: {0}; Linux 5.19 or newer is required")]
    Probe(io::Error),
    /// This kernel lacks operations.
    #[error(
        "this kernel lacks io_uring operations: {}; Linux 5.19 or newer is required",
        .0.join(", ")
    )]
    Operations(Vec<&'static str>),
    /// tokio-uring's operations cannot be cancelled.
    #[error(
        "runtime tokio_uring requires Linux 6.6 or newer, which can cancel operations by descriptor and kind; \
         use `runtime: io_uring`"
    )]
    CancelByKind,
    /// Any other error.
    #[error("io_uring cannot be set up: {0}")]
    Other(io::Error),
}

impl RingError {
    /// A keyword for programs.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Sysctl(_) => "denied_by_sysctl",
            Self::Seccomp { .. } => "denied_by_seccomp",
            Self::Module => "denied",
            Self::Absent => "not_in_kernel",
            Self::Memory => "no_memory",
            Self::Probe(_) => "cannot_be_probed",
            Self::Operations(_) | Self::CancelByKind => "operations_missing",
            Self::Other(_) => "failed",
        }
    }
}

/// Names of the operations that sluice uses.
pub fn operations() -> impl Iterator<Item = &'static str> {
    REQUIRED.iter().map(|(_, name)| *name)
}

/// Checks whether rings can be created here and have the required operations. `proc` shows what denies them.
///
/// # Errors
/// What is missing.
pub fn probe(proc: &Path) -> Result<(), RingError> {
    let ring = IoUring::new(8).map_err(|error| {
        let read = |name: &str| std::fs::read_to_string(proc.join(name)).unwrap_or_default();
        refusal(error, &read("sys/kernel/io_uring_disabled"), &read("self/status"))
    })?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(RingError::Probe)?;
    let missing = REQUIRED.iter().filter(|(code, _)| !probe.is_supported(*code));
    let missing: Vec<&str> = missing.map(|(_, name)| *name).collect();
    if missing.is_empty() { Ok(()) } else { Err(RingError::Operations(missing)) }
}

/// [`probe`], and whether operations can be cancelled the way the tokio-uring engine does it.
///
/// # Errors
/// What is missing.
pub fn probe_tokio_uring(proc: &Path) -> Result<(), RingError> {
    probe(proc)?;
    let mut ring = IoUring::new(2).map_err(RingError::Other)?;
    let cancelled = guest::try_cancellation(&mut ring).map_err(RingError::Other)?;
    // A kernel that does not know the flag returns EINVAL.
    if cancelled == 0 { Ok(()) } else { Err(RingError::CancelByKind) }
}

/// Finds what refused, from the sysctl and /proc/self/status.
fn refusal(error: io::Error, sysctl: &str, status: &str) -> RingError {
    let seccomp = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    match (error.raw_os_error(), sysctl.trim()) {
        (Some(libc::EPERM), "1") => RingError::Sysctl(1),
        (Some(libc::EPERM), "2") => RingError::Sysctl(2),
        (Some(libc::EPERM | libc::EACCES), _) => match seccomp {
            Some("2") => RingError::Seccomp { certain: true },
            Some("0") => RingError::Module,
            _ => RingError::Seccomp { certain: false },
        },
        // A kernel that has the sysctl has io_uring.
        (Some(libc::ENOSYS), "0" | "1" | "2") if seccomp == Some("2") => RingError::Seccomp { certain: true },
        (Some(libc::ENOSYS), _) => RingError::Absent,
        (Some(libc::ENOMEM), _) => RingError::Memory,
        _ => RingError::Other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errno: i32, sysctl: &str, status: &str) -> RingError {
        refusal(io::Error::from_raw_os_error(errno), sysctl, status)
    }

    #[test]
    fn refusal_names_its_cause() {
        let (free, filtered) = ("Name:\tx\nSeccomp:\t0\n", "Seccomp:\t2\nSeccomp_filters:\t1\n");
        for (errno, sysctl, status, word) in [
            (libc::EPERM, "2\n", free, "denied_by_sysctl"),
            (libc::EPERM, "1\n", filtered, "denied_by_sysctl"),
            (libc::EPERM, "0\n", filtered, "denied_by_seccomp"),
            (libc::EACCES, "", filtered, "denied_by_seccomp"),
            (libc::EPERM, "", "", "denied_by_seccomp"),
            (libc::EPERM, "0", free, "denied"),
            (libc::ENOSYS, "0", filtered, "denied_by_seccomp"),
            (libc::ENOSYS, "", filtered, "not_in_kernel"),
            (libc::ENOSYS, "", free, "not_in_kernel"),
            (libc::ENOMEM, "0", free, "no_memory"),
            (libc::EMFILE, "0", free, "failed"),
        ] {
            assert_eq!(said(errno, sysctl, status).word(), word, "{errno} {sysctl:?} {status:?}");
        }
    }

    #[test]
    fn refusal_text_says_how_to_allow_io_uring() {
        let text = said(libc::EPERM, "2", "").to_string();
        assert_eq!(
            text,
            "io_uring is denied by the sysctl kernel.io_uring_disabled=2; allow it with \
             `sysctl kernel.io_uring_disabled=0`"
        );
        assert!(said(libc::EPERM, "1", "").to_string().ends_with("kernel.io_uring_group"));
        let text = said(libc::EPERM, "0", "Seccomp:\t2").to_string();
        assert!(text.starts_with("io_uring is denied to this process by a seccomp filter"), "{text}");
        let text = RingError::Operations(vec!["recv", "send"]).to_string();
        assert!(text.starts_with("this kernel lacks io_uring operations: recv, send;"), "{text}");
    }
}
