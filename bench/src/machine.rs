//! The machine: its properties, its load, and what a period of time used of it.

use std::fmt::{self, Display, Formatter};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;

use super::record::Spent;
use super::server::{Server, ticks_per_second};

const LOOK: Duration = Duration::from_secs(1);

/// The machine on which was measured.
#[derive(Serialize)]
pub(super) struct Machine {
    kernel: String,
    cpu: String,
    cpus: usize,
    memory_kib: u64,
    load_average_before: String,
    /// Share of the machine in use before the first measurement.
    pub(super) busy_before: f64,
}

impl Machine {
    /// Reads the properties, and watches the machine for a second.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub(super) fn look() -> Result<Self> {
        let read = |file: &str| fs::read_to_string(file).with_context(|| file.to_owned());
        let line = |text: &str, key: &str| {
            let found = text.lines().find(|line| line.starts_with(key));
            found.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let memory = line(&read("/proc/meminfo")?, "MemTotal").unwrap_or_default();
        Ok(Self {
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            cpu: line(&read("/proc/cpuinfo")?, "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: cpus(),
            memory_kib: memory.trim_end_matches(" kB").parse().unwrap_or(0),
            load_average_before: read("/proc/loadavg")?.trim().to_owned(),
            busy_before: busy()?,
        })
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} cores, {} MiB, Linux {}; load average {} and {:.0} % of the machine in use before.",
            self.cpu,
            self.cpus,
            self.memory_kib / 1024,
            self.kernel,
            self.load_average_before,
            self.busy_before * 100.0
        )
    }
}

/// Number of usable cores.
pub(super) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// The share of the machine in use, over a second.
fn busy() -> Result<f64> {
    let (before, from) = (Cpu::read()?, Instant::now());
    thread::sleep(LOOK);
    Ok((Cpu::read()?.machine - before.machine) / from.elapsed().as_secs_f64() / cpus() as f64)
}

/// A period of time that is being watched.
pub(super) struct Watch<'a> {
    origin: &'a Server,
    proxy: Option<&'a Server>,
    from: Instant,
    before: Spent,
}

impl<'a> Watch<'a> {
    /// Starts watching; `proxy` is `None` for direct.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub(super) fn start(origin: &'a Server, proxy: Option<&'a Server>) -> Result<Self> {
        let from = Instant::now();
        let mut watch = Self { origin, proxy, from, before: Spent::default() };
        watch.before = watch.read()?;
        Ok(watch)
    }

    /// What was used since the start.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub(super) fn end(&self) -> Result<Spent> {
        let (now, before) = (self.read()?, &self.before);
        Ok(Spent {
            wall: now.wall - before.wall,
            machine: now.machine - before.machine,
            system: now.system - before.system,
            programs: now.programs - before.programs,
            stolen: now.stolen - before.stolen,
            proxy: now.proxy - before.proxy,
            origin: now.origin - before.origin,
            load: now.load - before.load,
            opened: now.opened - before.opened,
        })
    }

    fn read(&self) -> Result<Spent> {
        let cpu = Cpu::read()?;
        Ok(Spent {
            wall: self.from.elapsed().as_secs_f64(),
            machine: cpu.machine,
            system: cpu.system,
            programs: cpu.programs,
            stolen: cpu.stolen,
            proxy: self.proxy.map_or(0.0, Server::cpu_seconds),
            origin: self.origin.cpu_seconds(),
            load: waited_for()?,
            opened: opened()?,
        })
    }
}

/// CPU seconds of ended child processes: during a measurement only the load generator.
fn waited_for() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(micros as f64 / 1e6)
}

/// Seconds since boot, over all cores.
struct Cpu {
    machine: f64,
    system: f64,
    programs: f64,
    stolen: f64,
}

impl Cpu {
    fn read() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
        let fields: Vec<f64> = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .filter_map(|field| field.parse::<f64>().ok())
            .map(|ticks| ticks / ticks_per_second())
            .collect();
        let [user, nice, system, _idle, _iowait, irq, softirq, steal, ..] = fields[..] else {
            anyhow::bail!("/proc/stat has {} fields", fields.len());
        };
        let programs = user + nice + system;
        let machine = programs + irq + softirq + steal;
        Ok(Self { machine, system: system + irq + softirq, programs, stolen: steal })
    }
}

/// TCP connections opened so far in this network namespace.
fn opened() -> Result<f64> {
    let text = fs::read_to_string("/proc/net/snmp").context("/proc/net/snmp")?;
    active_opens(&text).context("no ActiveOpens in /proc/net/snmp")
}

fn active_opens(text: &str) -> Option<f64> {
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let place = rows.next()?.split_whitespace().position(|name| name == "ActiveOpens")?;
    rows.next()?.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snmp_counter_is_found_by_name() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoMin ActiveOpens PassiveOpens\nTcp: 200 42 7\n";
        assert_eq!(active_opens(text), Some(42.0));
        assert_eq!(active_opens("Tcp: RtoMin\nTcp: 200\n"), None);
    }
}
