//! How the kernel's scheduler treats threads that are started.

use super::KernelError;

/// Threads that are started while this lives preempt nobody when they are woken (`SCHED_BATCH`, sched(7)). The thread
/// that made it is as it was before once it is gone.
pub struct Batch {
    before: libc::c_int,
}

impl Batch {
    /// None if somebody has chosen another policy for this process than the usual one: that one stays.
    ///
    /// # Errors
    /// The kernel refuses: EPERM by a seccomp filter.
    pub fn begin() -> Result<Option<Self>, KernelError> {
        // SAFETY: takes a number, which is this thread's.
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
        // Back is always allowed; if not, this thread does little.
        let _ = set(self.before);
    }
}

/// Makes this thread a batch thread, or an ordinary one.
///
/// # Errors
/// The kernel refuses: EPERM by a seccomp filter.
pub fn choose(batch: bool) -> Result<(), KernelError> {
    set(if batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER })
}

/// Not by the C library, some of which refuse it, for to POSIX this is about processes.
fn set(policy: libc::c_int) -> Result<(), KernelError> {
    let priority = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one `sched_param`, which lives on this stack until it returns; 0 is this thread.
    let done = unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) };
    if done == 0 { Ok(()) } else { Err(KernelError::last("sched_setscheduler")) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn policy() -> libc::c_int {
        // SAFETY: takes a number, which is this thread's.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn what_is_started_meanwhile_stays_so() {
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
