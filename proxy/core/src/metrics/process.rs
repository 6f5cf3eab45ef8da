//! The kernel's view of the process: descriptors, memory, CPU time, start. Read from /proc at every scrape.

use std::{fmt, fs};

use nix::sys::resource::{Resource, getrlimit};
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::encode::Rows;

/// Numbers of this process; `None` if the system does not provide one.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Process {
    pub(super) open_fds: Option<u64>,
    pub(super) max_fds: Option<u64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) cpu_seconds: Option<f64>,
    pub(super) start_time_seconds: Option<f64>,
    pub(super) threads: Option<u64>,
}

/// Clock ticks per second in /proc: 100 on every Linux port in use (USER_HZ).
const TICKS: f64 = 100.0;

impl Process {
    pub(super) fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").ok();
        let stat = stat.as_deref().map(Stat::parse).unwrap_or_default();
        let boot = fs::read_to_string("/proc/stat").ok().and_then(|text| number_after(&text, "btime"));
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Self {
            // The directory handle of the count itself is one of the entries.
            open_fds: fs::read_dir("/proc/self/fd").ok().map(|dir| (dir.count() as u64).saturating_sub(1)),
            max_fds: getrlimit(Resource::RLIMIT_NOFILE).ok().map(|limits| limits.0),
            resident_bytes: number_after(&status, "VmRSS:").map(|kib| kib.saturating_mul(1024)),
            cpu_seconds: stat.cpu_ticks.map(|ticks| ticks as f64 / TICKS),
            start_time_seconds: boot
                .zip(stat.start_ticks)
                .map(|(boot, ticks)| boot as f64 + ticks as f64 / TICKS),
            threads: stat.threads,
        }
    }

    /// The names are those of every Prometheus client library.
    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder) -> fmt::Result {
        let (bytes, seconds) = (Some(&Unit::Bytes), Some(&Unit::Seconds));
        let whole = |value: Option<u64>| value.map(|n| n as f64);
        let gauges = [
            ("process_open_fds", "Open file descriptors.", None, whole(self.open_fds)),
            ("process_max_fds", "Limit of open file descriptors.", None, whole(self.max_fds)),
            ("process_threads", "Threads.", None, whole(self.threads)),
            ("process_resident_memory", "Resident memory.", bytes, whole(self.resident_bytes)),
            ("process_start_time", "Start time, since the epoch.", seconds, self.start_time_seconds),
        ];
        for (name, help, unit, value) in gauges {
            if let Some(n) = value {
                encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?.encode_gauge(&n)?;
            }
        }
        let Some(cpu) = self.cpu_seconds else {
            return Ok(());
        };
        let help = "CPU time, user and system.";
        Rows { encoder, prefix: "process_" }.seconds("cpu", help, cpu)
    }
}

#[derive(Debug, Default, PartialEq)]
struct Stat {
    cpu_ticks: Option<u64>,
    threads: Option<u64>,
    start_ticks: Option<u64>,
}

impl Stat {
    /// Fields as numbered in proc_pid_stat(5). The second, the command, may contain spaces and parentheses.
    fn parse(text: &str) -> Self {
        let Some((_, rest)) = text.rsplit_once(')') else {
            return Self::default();
        };
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
        Self {
            cpu_ticks: field(14).zip(field(15)).map(|(user, system)| user.saturating_add(system)),
            threads: field(20),
            start_ticks: field(22),
        }
    }
}

fn number_after(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_parentheses_does_not_shift_the_fields() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 9 0 1234 1 1";
        let expected = Stat { cpu_ticks: Some(300), threads: Some(9), start_ticks: Some(1234) };
        assert_eq!(Stat::parse(text), expected);
        assert_eq!(Stat::parse("garbage"), Stat::default());
    }

    #[test]
    fn this_process_has_all_numbers() {
        let process = Process::read();
        assert!(process.open_fds.is_some_and(|n| n > 0));
        assert!(process.max_fds.is_some_and(|n| n > 0));
        assert!(process.resident_bytes.is_some_and(|n| n > 0));
        assert!(process.cpu_seconds.is_some());
        assert!(process.threads.is_some_and(|n| n > 0));
        // After 2020: seconds since the epoch, not since boot.
        assert!(process.start_time_seconds.is_some_and(|s| s > 1.577e9));
    }
}
