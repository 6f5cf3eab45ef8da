//! The signals that sluice handles. They are caught first of all, so that none of them kills a process that is still
//! starting; signals received meanwhile are handled once it serves.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use nix::sys::signal::Signal as Sig;
use sluice_core::access_log::AccessLog;
use sluice_core::logging;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use super::operator::Operator;
use super::upgrade::READY_TIMEOUT;

const FOR_EVER: Duration = Duration::from_secs(u32::MAX as u64);
/// Long enough for the runtime to process pending signals.
const LOOK: Duration = Duration::from_millis(1);

/// The control thread's runtime, which delivers signals, and the signals.
pub struct ControlRuntime {
    pub(super) runtime: Runtime,
    pub(super) signals: Signals,
    /// Dropped when startup is complete.
    _impatience: Impatience,
}

/// A thread that exits the process at the second terminating signal: a startup step, such as a name lookup, may take
/// long.
type Impatience = oneshot::Sender<()>;

/// One stream for each signal.
pub(super) struct Signals {
    /// SIGTERM.
    terminate: Signal,
    /// SIGINT.
    interrupt: Signal,
    /// SIGQUIT, nginx's graceful shutdown; the same as SIGTERM here.
    quit: Signal,
    /// SIGUSR1: reopens the access log.
    reopen: Signal,
    /// SIGHUP: reads the configuration again.
    reload: Signal,
    /// SIGUSR2: hands over to a new process, as in nginx.
    upgrade: Signal,
    /// SIGXFSZ, so that exceeding the file size limit is a write error and does not kill the process.
    _file_size: Signal,
}

impl ControlRuntime {
    /// Catches signals from here on. Must be called first, on the thread that runs the control plane.
    ///
    /// # Errors
    /// When there are no descriptors or no memory left.
    pub fn start() -> io::Result<Self> {
        let (runtime, signals) = catch()?;
        let _impatience = impatience()?;
        Ok(Self { runtime, signals, _impatience })
    }

    /// Startup is complete: signals are handled from here on.
    pub(super) fn into_parts(self) -> (Runtime, Signals) {
        (self.runtime, self.signals)
    }

    /// Whether the process was asked to exit.
    pub(super) fn is_told_to_end(&mut self) -> bool {
        let Self { runtime, signals, .. } = self;
        runtime.block_on(async { tokio::time::timeout(LOOK, signals.end()).await.is_ok() })
    }
}

fn catch() -> io::Result<(Runtime, Signals)> {
    let mut builder = Builder::new_current_thread();
    // One blocking thread exists from the start: a drain must not fail because no thread can be created.
    let runtime = builder.enable_all().thread_keep_alive(FOR_EVER).build()?;
    drop(runtime.spawn_blocking(|| {}));
    let signals = {
        let _inside = runtime.enter();
        Signals::catch()?
    };
    Ok((runtime, signals))
}

fn impatience() -> io::Result<Impatience> {
    let (runtime, mut signals) = catch()?;
    let (started, starting) = oneshot::channel();
    let twice = async move {
        signals.end().await;
        tracing::info!(
            "asked to stop during startup; waiting for the current step (a second signal exits at once)"
        );
        signals.end().await;
    };
    let watch = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = starting => {}
                () = twice => {
                    tracing::warn!("second signal: stopping during startup");
                    logging::end();
                    std::process::exit(1);
                }
            }
        });
    };
    std::thread::Builder::new().name("start".to_owned()).spawn(watch)?;
    Ok(started)
}

impl Signals {
    fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            reopen: signal(SignalKind::user_defined1())?,
            reload: signal(SignalKind::hangup())?,
            upgrade: signal(SignalKind::user_defined2())?,
            _file_size: signal(SignalKind::from_raw(Sig::SIGXFSZ as i32))?,
        })
    }

    /// Handles signals until one ends the process.
    pub(super) async fn obey(&mut self, log: &AccessLog, operator: &Rc<Operator>) {
        loop {
            // Each outcome is in the log.
            tokio::select! {
                biased;
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.quit.recv() => return,
                _ = self.reopen.recv() => log.reopen(),
                _ = self.reload.recv() => {
                    let operator = Rc::clone(operator);
                    tokio::task::spawn_local(async move { drop(operator.reloader.reload().await) });
                }
                _ = self.upgrade.recv() => {
                    let operator = Rc::clone(operator);
                    tokio::task::spawn_local(async move {
                        drop(operator.upgrader.upgrade(None, READY_TIMEOUT).await);
                    });
                }
            }
        }
    }

    /// Resolves at a signal that ends the process.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            _ = self.quit.recv() => {}
        }
    }
}
