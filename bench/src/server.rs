//! A server in its own session, as services run, and the resources its processes use. Knows pids, no protocol.
//!
//! With autogroup scheduling each session gets a share of the processor. If a server shared a session with the load
//! generator, the load would slow it down.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use sluice_testkit::process::{Process, bound};

/// A server. All its processes have ended after it is dropped.
pub(super) struct Server {
    process: Process,
    /// Removed when the server has ended.
    folder: Option<PathBuf>,
}

/// A command in its own session, which ends with this process.
pub(super) fn session(program: impl AsRef<Path>) -> Command {
    let mut command = bound("setsid");
    command.arg(program.as_ref());
    command
}

impl Server {
    /// Starts `command`, created by [`session`], and waits until it listens.
    ///
    /// # Errors
    /// It does not start; the error contains its log.
    pub(super) fn start(
        name: &str,
        command: &mut Command,
        log: PathBuf,
        address: SocketAddr,
    ) -> Result<Self> {
        Self::start_ended_by(Signal::SIGTERM, name, command, log, address)
    }

    /// Like [`Server::start`], for a server that another signal stops.
    ///
    /// # Errors
    /// The errors of [`Server::start`].
    pub(super) fn start_ended_by(
        stop: Signal,
        name: &str,
        command: &mut Command,
        log: PathBuf,
        address: SocketAddr,
    ) -> Result<Self> {
        let mut process = Process::start(name, command, log, stop)?;
        process.wait_ready(address)?;
        Ok(Self { process, folder: None })
    }

    /// Sets a folder to remove when the server has ended.
    pub(super) fn with_folder(mut self, folder: PathBuf) -> Self {
        self.folder = Some(folder);
        self
    }

    /// CPU seconds so far, including ended processes whose parent waited for them.
    pub(super) fn cpu_seconds(&self) -> f64 {
        let ticks: u64 = self.members().iter().map(|(_, stat)| stat.ticks).sum();
        ticks as f64 / ticks_per_second()
    }

    /// Sum of the peak resident sizes (`VmHWM`) of its processes.
    pub(super) fn peak_kib(&self) -> u64 {
        let files = self.members().into_iter().map(|(pid, _)| format!("/proc/{pid}/status"));
        files.filter_map(|file| field_kib(&file, "VmHWM:")).sum()
    }

    /// Sum of the proportional resident sizes (`Pss`): memory shared by several processes counts once.
    ///
    /// # Errors
    /// No process has a readable Pss.
    pub(super) fn resident_kib(&self) -> Result<u64> {
        let files = self.members().into_iter().map(|(pid, _)| format!("/proc/{pid}/smaps_rollup"));
        let sizes: Vec<u64> = files.filter_map(|file| field_kib(&file, "Pss:")).collect();
        (!sizes.is_empty()).then(|| sizes.iter().sum()).context("no process has a readable Pss")
    }

    /// The last lines of the log.
    pub(super) fn tail(&self) -> String {
        self.process.tail()
    }

    fn members(&self) -> Vec<(i32, Stat)> {
        let session = i64::from(self.process.pid());
        let Ok(folder) = fs::read_dir("/proc") else { return Vec::new() };
        folder
            .filter_map(|entry| {
                let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
                let stat = Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
                (stat.session == session).then_some((pid, stat))
            })
            .collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let before = self.members();
        if let Err(error) = self.process.stop() {
            eprintln!("warning: {error:#}");
        }
        // Workers that outlive their master belong to this server, too.
        for (pid, _) in self.members().into_iter().filter(|(pid, _)| before.iter().any(|(old, _)| old == pid))
        {
            let _ended_meanwhile = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        if let Some(folder) = &self.folder
            && let Err(error) = fs::remove_dir_all(folder)
        {
            eprintln!("warning: {}: {error}", folder.display());
        }
    }
}

/// The required fields of `/proc/PID/stat`.
#[derive(Debug, PartialEq)]
struct Stat {
    session: i64,
    ticks: u64,
}

impl Stat {
    /// The name in parentheses may contain anything, so the fields are counted from its end.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.rsplit_once(") ")?.1.split_whitespace().collect();
        let ticks = fields.get(11..15)?.iter().filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        Some(Self { session: fields.get(3)?.parse().ok()?, ticks })
    }
}

/// Ticks per second in `/proc`.
pub(super) fn ticks_per_second() -> f64 {
    let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().unwrap_or(100);
    ticks as f64
}

fn field_kib(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parenthesis_in_a_process_name_does_not_shift_the_fields() {
        let text = "7 (a) b) S 1 7 5 0 -1 4194560 1 0 0 0 10 20 3 4 20 0 1 0 100 0 0";
        assert_eq!(Stat::parse(text), Some(Stat { session: 5, ticks: 37 }));
        assert_eq!(Stat::parse("7 (a"), None);
    }
}
