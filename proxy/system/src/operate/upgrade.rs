//! Another process takes over, ten times in a row, under load.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::load::{Judge, Load, MANY};
use super::puma::{FLAGS, Puma};
use super::site::Site;

const UPGRADES: usize = 10;
/// Responses to our own clients between two upgrades.
const BETWEEN: u64 = 40;
const POLL: Duration = Duration::from_millis(20);
/// Longer than a drain may take.
const TRIES: u32 = 3000;

/// A process that is not our child; killed when dropped.
pub(crate) struct Successor(pub(crate) Pid);

impl Successor {
    /// Waits until it has exited by itself.
    fn wait(&self) -> Result<()> {
        for _ in 0..TRIES {
            if self.has_ended() {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        bail!("process {} does not exit", self.0)
    }

    /// Its adoptive parent may leave it as a zombie.
    fn has_ended(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        match kill(self.0, Signal::SIGTERM) {
            Ok(()) if self.wait().is_ok() => {}
            Ok(()) => {
                let _ = kill(self.0, Signal::SIGKILL);
            }
            Err(Errno::ESRCH) => {}
            Err(error) => eprintln!("warning: sluice (pid {}): {error}", self.0),
        }
    }
}

/// The only valid response.
struct Same(String);

impl Judge for Same {
    fn least(&self) -> u64 {
        0
    }

    fn number(&self, text: &str) -> Result<u64> {
        ensure!(text == self.0, "response {text:?}");
        Ok(0)
    }
}

/// Each successor takes over from the previous process, which exits by itself.
pub(super) fn ten_in_a_row(binary: &Path) -> Result<String> {
    let mut site = Site::start("upgrade", binary, json!({}))?;
    let puma = Puma::boot(&site, "upgrade", 1)?;
    let port = puma.ports[0];
    site.must(&format!("deploy app --target 127.0.0.1:{port} {FLAGS}"))?;
    let mut load = Load::start("upgrade", MANY, &site, Arc::new(Same(format!("1 {port}\n"))))?;
    load.wait_for(BETWEEN)?;
    let (mut last, mut slowest): (Option<Successor>, _) = (None, Duration::ZERO);
    for number in 1..=UPGRADES {
        let begun = Instant::now();
        let said = site.must("upgrade")?;
        slowest = slowest.max(begun.elapsed());
        let pid =
            said.strip_prefix("process ").and_then(|rest| rest.trim_end().strip_suffix(" has taken over"));
        let pid = pid.with_context(|| said.clone())?.parse().with_context(|| said.clone())?;
        match last.replace(Successor(Pid::from_raw(pid))) {
            Some(before) => before.wait()?,
            None => site.sluice.wait().context("the first")?,
        }
        load.wait_for(BETWEEN).with_context(|| format!("after upgrade {number}"))?;
    }
    Ok(format!("{UPGRADES} upgrades, the slowest {} ms: {}", slowest.as_millis(), load.finish()?))
}
