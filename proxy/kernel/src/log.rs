//! Forwards what the eBPF programs log (aya-log) to tracing, under a separate target.
//!
//! The programs log joins and leaves, at debug level. If the filter excludes that level, the programs are loaded
//! without logging, and the kernel formats and sends nothing.
#![allow(unsafe_code, reason = "tokio requires that the descriptor it polls stays open")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Level, Log, Metadata, Record};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The target in filters: `SLUICE_LOG=info,sluice::ebpf=debug`.
const TARGET: &str = "sluice::ebpf";

/// aya-log's global variable for the level: 0 is off, 5 is trace.
pub const LEVEL: &str = "AYA_LOG_LEVEL";

/// The level that the filter allows.
pub fn level() -> u8 {
    if tracing::enabled!(target: TARGET, tracing::Level::DEBUG) { 4 } else { 0 }
}

/// Log records of the programs.
pub struct Records {
    logger: EbpfLogger<Forward>,
    /// Whether records are discarded.
    muted: Arc<AtomicBool>,
}

impl Records {
    /// `None` if logging is off.
    pub fn open(ebpf: &mut Ebpf) -> Result<Option<Self>, aya_log::Error> {
        if level() == 0 {
            return Ok(None);
        }
        let muted = Arc::<AtomicBool>::default();
        let logger = EbpfLogger::init_with_logger(ebpf, Forward(Arc::clone(&muted)))?;
        Ok(Some(Self { logger, muted }))
    }

    /// Forwards the available records.
    pub fn flush(&mut self) {
        self.logger.flush();
    }

    /// Discards the available records.
    pub fn discard(&mut self) {
        self.muted.store(true, Relaxed);
        self.flush();
        self.muted.store(false, Relaxed);
    }

    /// Forwards records until the future is dropped. Requires a tokio runtime.
    ///
    /// # Errors
    /// Waiting on the descriptor failed.
    pub async fn forward(self) -> std::io::Result<()> {
        // SAFETY: the logger owns the descriptor of its ring buffer map and never replaces or gives it away. The logger
        // lives inside the registration, so the descriptor stays open for as long as it is registered.
        let registered = unsafe { AsyncFd::register_with_interest(self.logger, Interest::READABLE) };
        let mut logger = registered?;
        loop {
            let mut ready = logger.readable_mut().await?;
            ready.get_inner_mut().flush();
            ready.clear_ready();
        }
    }
}

/// Adapter from the `log` crate to tracing.
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
