//! What the eBPF programs log (aya-log), passed on to tracing under a target of its own.
//!
//! They log joins and leaves, at debug level. Below that level they are loaded without: nothing is formatted
//! or sent in the kernel then.
#![allow(unsafe_code, reason = "tokio wants a promise about the descriptor that it polls")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The target in filters: `SLUICE_LOG=info,sluice::ebpf=debug`.
const TARGET: &str = "sluice::ebpf";

/// The global of aya-log that holds the level: 0 is off, 5 is trace.
pub const LEVEL: &str = "AYA_LOG_LEVEL";

/// The level that the filter lets through.
pub fn level() -> u8 {
    if tracing::enabled!(target: TARGET, tracing::Level::DEBUG) { 4 } else { 0 }
}

/// Records that the programs have written, to be read.
pub struct Records {
    logger: EbpfLogger<Forward>,
    /// Whether what is read is thrown away.
    muted: Arc<AtomicBool>,
}

impl Records {
    /// `None` when the level is off.
    pub fn open(ebpf: &mut Ebpf) -> Result<Option<Self>, aya_log::Error> {
        if level() == 0 {
            return Ok(None);
        }
        let muted = Arc::<AtomicBool>::default();
        let logger = EbpfLogger::init_with_logger(ebpf, Forward(Arc::clone(&muted)))?;
        Ok(Some(Self { logger, muted }))
    }

    /// Passes on what is there.
    pub fn flush(&mut self) {
        self.logger.flush();
    }

    /// Throws away what is there.
    pub fn discard(&mut self) {
        self.muted.store(true, Relaxed);
        self.flush();
        self.muted.store(false, Relaxed);
    }

    /// Passes on what comes, until the future is dropped. On a tokio runtime.
    ///
    /// # Errors
    /// When the descriptor cannot be waited for.
    pub async fn forward(self) -> std::io::Result<()> {
        // SAFETY: the logger owns the descriptor of its ring buffer map, never gives it away or changes it,
        // and lives inside what is registered here.
        let registered = unsafe { AsyncFd::register_with_interest(self.logger, Interest::READABLE) };
        let mut logger = registered?;
        loop {
            let mut ready = logger.readable_mut().await?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}

/// From one logging interface to the other.
struct Forward(Arc<AtomicBool>);

impl Log for Forward {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if self.0.load(Relaxed) {
            return;
        }
        let message = record.args();
        match record.level() {
            Level::Error => tracing::error!(target: TARGET, "{message}"),
            Level::Warn => tracing::warn!(target: TARGET, "{message}"),
            Level::Info => tracing::info!(target: TARGET, "{message}"),
            Level::Debug => tracing::debug!(target: TARGET, "{message}"),
            Level::Trace => tracing::trace!(target: TARGET, "{message}"),
        }
    }

    fn flush(&self) {}
}
