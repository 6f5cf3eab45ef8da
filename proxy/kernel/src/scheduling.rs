//! Scheduling policy of threads that sluice starts.

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
