//! One running bpftrace: waits until it is attached, and stops it within time limits. Does not know the meaning of
//! scripts.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;

use super::program::{bound, find_program};
use super::report::Report;

/// Attaching takes a second or two, more on a busy machine.
const ATTACH_MAX: Duration = Duration::from_secs(60);
/// Detaching 40 probes takes three seconds, because each waits until every CPU has passed through the scheduler; on a
/// starved virtual machine, thirteen programs at once took more than two minutes. Reached only by a hang.
const END_MAX: Duration = Duration::from_secs(300);
/// Interval after which a program is asked to stop again.
const ASK_AGAIN: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);
/// The first output of every script, when its probes are in place.
const ATTACHED: &str = "attached: ";
/// Printed at every start without CAP_SYS_RESOURCE; kernels since 5.11 do not need it.
const HARMLESS: &str = "RLIMIT_MEMLOCK";

/// A line of one of the two streams.
enum Line {
    Output(String),
    Complaint(String),
}

/// The next event.
pub enum Event {
    /// A `printf` of the script.
    Said(String),
    /// Nothing yet.
    Quiet,
    /// The program has exited, or was asked to by Ctrl-C: `finish` is next.
    Ended,
}

/// What Ctrl-C and SIGTERM do to this process while a session runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OnInterrupt {
    /// They stop the trace, and its counts are shown.
    EndTrace,
    /// The same as before.
    Unchanged,
}

/// A running bpftrace.
pub struct Session {
    child: Child,
    lines: Receiver<Line>,
    complaints: VecDeque<String>,
    interrupts: Option<SignalFd>,
    report: Report,
    ended: bool,
}

/// Why bpftrace cannot run here, if so.
pub fn obstacle() -> Option<&'static str> {
    if !geteuid().is_root() {
        return Some("tracing needs root: try again with sudo");
    }
    find_program("bpftrace").is_none().then_some("bpftrace is missing: apt-get install bpftrace")
}

impl Session {
    /// Starts bpftrace; it ends at the latest with the calling thread. Call `wait_attached` next.
    ///
    /// # Errors
    /// When it cannot run here.
    pub fn start(script: &str, args: &[u64], interrupt: OnInterrupt) -> Result<Self> {
        if let Some(reason) = obstacle() {
            bail!(reason);
        }
        let mut command = bound("bpftrace");
        command.args(["-f", "json", "-e", script]).args(args.iter().map(u64::to_string));
        // In a separate process group, so that Ctrl-C only reaches us, and it is asked to stop once.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().context("start bpftrace")?;
        // Not before: the child would inherit the mask and miss the signal that stops it. Not later either: a reading
        // thread without the mask would receive the signal.
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

    /// Waits until the script reports that it is attached: its first output is shown after the last probe is in place.
    ///
    /// # Errors
    /// When it exits or hangs before that; with its output.
    pub fn wait_attached(&mut self) -> Result<()> {
        let end = Instant::now() + ATTACH_MAX;
        while Instant::now() < end {
            match self.next(POLL)? {
                Event::Said(text) if text.starts_with(ATTACHED) => return Ok(()),
                Event::Ended => {
                    self.end()?;
                    bail!("bpftrace exited before it was attached\n{}", self.complained());
                }
                Event::Said(_) | Event::Quiet => {}
            }
        }
        bail!("bpftrace was not attached within {} s\n{}", ATTACH_MAX.as_secs(), self.complained());
    }

    /// Waits for the next output of the script, at most `wait`. Maps are added to the report on the way.
    ///
    /// # Errors
    /// When a line is not what bpftrace writes.
    pub fn next(&mut self, wait: Duration) -> Result<Event> {
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

    /// The output of the script so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Asks the program to stop; `finish` waits for that.
    pub fn interrupt(&mut self) {
        // It may have exited by itself, or be printing its maps already, which a second signal would interrupt.
        if let (Ok(None), Ok(pid)) = (self.child.try_wait(), i32::try_from(self.child.id()))
            && catches_interrupt(self.child.id())
        {
            kill(Pid::from_raw(pid), Signal::SIGINT).ok();
        }
    }

    /// Stops the program if necessary, and returns everything it printed.
    ///
    /// # Errors
    /// When it had to be killed or failed.
    pub fn finish(mut self) -> Result<Report> {
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
                // bpftrace 0.17 misses a signal that arrives between two of its waits.
                Err(RecvTimeoutError::Timeout) if Instant::now() >= ask_at => {
                    self.interrupt();
                    ask_at = Instant::now() + ASK_AGAIN;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // Both streams are closed: it is exiting.
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

/// Whether a process still has a handler for SIGINT: bpftrace removes its own once it has detached.
fn catches_interrupt(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    caught.is_some_and(|mask| mask & (1 << (Signal::SIGINT as u32 - 1)) != 0)
}

/// What a process waits for in the kernel, as far as we may know.
fn whereabouts(pid: u32) -> String {
    let stack = std::fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default();
    let calls: Vec<_> = stack.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    match calls.is_empty() {
        true => "outside the kernel".to_owned(),
        false => format!("in {}", calls.join(" < ")),
    }
}

/// Makes Ctrl-C and SIGTERM readable, so that bpftrace is never left behind.
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
