//! The application that `sluice run … -- COMMAND` starts, and ends.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpid};

/// How long it may take to end, once sluice has none of its requests any more: as long as Puma waits for its own.
const PATIENCE: Duration = Duration::from_secs(30);
/// The status of a program that a signal has ended is this and the number of the signal, as in a shell.
const SIGNALLED: i32 = 128;

/// A running application.
pub(crate) struct Application {
    pid: Pid,
    /// Whether sluice itself ends it.
    is_told: Arc<AtomicBool>,
    ended: Receiver<ExitStatus>,
}

impl Application {
    /// Starts a command, with PORT for the port that it is asked at. If it ends by itself, this process is told to end.
    /// It has a process group of its own, so that a terminal's Ctrl-C does not end it before its requests.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub(crate) fn start(command: &[OsString], port: Option<u16>) -> io::Result<Option<Self>> {
        let Some((program, arguments)) = command.split_first() else { return Ok(None) };
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        if let Some(port) = port.filter(|_| std::env::var_os("PORT").is_none()) {
            command.env("PORT", port.to_string());
        }
        let child = command.spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        let is_told = Arc::new(AtomicBool::new(false));
        let (tell, ended) = channel();
        let flag = Arc::clone(&is_told);
        let wait = move || watch(child, &flag, |status| tell.send(status).is_ok());
        thread::Builder::new().name("application".to_owned()).spawn(wait)?;
        Ok(Some(Self { pid, is_told, ended }))
    }

    /// Ends it, unless it has ended; its status if it has ended by itself.
    pub(crate) fn end(self) -> Option<u8> {
        if let Ok(status) = self.ended.try_recv() {
            return Some(code_of(status));
        }
        self.is_told.store(true, SeqCst);
        tracing::info!(pid = self.pid.as_raw(), "the application is told to end");
        let _ = kill(self.pid, Signal::SIGTERM);
        if let Err(RecvTimeoutError::Timeout) = self.ended.recv_timeout(PATIENCE) {
            tracing::warn!(pid = self.pid.as_raw(), "the application does not end: it is killed");
            let _ = killpg(self.pid, Signal::SIGKILL);
            let _ = self.ended.recv_timeout(PATIENCE);
        }
        None
    }
}

/// Waits for it, and has sluice end with it.
fn watch(mut child: Child, is_told: &AtomicBool, tell: impl FnOnce(ExitStatus) -> bool) {
    let pid = child.id();
    // Only fails if somebody else has waited for it.
    let Ok(status) = child.wait() else { return };
    let is_ours = is_told.load(SeqCst);
    tell(status);
    if !is_ours {
        tracing::warn!(pid, %status, "the application has ended, and so does sluice");
        let _ = kill(getpid(), Signal::SIGTERM);
    }
}

/// The status of a process, as a shell has it.
fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_that_of_a_shell() {
        assert_eq!([0, 3 << 8, 9, 15].map(|raw| code_of(ExitStatus::from_raw(raw))), [0, 3, 137, 143]);
    }
}
