//! Bound addresses: made before privileges are dropped, one socket a worker where the kernel can share
//! the load. Workers accept from them (`worker/accept.rs`).

mod bind;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config;

pub(crate) use bind::{BACKLOG, bind_all};

/// What the workers share of a listener.
pub(crate) struct ListenerState {
    /// Its configuration, its address as bound.
    pub(crate) config: config::Listener,
    /// Host of a forwarded request that came without one (HTTP/1.0).
    pub(crate) authority: String,
    open: AtomicUsize,
}

/// A listener as one worker has it.
pub(crate) struct Bound {
    /// What is shared.
    pub(crate) state: Arc<ListenerState>,
    /// This worker's socket: blocking, listening.
    pub(crate) socket: OwnedFd,
}

/// One of the connections that a listener may have open.
pub(crate) struct Admission(Arc<ListenerState>);

impl ListenerState {
    pub(crate) fn new(config: config::Listener) -> Self {
        let authority = match &config.address {
            config::Address::Unix(_) => "localhost".to_owned(),
            address => address.to_string(),
        };
        Self { config, authority, open: AtomicUsize::new(0) }
    }

    /// Takes a place for one connection; `None` when all are taken.
    pub(crate) fn admit(self: &Arc<Self>) -> Option<Admission> {
        let admission = Admission(Arc::clone(self));
        let before = self.open.fetch_add(1, Ordering::Relaxed);
        (before < self.config.limits.connections_max).then_some(admission)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
