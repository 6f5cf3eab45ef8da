//! One running bpftrace: waited for until it is attached, ended within bounds. Knows no script's meaning.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use sluice_testkit::process::{bound, find_program};

use super::report::Report;

/// Attaching takes a second or two, more on a busy machine.
const ATTACH_MAX: Duration = Duration::from_secs(60);
/// Detaching 40 probes takes three seconds, for each waits until every CPU has passed through the scheduler; where the
/// host gave this machine little time, thirteen programs at once took more than two minutes. Only a hang gets there.
const END_MAX: Duration = Duration::from_secs(300);
/// How long until a program is asked to end once more.
const ASK_AGAIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);
/// What every script prints first, when its probes are in place.
const ATTACHED: &str = "attached: ";
/// Printed at every start without CAP_SYS_RESOURCE; kernels since 5.11 do not need what it asks for.
const HARMLESS: &str = "RLIMIT_MEMLOCK";

/// A line of one of the two streams.
enum Line {
    Output(String),
    Complaint(String),
}

/// What happened next.
pub(crate) enum Event {
    /// A `printf` of the script.
    Said(String),
    /// Nothing yet.
    Quiet,
    /// The program has ended, or was asked to by Ctrl-C: `finish` is next.
    Ended,
}

/// What Ctrl-C and SIGTERM do to this process while a session runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnInterrupt {
    /// They end the trace, and what it counted is shown.
    EndTrace,
    /// What they did before.
    Unchanged,
}

/// A running bpftrace.
pub(crate) struct Session {
    child: Child,
    lines: Receiver<Line>,
    complaints: VecDeque<String>,
    interrupts: Option<SignalFd>,
    report: Report,
    ended: bool,
}

/// Why bpftrace cannot run here, if so.
pub(crate) fn obstacle() -> Option<&'static str> {
    if !geteuid().is_root() {
        return Some("tracing needs root: try again with sudo");
    }
    find_program("bpftrace").is_none().then_some("bpftrace is missing: apt-get install bpftrace")
}

impl Session {
    /// Starts bpftrace; it ends at the latest with the calling thread. `wait_attached` comes next.
    ///
    /// # Errors
    /// When it cannot run here.
    pub(crate) fn start(script: &Path, args: &[u64], interrupt: OnInterrupt) -> Result<Self> {
        if let Some(reason) = obstacle() {
            bail!(reason);
        }
        let mut command = bound("bpftrace");
        command.args(["-f", "json"]).arg(script).args(args.iter().map(u64::to_string));
        // In a group of its own, so that a Ctrl-C comes to us only, and it is asked to end once.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("start bpftrace")?;
        // Not before: the child would inherit the mask and miss the signal that ends it. Not later either: a
        // reading thread without the mask would take the signal.
        let interrupts = match interrupt {
            OnInterrupt::EndTrace => Some(block_interrupts()?),
            OnInterrupt::Unchanged => None,
        };
        let (sender, lines) = channel();
        let output = child.stdout.take().expect("piped above");
        let complaints = child.stderr.take().expect("piped above");
        read_lines(output, sender.clone(), Line::Output);
        read_lines(complaints, sender, Line::Complaint);
        let report = Report::default();
        let complaints = VecDeque::new();
        Ok(Self { child, lines, complaints, interrupts, report, ended: false })
    }

    /// Waits until the script says that it is attached: what it prints first is shown after the last probe is
    /// in place.
    ///
    /// # Errors
    /// When it ends or hangs before that; with what it said.
    pub(crate) fn wait_attached(&mut self) -> Result<()> {
        let end = Instant::now() + ATTACH_MAX;
        while Instant::now() < end {
            match self.next(POLL)? {
                Event::Said(text) if text.starts_with(ATTACHED) => return Ok(()),
                Event::Ended => {
                    self.end()?;
                    bail!("bpftrace ended before it had attached\n{}", self.complained());
                }
                Event::Said(_) | Event::Quiet => {}
            }
        }
        bail!("bpftrace has not attached within {} s\n{}", ATTACH_MAX.as_secs(), self.complained());
    }

    /// Waits for the next thing the script says, at most `wait`. Maps go into the report on the way.
    ///
    /// # Errors
    /// When a line is not what bpftrace writes.
    pub(crate) fn next(&mut self, wait: Duration) -> Result<Event> {
        let end = Instant::now() + wait;
        loop {
            let interrupt = self.interrupts.as_ref().map(SignalFd::read_signal).transpose()?;
            if self.ended || interrupt.flatten().is_some() {
                return Ok(Event::Ended);
            }
            let left = end.saturating_duration_since(Instant::now()).min(POLL);
            match self.lines.recv_timeout(left) {
                Ok(Line::Output(line)) => {
                    if let Some(said) = self.take(&line)? {
                        return Ok(Event::Said(said));
                    }
                }
                Ok(Line::Complaint(line)) => self.complain(line),
                Err(RecvTimeoutError::Disconnected) => self.ended = true,
                Err(RecvTimeoutError::Timeout) if Instant::now() >= end => return Ok(Event::Quiet),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn take(&mut self, line: &str) -> Result<Option<String>> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let value: Value = serde_json::from_str(line).with_context(|| format!("bpftrace wrote {line:?}"))?;
        if value["type"] == "printf" {
            return Ok(value["data"].as_str().map(str::to_owned));
        }
        self.report.add(&value);
        Ok(None)
    }

    fn complain(&mut self, line: String) {
        if !line.contains(HARMLESS) && !line.trim().is_empty() {
            self.complaints.push_back(line);
        }
    }

    fn complained(&self) -> String {
        self.complaints.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// What the script has printed so far.
    pub(crate) fn report(&self) -> &Report {
        &self.report
    }

    /// Asks the program to end; `finish` waits for that.
    pub(crate) fn interrupt(&mut self) {
        // It may have ended by itself, or print its maps already, which a second signal would end.
        if let (Ok(None), Ok(pid)) = (self.child.try_wait(), i32::try_from(self.child.id()))
            && catches_interrupt(self.child.id())
        {
            kill(Pid::from_raw(pid), Signal::SIGINT).ok();
        }
    }

    /// Has the program end if it has not, and returns all that it printed.
    ///
    /// # Errors
    /// When it had to be killed or did not succeed.
    pub(crate) fn finish(mut self) -> Result<Report> {
        self.end()?;
        for line in &self.complaints {
            eprintln!("bpftrace: {line}");
        }
        Ok(std::mem::take(&mut self.report))
    }

    fn end(&mut self) -> Result<()> {
        if !self.ended {
            self.interrupt();
        }
        let end = Instant::now() + END_MAX;
        let mut ask_at = Instant::now() + ASK_AGAIN;
        while Instant::now() < end {
            match self.lines.recv_timeout(POLL) {
                Ok(Line::Output(line)) => drop(self.take(&line)?),
                Ok(Line::Complaint(line)) => self.complain(line),
                // bpftrace 0.17 overlooks a signal that arrives between two of its waits.
                Err(RecvTimeoutError::Timeout) if Instant::now() >= ask_at => {
                    self.interrupt();
                    ask_at = Instant::now() + ASK_AGAIN;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // Both streams are closed: it is on its way out.
                    let status = self.child.wait()?;
                    ensure!(status.success(), "bpftrace: {status}\n{}", self.complained());
                    return Ok(());
                }
            }
        }
        let place = whereabouts(self.child.id());
        self.child.kill()?;
        self.child.wait()?;
        Err(anyhow!("bpftrace did not end within {} s and was killed {place}", END_MAX.as_secs()))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait()
            && let Err(error) = self.end()
        {
            eprintln!("warning: {error:#}");
        }
    }
}

/// Whether a process still has a handler for SIGINT: bpftrace takes its own away once it has detached.
fn catches_interrupt(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (Signal::SIGINT as u32 - 1)) != 0)
}

/// What a process waits for in the kernel, as far as we may know it.
fn whereabouts(pid: u32) -> String {
    let stack = std::fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
    let calls: Vec<_> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    match calls.is_empty() {
        true => "outside the kernel".to_owned(),
        false => format!("in {}", calls.join(" < ")),
    }
}

/// Ctrl-C and SIGTERM as something to read, so that bpftrace is never left behind.
fn block_interrupts() -> Result<SignalFd> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGTERM);
    signals.thread_block()?;
    Ok(SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

fn read_lines(stream: impl Read + Send + 'static, sender: Sender<Line>, kind: fn(String) -> Line) {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { return };
            if sender.send(kind(String::from_utf8_lossy(&line).into_owned())).is_err() {
                return;
            }
        }
    });
}
