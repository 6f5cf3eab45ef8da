//! How long and how often the kernel has made a thread wait for a core.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The longest line: three numbers of 64 bits.
const LINE_BYTES: usize = 64;

/// The kernel's file about one thread. It is kept open because a busy worker reads it often.
pub(super) struct WaitsFile(File);

impl WaitsFile {
    /// That of the calling thread; `None` if the kernel does not count (CONFIG_SCHED_INFO).
    pub(super) fn of_this_thread() -> Option<Self> {
        let file = Self(File::open("/proc/thread-self/schedstat").ok()?);
        file.read().is_some().then_some(file)
    }

    /// The counts now.
    pub(super) fn read(&self) -> Option<Waits> {
        let mut line = [0; LINE_BYTES];
        let count = self.0.read_at(&mut line, 0).ok()?;
        Waits::parse(std::str::from_utf8(&line[..count]).ok()?)
    }
}

/// What it has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// Nanoseconds that the thread waited.
    pub(super) waited_ns: u64,
    /// How often it got a core.
    pub(super) count: u64,
}

impl Waits {
    /// How long the thread has waited since then.
    pub(super) fn waited_since(self, before: Self) -> Duration {
        Duration::from_nanos(self.waited_ns.saturating_sub(before.waited_ns))
    }

    /// Time on the core, time waiting for it, and how often the thread got it
    /// (Documentation/scheduler/sched-stats.rst).
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace().skip(1);
        let waited_ns = words.next()?.parse().ok()?;
        Some(Self { waited_ns, count: words.next()?.parse().ok()? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_counts_of_this_thread_grow() {
        let Some(file) = WaitsFile::of_this_thread() else { return };
        let before = file.read().unwrap();
        std::thread::yield_now();
        std::thread::sleep(Duration::from_millis(1));
        let after = file.read().unwrap();
        assert!(after.count > before.count);
        assert_eq!(before.waited_since(after), Duration::ZERO);
    }

    #[test]
    fn the_kernels_schedstat_line_is_parsed() {
        assert_eq!(Waits::parse("5 70 9\n"), Some(Waits { waited_ns: 70, count: 9 }));
        assert_eq!(Waits::parse("5 70"), None);
        assert_eq!(Waits::parse(""), None);
    }
}
