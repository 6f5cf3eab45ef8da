//! Scheduling policy of threads that sluice starts, and the cores they run on.

use std::io;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::KernelError;

/// Threads started while this exists do not preempt their waker (`SCHED_BATCH`, sched(7)). Dropping it restores the
/// policy of the thread that created it.
pub struct Batch {
    before: libc::c_int,
}

impl Batch {
    /// Returns `None` if the process has another policy than the usual one; that policy stays.
    ///
    /// # Errors
    /// The kernel refuses: EPERM from a seccomp filter.
    pub fn begin() -> Result<Option<Self>, KernelError> {
        // SAFETY: takes only a number; 0 is this thread.
        let before = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        match libc::c_int::try_from(before) {
            Ok(before @ (libc::SCHED_OTHER | libc::SCHED_BATCH)) => {
                set(libc::SCHED_BATCH)?;
                Ok(Some(Self { before }))
            }
            Ok(0..) => Ok(None),
            _ => Err(KernelError::last("sched_getscheduler")),
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // Restoring is always allowed; if it fails, this thread does little anyway.
        let _ = set(self.before);
    }
}

/// A set of cores (sched_setaffinity(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores(CpuSet);

impl Cores {
    /// Those that this thread may use.
    ///
    /// # Errors
    /// The kernel refuses, or the host has more than 1024.
    pub fn of_this_thread() -> io::Result<Self> {
        Ok(Self(sched_getaffinity(Pid::from_raw(0))?))
    }

    /// A single core.
    ///
    /// # Errors
    /// There can be no core of this number.
    pub fn only(core: usize) -> io::Result<Self> {
        let mut cores = CpuSet::new();
        cores.set(core)?;
        Ok(Self(cores))
    }

    /// Their numbers.
    pub fn numbers(&self) -> Vec<usize> {
        (0..CpuSet::count()).filter(|core| self.0.is_set(*core).unwrap_or(false)).collect()
    }

    /// Makes this thread run on no others.
    ///
    /// # Errors
    /// The kernel refuses, or this thread may use none of them any more.
    pub fn stay(&self) -> io::Result<()> {
        Ok(sched_setaffinity(Pid::from_raw(0), &self.0)?)
    }
}

/// How long all threads of this process have run so far.
///
/// # Errors
/// The kernel refuses.
pub fn time_of_process() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// Makes this thread a batch thread or an ordinary one.
///
/// # Errors
/// The kernel refuses: EPERM from a seccomp filter.
pub fn choose(batch: bool) -> Result<(), KernelError> {
    set(if batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER })
}

/// Uses the system call directly, because some C libraries refuse it: in POSIX it applies to processes.
fn set(policy: libc::c_int) -> Result<(), KernelError> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one `sched_param` on this stack, which lives until the call returns; 0 is this thread.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if done == 0 { Ok(()) } else { Err(KernelError::last("sched_setscheduler")) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: takes only a number; 0 is this thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn thread_started_meanwhile_keeps_the_batch_policy() {
        let before = policy();
        let batch = Batch::begin().unwrap();
        let Some(batch) = batch else {
            assert_eq!(policy(), before);
            return;
        };
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            wait.recv().unwrap();
            policy()
        });
        drop(batch);
        assert_eq!(policy(), before);
        go.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), libc::SCHED_BATCH);
    }
}
