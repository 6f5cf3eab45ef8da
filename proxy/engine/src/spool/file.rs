//! A file without a name, for the part of a body that is not buffered in memory. No other process can open it, and it
//! is deleted with its descriptor, however the process ends.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nix::sys::resource::{Resource, getrlimit};
use sluice_config as config;
use sluice_core::budget::{Medium, Share};
use sluice_core::clock;

use super::store::Store;
use super::{HoldError, Spool};

/// Minimum interval between log messages about a failing disk; each exchange has its reason code.
const REPORT_MS: u64 = 10_000;

/// The file and its share of the space.
pub(super) struct File {
    store: Store,
    share: Share,
    bytes: u64,
    /// Bytes that the process may write to one file: exceeding it would end the process by a signal (SIGXFSZ).
    bytes_max: u64,
}

impl File {
    /// Creates a file.
    pub(super) async fn create(spool: &Spool, buffers: &config::Buffers) -> Result<Self, HoldError> {
        if buffers.spool_bytes_max == 0 {
            return Err(HoldError::Full);
        }
        let budget = &spool.budget;
        let store = Store::create(spool.medium, &buffers.directory()).await;
        let store = store.map_err(|error| failed("created", &error))?;
        budget.count_file();
        let bytes_max = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _)| soft);
        Ok(Self { store, share: Share::new(budget, Medium::Spool), bytes: 0, bytes_max })
    }

    /// The size of the file in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends `buf` and returns it empty. If dropped before completion, the file must not be used any more.
    pub(super) async fn append(
        &mut self,
        mut buf: Vec<u8>,
        buffers: &config::Buffers,
    ) -> Result<Vec<u8>, HoldError> {
        let length = buf.len() as u64;
        if !self.share.grow(length, buffers.spool_bytes_max) {
            return Err(HoldError::Full);
        }
        if self.bytes + length > self.bytes_max {
            return Err(failed("written", &io::Error::from_raw_os_error(libc::EFBIG)));
        }
        let mut written = 0;
        while written < buf.len() {
            let offset = self.bytes + written as u64;
            let outcome;
            (outcome, buf) = self.store.write(buf, written, offset).await;
            match outcome {
                Ok(0) => return Err(failed("written", &io::ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("written", &error)),
            }
        }
        self.bytes += length;
        buf.clear();
        Ok(buf)
    }

    /// Reads some bytes from `offset` into `buf`, which is empty: at least one, at most `bytes_max`.
    pub(super) async fn read(
        &self,
        mut buf: Vec<u8>,
        bytes_max: usize,
        offset: u64,
    ) -> Result<Vec<u8>, HoldError> {
        let left = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX);
        let wanted = bytes_max.min(left);
        buf.reserve_exact(wanted);
        loop {
            let outcome;
            (outcome, buf) = self.store.read(buf, wanted, offset).await;
            match outcome {
                Ok(0) => return Err(failed("read", &io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => return Ok(buf),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", &error)),
            }
        }
    }
}

/// Logs the failure, at limited intervals.
fn failed(what: &str, error: &io::Error) -> HoldError {
    static NEXT_MS: AtomicU64 = AtomicU64::new(0);
    let now = clock::now_ms();
    let due = |next: u64| (now >= next).then_some(now + REPORT_MS);
    if NEXT_MS.fetch_update(Relaxed, Relaxed, due).is_ok() {
        tracing::error!(%error, "a spool file cannot be {what}");
    }
    HoldError::Disk
}
