//! Banned clients are turned away by the kernel.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_core::bans::Barrier;
use sluice_kernel::bans::Door;

use crate::AssistError;

/// Loads the program that turns banned clients away, and tries it. Requires privileges.
///
/// # Errors
/// Why it cannot be used.
pub fn load(clients_max: u32) -> Result<Arc<dyn Barrier>, AssistError> {
    let door = Door::load(clients_max).map_err(|error| error.to_string())?;
    Ok(Arc::new(KernelBarrier { door, has_complained: AtomicBool::new(false) }))
}

struct KernelBarrier {
    door: Door,
    has_complained: AtomicBool,
}

impl KernelBarrier {
    /// Workers turn the client away, as they do without the program.
    fn complain(&self, error: &dyn std::error::Error) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the kernel does not turn all banned clients away; workers do");
        }
    }
}

impl Barrier for KernelBarrier {
    fn keep_out(&self, client: IpAddr, left: Duration) {
        self.door.ban(client, left).unwrap_or_else(|error| self.complain(&error));
    }

    fn let_in(&self, client: IpAddr) {
        self.door.pardon(client).unwrap_or_else(|error| self.complain(&error));
    }

    fn stand_at(&self, listener: BorrowedFd<'_>) {
        self.door.guard(listener).unwrap_or_else(|error| self.complain(&error));
    }

    fn turned_away(&self) -> u64 {
        self.door.dropped().unwrap_or_default()
    }
}
