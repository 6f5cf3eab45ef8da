//! The process's monotonic clock as a number, for state that threads share.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

static START: OnceLock<Instant> = OnceLock::new();

/// Milliseconds since the first call.
pub fn now_ms() -> u64 {
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX)
}

/// Nanoseconds since the first call.
pub fn now_ns() -> u64 {
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// Seconds since 1970, by the host's clock, which may be set.
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Milliseconds since 1970, by the host's clock, which may be set.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Converts a time of the kernel's monotonic clock, as eBPF programs record it (`bpf_ktime_get_ns`).
pub fn instant_of(kernel_ns: u64) -> Instant {
    let now = Instant::now();
    let kernel_now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    now.checked_sub(kernel_now.saturating_sub(Duration::from_nanos(kernel_ns))).unwrap_or(now)
}

/// [`now_ms`] in microseconds.
pub(crate) fn now_us() -> u64 {
    let elapsed = START.get_or_init(Instant::now).elapsed();
    u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
}
