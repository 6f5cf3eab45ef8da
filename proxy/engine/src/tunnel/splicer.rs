//! What a worker needs for spliced tunnels: its handle to the program's maps, and the notifications.

use crate::AssistError;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_ebpf::splice::Ledger;
use sluice_kernel::splice::{Bells, Handle, Limits, ProgramError, Splice};
use sluice_kernel::tcp;
use tokio::sync::Notify;

use super::Ends;

/// The loaded program, from which every worker gets its part.
pub struct SplicerFactory {
    splice: Arc<Splice>,
    listeners: Arc<Listeners>,
    after_bytes: u64,
}

/// Loads the program, and starts the thread that reads its notifications. Requires privileges, so call it before they
/// are dropped.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn load(limits: Limits, after_bytes: u64) -> Result<SplicerFactory, AssistError> {
    let mut splice = Splice::load(limits).map_err(|error| error.to_string())?;
    let listeners = Arc::new(Listeners::default());
    if let Some(bells) = splice.take_bells() {
        let listeners = Arc::clone(&listeners);
        let thread = std::thread::Builder::new().name("splice-bells".to_owned());
        thread.spawn(move || hear(bells, &listeners)).map_err(|error| format!("start a thread: {error}"))?;
    }
    Ok(SplicerFactory { splice: Arc::new(splice), listeners, after_bytes })
}

/// Runs until the process ends. Without it, tunnels are woken by their ticks.
fn hear(mut bells: Bells, listeners: &Listeners) {
    loop {
        match bells.wait() {
            Ok(cookie) => listeners.ring(cookie),
            Err(error) => return tracing::error!(%error, "cannot read splice notifications"),
        }
    }
}

impl SplicerFactory {
    /// A worker's part.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn splicer(&self) -> Result<Splicer, AssistError> {
        self.splicer_after(self.after_bytes)
    }

    /// As [`Self::splicer`], for tunnels that are joined after another number of bytes than configured.
    pub(super) fn splicer_after(&self, after_bytes: u64) -> Result<Splicer, AssistError> {
        Ok(Splicer {
            handle: RefCell::new(self.splice.handle().map_err(|error| error.to_string())?),
            _program: Arc::clone(&self.splice),
            listeners: Arc::clone(&self.listeners),
            after_bytes,
            returning: Cell::new(false),
            complained: Cell::new(false),
        })
    }
}

/// Directions that wait for a notification, by cookie of their source socket. Locked for a moment when a direction
/// starts, ends or is notified, never per byte.
#[derive(Default)]
struct Listeners(Mutex<HashMap<u64, Arc<Notify>>>);

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self, cookie: u64) {
        if let Some(bell) = self.lock().get(&cookie) {
            bell.notify_one();
        }
    }
}

/// One worker's part of splicing.
pub struct Splicer {
    handle: RefCell<Handle>,
    /// Keeps the program attached: without it, joined tunnels would forward nothing.
    _program: Arc<Splice>,
    listeners: Arc<Listeners>,
    after_bytes: u64,
    returning: Cell<bool>,
    complained: Cell<bool>,
}

impl Splicer {
    /// Whether a tunnel between these connections may be spliced once it is worth it.
    pub(super) fn wants(&self, ends: &Ends<'_>) -> bool {
        let is_plain = |stream: &sluice_net::stream::Stream| {
            stream.socket().is_some_and(|fd| tcp::is_plain(fd.as_fd()).unwrap_or(false))
        };
        !self.is_returning() && is_plain(ends.downstream.0.stream()) && is_plain(ends.upstream.0.stream())
    }

    /// Bytes in one direction after which a tunnel is joined.
    pub(super) fn after_bytes(&self) -> u64 {
        self.after_bytes
    }

    /// Takes every tunnel of this worker back, and joins no more.
    pub(crate) fn return_all(&self) {
        self.returning.set(true);
        // Tunnels of other workers check, and continue to wait.
        for bell in self.listeners.lock().values() {
            bell.notify_one();
        }
    }

    pub(super) fn is_returning(&self) -> bool {
        self.returning.get()
    }

    pub(super) fn join(&self, ends: [BorrowedFd<'_>; 2]) -> Result<[u64; 2], ProgramError> {
        self.handle.borrow_mut().join(ends)
    }

    pub(super) fn close(&self, cookie: u64) -> Result<(), ProgramError> {
        self.handle.borrow_mut().close(cookie)
    }

    pub(super) fn ledger(&self, cookie: u64) -> Result<Ledger, ProgramError> {
        self.handle.borrow().ledger(cookie)
    }

    pub(super) fn leave(&self, cookies: [u64; 2]) {
        self.handle.borrow_mut().leave(cookies);
    }

    /// Whether any tunnel of the process is spliced.
    pub(super) fn is_used(&self) -> bool {
        !self.listeners.lock().is_empty()
    }

    pub(super) fn listen(&self, cookie: u64) -> Arc<Notify> {
        Arc::clone(self.listeners.lock().entry(cookie).or_default())
    }

    pub(super) fn forget(&self, cookie: u64) {
        self.listeners.lock().remove(&cookie);
    }

    /// Logs once why a tunnel could not be joined; a counter counts them.
    pub(super) fn complain(&self, error: &AssistError) {
        if !self.complained.replace(true) {
            tracing::warn!(%error, "cannot splice a tunnel; copying it instead (logged once per worker)");
        }
    }
}
