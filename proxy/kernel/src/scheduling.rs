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

    /// What each of them has spent so far, by its number.
    ///
    /// # Errors
    /// /proc/stat cannot be read.
    pub fn times(&self) -> io::Result<Vec<(usize, CoreTimes)>> {
        Ok(CoreTimes::each(&std::fs::read_to_string("/proc/stat")?, &self.numbers()))
    }

    /// Makes this thread run on no others.
    ///
    /// # Errors
    /// The kernel refuses, or this thread may use none of them any more.
    pub fn stay(&self) -> io::Result<()> {
        Ok(sched_setaffinity(Pid::from_raw(0), &self.0)?)
    }
}

/// Time that cores have spent since the host started, in ticks of the kernel's accounts (10 ms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTimes {
    idle: u64,
    total: u64,
}

impl CoreTimes {
    /// Reads the lines of some cores (proc_stat(5)): user, nice, system, idle, iowait, irq, softirq, steal, and two that
    /// user and nice contain.
    fn each(text: &str, cores: &[usize]) -> Vec<(usize, Self)> {
        let mut each = Vec::with_capacity(cores.len());
        for line in text.lines().take_while(|line| line.starts_with("cpu")) {
            let mut words = line.split_ascii_whitespace();
            let core = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
            let Some(core) = core.filter(|core: &usize| cores.contains(core)) else {
                continue;
            };
            let mut times = Self::default();
            for (place, time) in words.take(8).map(|word| word.parse().unwrap_or(0)).enumerate() {
                times.total += time;
                times.idle += if matches!(place, 3 | 4) { time } else { 0 };
            }
            each.push((core, times));
        }
        each
    }

    /// Those of several cores together.
    pub fn sum(each: &[(usize, Self)]) -> Self {
        each.iter().fold(Self::default(), |sum, (_, times)| Self {
            idle: sum.idle + times.idle,
            total: sum.total + times.total,
        })
    }

    /// The share of the time since `before` in which they were idle; `None` if no time has passed.
    pub fn idle_since(&self, before: &Self) -> Option<f64> {
        let total = self.total.checked_sub(before.total).filter(|total| *total > 0)?;
        // The kernel's count of a core may go back a little.
        Some(self.idle.saturating_sub(before.idle) as f64 / total as f64)
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
    fn idle_time_is_that_of_the_named_cores() {
        let text = |idle| {
            format!(
                "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 1 1 {idle} 2 1 1 1 5 5\ncpu1 7 0 0 50\ncpu10 3 0 0 70\nintr 1 2\n"
            )
        };
        let sum = |idle| CoreTimes::sum(&CoreTimes::each(&text(idle), &[0, 10]));
        let (before, after) = (sum(10), sum(40));
        assert_eq!(before, CoreTimes { idle: 10 + 2 + 70, total: 6 + 10 + 2 + 3 + 70 });
        assert_eq!(after.idle_since(&before), Some(1.0));
        assert_eq!(before.idle_since(&before), None);
        assert_eq!(before.idle_since(&after), None);
        let busy = CoreTimes { idle: before.idle + 1, total: before.total + 4 };
        assert_eq!(busy.idle_since(&before), Some(0.25));
        let all = Cores::of_this_thread().unwrap();
        assert!(CoreTimes::sum(&all.times().unwrap()).total > 0);
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
